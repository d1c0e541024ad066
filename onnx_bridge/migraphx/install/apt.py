"""Debian's archive as apt sees it, in lists and a state of its own: no root, and nothing of the machine's changes.

Mirrors, proxies and passwords are the machine's own apt configuration; signatures and checksums are apt's work.
"""

from __future__ import annotations

import re
from pathlib import Path

from onnx_bridge.core.errors import InputError, RuntimeNotFound, nearest
from onnx_bridge.migraphx.install.debian_packages import ARCHITECTURE, GPU_LIBRARIES, ROOTS, alternatives, fields
from onnx_bridge.migraphx.install.system_tools import last_words, run, tool

ORIGIN = "Debian"
KEYRINGS = tuple(Path("/usr/share/keyrings") / f"debian-archive-keyring.{ending}" for ending in ("pgp", "gpg"))
SUITES = ("sid", "unstable", "testing", "stable", "experimental")

_ELSEWHERE = (
    "collect the packages on a Debian machine (onnx-bridge runtime download FOLDER) and install them with --from"
)
_SOURCE = """\
Types: deb
URIs: {mirrors}
Suites: {suite}
Components: main
Architectures: {architecture}
Targets: Packages
Languages: none
Signed-By: {keyring}
"""
_CONFIGURATION = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear AptCli::Hooks;
#clear APT::Architectures;
Dir::Etc::SourceList "{folder}/debian.sources";
Dir::Etc::SourceParts "/dev/null";
Dir::Etc::Preferences "/dev/null";
Dir::Etc::PreferencesParts "/dev/null";
Dir::State "{folder}";
Dir::State::Lists "{folder}/lists";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}";
Dir::Cache::archives "{debs}";
Dir::Cache::pkgcache "pkgcache.bin";
Dir::Cache::srcpkgcache "srcpkgcache.bin";
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Default-Release "";
APT::Install-Recommends "false";
APT::Install-Suggests "false";
APT::Get::AllowUnauthenticated "false";
Acquire::AllowInsecureRepositories "false";
APT::Sandbox::User "root";
"""
"""Set after the machine's own configuration. Hooks are cleared because they belong to the machine's package system;
the sandbox user, which only root has to switch to, could not write into a private folder."""

_PRETENDED = """\
Package: {name}
Status: install ok installed
Architecture: {architecture}
Multi-Arch: same
Version: 9999
Maintainer: ONNX Bridge
Description: not there, and not needed without a GPU

"""


def keyring() -> Path:
    """The keys that Debian signs its archive with.

    Raises:
        RuntimeNotFound: this machine has none.
    """
    for path in KEYRINGS:
        if path.is_file():
            return path
    raise RuntimeNotFound(
        "this machine has no keys to check Debian's signatures with",
        where=str(KEYRINGS[-1]),
        hint="install the package debian-archive-keyring, or install from .deb files with --from",
    )


def mirrors() -> list[str]:
    """The addresses in this machine's apt sources that serve Debian's archive, or may do so.

    Raises:
        RuntimeNotFound: no apt, or none of its sources comes into question.
    """

    def targets(form: str, *options: str) -> list[list[str]]:
        done = run([tool("apt-get"), "indextargets", *options, "--format", form])
        return [line.split("|") for line in done.stdout.splitlines()]

    fetched = targets("$(REPO_URI)|$(ORIGIN)|$(LABEL)")
    found = [uri for uri, *publisher in fetched if publisher == [ORIGIN, ORIGIN]]
    if not found:
        # Without fetched lists a source is known by its lines only; the signature then tells which is Debian's.
        others = {uri for uri, *_ in fetched}
        found = [
            uri
            for uri, release, component in targets("$(REPO_URI)|$(RELEASE)|$(COMPONENT)", "--no-release-info")
            if component == "main" and not re.search("security|/updates", release)
            if uri not in others and not uri.startswith("cdrom:")
        ]
    if not found:
        raise RuntimeNotFound(
            "none of this machine's apt sources serves Debian's archive",
            hint=f"add one to /etc/apt/sources.list.d; or {_ELSEWHERE}",
        )
    return list(dict.fromkeys(found))


class Archive:
    """One suite of Debian's archive, with all of apt's state in ``folder`` and downloads in ``debs``.

    Args:
        folder: an empty folder for apt's lists and state.
        debs: where `download` puts the packages.
        suite: ``sid``, ``testing``, …
        gpu: whether the GPU's libraries are wanted as well.

    Raises:
        InputError: no such suite.
        RuntimeNotFound: no apt, no keys, no mirror, none that can be reached, or a signature that does not fit.
    """

    def __init__(self, folder: Path, debs: Path, suite: str, *, gpu: bool) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]*", suite):
            raise _no_such_suite(suite, "not a suite's name")
        self.suite, self.debs = suite, debs
        self.configuration = folder / "apt.conf"
        for partial in (folder / "lists" / "partial", debs / "partial"):
            partial.mkdir(parents=True)
        status = folder / "status"
        status.touch()
        source = _SOURCE.format(mirrors=" ".join(mirrors()), suite=suite, architecture=ARCHITECTURE, keyring=keyring())
        (folder / "debian.sources").write_text(source)
        self.configuration.write_text(_CONFIGURATION.format(folder=folder, debs=debs, architecture=ARCHITECTURE))
        self._update()
        if not gpu:
            # apt then works out everything else as if these were there
            status.write_text(
                "".join(_PRETENDED.format(name=n, architecture=ARCHITECTURE) for n in self._gpu_libraries())
            )

    def _apt(self, program: str, *arguments: str, into: Path | None = None) -> tuple[int, str, str]:
        done = run([tool(program), "-c", self.configuration, "-q", *arguments], folder=into)
        return done.returncode, done.stdout, done.stderr

    def _update(self) -> None:
        _, _, said = self._apt("apt-get", "update")
        # update's own status is 0 when it reached nobody
        _, targets, _ = self._apt("apt-get", "indextargets", "--format", "$(ORIGIN)|$(FILENAME)")
        for line in targets.splitlines():
            origin, file = line.split("|")
            if origin == ORIGIN and Path(file).exists():
                return
        words = last_words(said)
        if re.search(r"NO_PUBKEY|GPG error|BADSIG|EXPKEYSIG|REVKEYSIG|OpenPGP|sqv", said):
            explained = next((line for line in said.splitlines() if "GPG error" in line or "sqv" in line), words)
            raise RuntimeNotFound(
                f"the signature of Debian's archive does not fit the keys of this machine: {last_words(explained)}",
                where=str(keyring()),
                hint="bring the package debian-archive-keyring up to date; if that does not help, distrust the mirror",
            )
        if re.search(r"does not have a Release file|404 ", said):
            raise _no_such_suite(self.suite, words)
        raise RuntimeNotFound(
            f"Debian's archive cannot be reached: {words}",
            hint=f"check the network and apt's proxy settings; or {_ELSEWHERE}",
        )

    def _show(self, *names: str) -> list[dict[str, str]]:
        _, shown, _ = self._apt("apt-cache", "show", "--no-all-versions", *names)
        return [fields(stanza) for stanza in shown.split("\n\n") if stanza.strip()]

    def _gpu_libraries(self) -> list[str]:
        groups = [group for said in self._show(*ROOTS) for group in alternatives(said.get("Depends", ""))]
        return sorted({name for group in groups for name in group if GPU_LIBRARIES.fullmatch(name)})

    def _install(self, option: str) -> str:
        status, out, said = self._apt("apt-get", "--assume-yes", option, "install", *ROOTS)
        if status == 0:
            return out
        words = last_words(said)
        if re.search(r"Unable to locate|no installation candidate|unmet dependencies|held broken", said):
            why = re.search(r"Depends: .*", out + said)
            raise RuntimeNotFound(
                f"Debian's suite {self.suite} has no installable MIGraphX: {why.group() if why else words}",
                where=" ".join(ROOTS),
                hint="use the suite sid" if self.suite != "sid" else _ELSEWHERE,
            )
        raise RuntimeNotFound(f"the packages cannot be downloaded: {words}", hint="try again")

    def plan(self) -> tuple[dict[str, str], int]:
        """The versions of all packages to download, by name, and the bytes of disk for them, packed and unpacked.

        Raises:
            RuntimeNotFound: the suite does not have them.
        """
        listed = re.findall(r"^'.*' ([^_ ]+)_\S+\.deb ", self._install("--print-uris"), re.MULTILINE)
        shown = self._show(*listed)
        size = sum(int(one["Size"]) + int(one["Installed-Size"]) * 1024 for one in shown)
        return {one["Package"]: one["Version"] for one in shown}, size

    def download(self) -> None:
        """Download the packages of `plan`, checksums checked.

        Raises:
            RuntimeNotFound: the network failed, or a checksum did not fit.
        """
        self._install("--download-only")

    def fetch(self, name: str, version: str) -> Path:
        """Download one more package, without what it depends on, checksum checked.

        Raises:
            RuntimeNotFound: the suite does not have it in this version, or the network failed.
        """
        status, _, said = self._apt("apt-get", "download", f"{name}={version}", into=self.debs)
        found = list(self.debs.glob(f"{name}_*.deb"))
        if status or not found:
            raise RuntimeNotFound(
                f"{name} {version} cannot be had from Debian's suite {self.suite}: {last_words(said)}",
                hint="onnx-bridge runtime install --update brings the runtime to the suite's version",
            )
        return found[0]


def _no_such_suite(suite: str, why: str) -> InputError:
    hint = nearest(suite, SUITES) or f"for instance: {', '.join(SUITES)}"
    return InputError(f"Debian's archive has no such suite: {why}", where=f"suite {suite!r}", hint=hint)
