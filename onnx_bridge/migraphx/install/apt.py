"""Debian's archive by apt, with lists and a state of its own: no root, and the machine's state does not change.

Mirrors, proxies and passwords come from the machine's apt configuration; apt verifies signatures and checksums.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from pathlib import Path

from onnx_bridge.core.errors import InputError, RuntimeNotFound, nearest
from onnx_bridge.core.system_tools import last_error, run, tool
from onnx_bridge.migraphx.install.debian_packages import ARCHITECTURE, SELECTIONS, alternatives, fields
from onnx_bridge.migraphx.install_record import InstallTarget

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
"""Added after the machine's configuration. Hooks are cleared because they belong to the machine's package system; the
sandbox user, to which only root switches, could not write into a private folder."""

_ABSENT = """\
Package: {name}
Status: install ok installed
Architecture: {architecture}
Multi-Arch: same
Version: 9999
Maintainer: ONNX Bridge
Description: absent, and not needed without a GPU

"""


def keyring() -> Path:
    """Return the file of Debian's signing keys; raises RuntimeNotFound if this machine has none."""
    for path in KEYRINGS:
        if path.is_file():
            return path
    raise RuntimeNotFound(
        "this machine has no keys to verify Debian's signatures",
        where=str(KEYRINGS[-1]),
        hint="install the package debian-archive-keyring, or install from .deb files with --from",
    )


def mirrors() -> list[str]:
    """Return the addresses in this machine's apt sources that serve Debian's archive, or may do so.

    Raises RuntimeNotFound if there is no apt, or no such source.
    """

    def targets(form: str, *options: str) -> list[list[str]]:
        done = run([tool("apt-get"), "indextargets", *options, "--format", form])
        return [line.split("|") for line in done.stdout.splitlines()]

    fetched = targets("$(REPO_URI)|$(ORIGIN)|$(LABEL)")
    uris = [uri for uri, *publisher in fetched if publisher == [ORIGIN, ORIGIN]]
    if not uris:
        # Without fetched lists only the lines of a source are known; its signature shows later whether it is Debian's.
        others = {uri for uri, *_ in fetched}
        uris = [
            uri
            for uri, release, component in targets("$(REPO_URI)|$(RELEASE)|$(COMPONENT)", "--no-release-info")
            if component == "main" and not re.search("security|/updates", release)
            if uri not in others and not uri.startswith("cdrom:")
        ]
    if not uris:
        raise RuntimeNotFound(
            "none of this machine's apt sources serves Debian's archive",
            hint=f"add one to /etc/apt/sources.list.d; or {_ELSEWHERE}",
        )
    return list(dict.fromkeys(uris))


class Cause(enum.Enum):
    """The causes for which apt fails, each with the pattern of its messages."""

    PACKAGES = "Unable to locate|no installation candidate|unmet dependencies|held broken"
    SIGNATURE = "NO_PUBKEY|GPG error|BADSIG|EXPKEYSIG|REVKEYSIG|OpenPGP|sqv"
    SUITE = "does not have a Release file|404 "
    OTHER = ""


@dataclass(frozen=True)
class AptFailure:
    """The causes of a failure, by apt's messages, since it has no exit statuses for them."""

    cause: Cause
    message: str

    @classmethod
    def parse(cls, errors: str, output: str = "") -> AptFailure:
        """Read apt's standard error and output."""
        cause = next(known for known in Cause if re.search(known.value, errors))
        message = last_error(errors)
        if cause is Cause.SIGNATURE:
            telling = (line for line in errors.splitlines() if "GPG error" in line or "sqv" in line)
            message = last_error(next(telling, message))
        elif cause is Cause.PACKAGES and (unmet := re.search("Depends: .*", output + errors)):
            message = unmet.group()
        return cls(cause, message)


class Archive:
    """One suite of Debian's archive, with all of apt's state in ``folder`` and downloads in ``debs``.

    Args:
        folder: an empty folder for apt's lists and state.
        debs: where `download` puts the packages.
        suite: ``sid``, ``testing``, …
        target: the purpose of the packages.

    Raises:
        InputError: there is no such suite.
        RuntimeNotFound: there is no apt, no keys or no mirror, no mirror can be reached, or a signature is invalid.
    """

    def __init__(self, folder: Path, debs: Path, suite: str, target: InstallTarget) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]*", suite):
            raise _no_such_suite(suite, "not a suite's name")
        self.suite, self.debs, self._selection = suite, debs, SELECTIONS[target]
        self.configuration = folder / "apt.conf"
        for partial in (folder / "lists" / "partial", debs / "partial"):
            partial.mkdir(parents=True)
        status = folder / "status"
        status.touch()
        source = _SOURCE.format(mirrors=" ".join(mirrors()), suite=suite, architecture=ARCHITECTURE, keyring=keyring())
        (folder / "debian.sources").write_text(source)
        self.configuration.write_text(_CONFIGURATION.format(folder=folder, debs=debs, architecture=ARCHITECTURE))
        self._update()
        # apt then resolves the other dependencies as if these were installed
        status.write_text("".join(_ABSENT.format(name=n, architecture=ARCHITECTURE) for n in self._absent()))

    def _apt(self, program: str, *arguments: str, into: Path | None = None) -> tuple[int, str, str]:
        done = run([tool(program), "-c", self.configuration, "-q", *arguments], folder=into)
        return done.returncode, done.stdout, done.stderr

    def _update(self) -> None:
        _, _, errors = self._apt("apt-get", "update")
        # the status of update is 0 even if no mirror was reached
        _, targets, _ = self._apt("apt-get", "indextargets", "--format", "$(ORIGIN)|$(FILENAME)")
        for line in targets.splitlines():
            origin, file = line.split("|")
            if origin == ORIGIN and Path(file).exists():
                return
        failure = AptFailure.parse(errors)
        match failure.cause:
            case Cause.SIGNATURE:
                raise RuntimeNotFound(
                    f"the signature of Debian's archive does not match the keys of this machine: {failure.message}",
                    where=str(keyring()),
                    hint="update the package debian-archive-keyring; if that does not help, do not trust the mirror",
                )
            case Cause.SUITE:
                raise _no_such_suite(self.suite, failure.message)
            case _:
                raise RuntimeNotFound(
                    f"Debian's archive cannot be reached: {failure.message}",
                    hint=f"check the network and apt's proxy settings; or {_ELSEWHERE}",
                )

    def _show(self, *names: str) -> list[dict[str, str]]:
        _, shown, _ = self._apt("apt-cache", "show", "--no-all-versions", *names)
        return [fields(stanza) for stanza in shown.split("\n\n") if stanza.strip()]

    def _absent(self) -> list[str]:
        shown = self._show(*self._selection.roots)
        groups = [group for package in shown for group in alternatives(package.get("Depends", ""))]
        return sorted({name for group in groups for name in group if self._selection.absent.fullmatch(name)})

    def _install(self, option: str) -> str:
        status, out, errors = self._apt("apt-get", "--assume-yes", option, "install", *self._selection.roots)
        if status == 0:
            return out
        failure = AptFailure.parse(errors, out)
        if failure.cause is Cause.PACKAGES:
            raise RuntimeNotFound(
                f"Debian's suite {self.suite} has no installable MIGraphX: {failure.message}",
                where=" ".join(self._selection.roots),
                hint="use the suite sid" if self.suite != "sid" else _ELSEWHERE,
            )
        raise RuntimeNotFound(f"the packages cannot be downloaded: {failure.message}", hint="try again")

    def plan(self) -> tuple[dict[str, str], int]:
        """Return the versions of the packages to download, by name, and their bytes on disk, packed and unpacked.

        Raises RuntimeNotFound if the suite does not have them.
        """
        listed = re.findall(r"^'.*' ([^_ ]+)_\S+\.deb ", self._install("--print-uris"), re.MULTILINE)
        shown = self._show(*listed)
        size = sum(int(package["Size"]) + int(package["Installed-Size"]) * 1024 for package in shown)
        return {package["Package"]: package["Version"] for package in shown}, size

    def download(self) -> None:
        """Download the packages of `plan`, with verified checksums.

        Raises RuntimeNotFound if the network failed, or a checksum does not match.
        """
        self._install("--download-only")

    def fetch(self, name: str, version: str) -> Path:
        """Download one more package, without its dependencies, with a verified checksum.

        Raises RuntimeNotFound if the suite does not have it in this version, or the network failed.
        """
        status, _, errors = self._apt("apt-get", "download", f"{name}={version}", into=self.debs)
        debs = list(self.debs.glob(f"{name}_*.deb"))
        if status or not debs:
            raise RuntimeNotFound(
                f"{name} {version} cannot be downloaded from Debian's suite {self.suite}: {last_error(errors)}",
                hint="onnx-bridge runtime install --update updates the runtime to the suite's version",
            )
        return debs[0]


def _no_such_suite(suite: str, why: str) -> InputError:
    hint = nearest(suite, SUITES) or f"for instance: {', '.join(SUITES)}"
    return InputError(f"Debian's archive has no such suite: {why}", where=f"suite {suite!r}", hint=hint)
