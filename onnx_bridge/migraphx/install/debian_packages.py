"""Debian packages as files: selecting the needed ones in a folder, and unpacking them without installing them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx_bridge.core.errors import InputError, RuntimeNotFound
from onnx_bridge.core.system_tools import environment, last_error, raise_if_full, run, tool
from onnx_bridge.migraphx.install_record import InstallTarget

ROOTS = ("libmigraphx-c3", "migraphx-tools")
"""The wanted packages; the others are their dependencies."""

ARCHITECTURE = "amd64"

GPU_LIBRARIES = re.compile(r"lib(amdhip64|hiprtc|hipblaslt|miopen|rocblas)[-.\d]*")
"""The dependencies (500 MB) of libmigraphx_gpu alone: without a GPU they are left out."""

_WITHOUT = (
    "./etc",
    "./usr/share",
    "*/gconv",  # the C library looks for these in the system's /usr/lib, never here
)


@dataclass(frozen=True)
class Selection:
    """The parts of the packages that one kind of installation takes.

    Attributes:
        roots: the wanted packages.
        absent: the names of dependencies that are left out.
        without: patterns of files that are left out.
    """

    roots: tuple[str, ...] = ROOTS
    absent: re.Pattern[str] = re.compile("$^")
    without: tuple[str, ...] = ()


SELECTIONS: Mapping[InstallTarget, Selection] = {
    "ref": Selection(absent=GPU_LIBRARIES, without=(*_WITHOUT, "*/libmigraphx_gpu.so*", "*/libmigraphx_device.so*")),
    # hiprtc loads comgr, the compiler itself, which is only a dependency of the HIP runtime
    "gpu-compiler": Selection(
        roots=(*ROOTS, "libamd-comgr3"),
        absent=re.compile(GPU_LIBRARIES.pattern.replace("hiprtc|", "")),
        without=(*_WITHOUT, "*/llvm-*/lib/clang/*"),
    ),
    "gpu": Selection(),
}


@dataclass(frozen=True)
class Deb:
    """One package file; ``depends`` holds alternatives: one of each group is needed."""

    path: Path
    name: str
    version: str
    architecture: str
    installed_size: int
    """Bytes that the package says it takes on disk."""
    depends: tuple[tuple[str, ...], ...]
    provides: tuple[str, ...]


def fields(stanza: str) -> dict[str, str]:
    """Return the fields of one paragraph of Debian control data; folded lines are joined."""
    unfolded = re.sub(r"\n[ \t]+", " ", stanza.strip())
    return dict(line.split(": ", 1) for line in unfolded.splitlines() if ": " in line)


def alternatives(relation: str) -> tuple[tuple[str, ...], ...]:
    """Return the names in a ``Depends`` field, group by group: ``a (>= 1), b | c`` is ``(("a",), ("b", "c"))``."""
    groups = [group for group in relation.split(",") if group.strip()]
    return tuple(tuple(re.split(r"[\s:(]", name.strip())[0] for name in group.split("|")) for group in groups)


def read(path: Path) -> Deb:
    """Read the control fields of a package file.

    Raises:
        InputError: it is not a package, or a broken one.
        RuntimeNotFound: this machine has no dpkg.
    """
    done = run([tool("dpkg-deb"), "--field", path])
    if done.returncode:
        what = f"not a readable package: {last_error(done.stderr)}"
        raise InputError(what, where=str(path), hint="download it again")
    control = fields(done.stdout)
    return Deb(
        path,
        control["Package"],
        control["Version"],
        control["Architecture"],
        int(control.get("Installed-Size", "0")) * 1024,
        alternatives(",".join(control.get(name, "") for name in ("Pre-Depends", "Depends"))),
        tuple(name for group in alternatives(control.get("Provides", "")) for name in group),
    )


def needed(folder: Path, target: InstallTarget) -> list[Deb]:
    """Return the packages in ``folder`` that an installation needs, directly or indirectly; other files are ignored.

    Raises:
        InputError: the folder does not exist, or a package in it is broken, there twice, or for another architecture.
        RuntimeNotFound: packages are missing; all of them are named.
    """
    if not folder.is_dir():
        raise InputError("the folder does not exist", where=str(folder), hint="give the folder of the .deb files")
    by_name: dict[str, list[Deb]] = {}
    for deb in map(read, sorted(folder.glob("*.deb"))):
        for name in (deb.name, *deb.provides):
            by_name.setdefault(name, []).append(deb)

    selection = SELECTIONS[target]
    wanted: list[tuple[str, ...]] = [(name,) for name in selection.roots]
    chosen: dict[str, Deb] = {}
    missing: list[str] = []
    for group in wanted:  # grows during the loop
        if any(selection.absent.fullmatch(name) for name in group):
            continue
        candidates = next((by_name[name] for name in group if name in by_name), [])
        if not candidates:
            missing.append(" or ".join(group))
        elif candidates[0].name not in chosen:
            deb = _the_one(candidates)
            chosen[deb.name] = deb
            wanted.extend(names for names in deb.depends if names not in wanted)
    if missing:
        raise RuntimeNotFound(
            f"these packages are missing: {', '.join(missing)}",
            where=str(folder),
            hint="collect all of them on a machine with network: onnx-bridge runtime download FOLDER"
            + ("" if target == "ref" else f" --{target}"),
        )
    return list(chosen.values())


def _the_one(candidates: list[Deb]) -> Deb:
    """Return the only candidate, if it is for this architecture."""
    first = candidates[0]
    twins = [deb.path.name for deb in candidates if deb.name == first.name]
    if len(twins) > 1:
        hint = "keep the one from the same suite as the others"
        what = f"{first.name} is there more than once: {', '.join(twins)}"
        raise InputError(what, where=str(first.path.parent), hint=hint)
    if first.architecture not in (ARCHITECTURE, "all"):
        what = f"the package is for {first.architecture}, and {ARCHITECTURE} is needed"
        raise InputError(what, where=str(first.path), hint=f"replace it by the one for {ARCHITECTURE}")
    return first


def unpack(debs: Iterable[Deb], root: Path, target: InstallTarget) -> None:
    """Unpack packages into ``root``; without a GPU, leave out what only a GPU needs, and documentation.

    Raises:
        InputError: a package is broken.
        OSError: the disk is full.
    """
    dpkg, tar = tool("dpkg-deb"), tool("tar")
    without = [f"--exclude={pattern}" for pattern in SELECTIONS[target].without]
    for deb in debs:
        with tempfile.TemporaryFile() as errors:
            # not `dpkg-deb --extract`: what is left out is never written
            reader = subprocess.Popen(
                [dpkg, "--fsys-tarfile", deb.path], stdout=subprocess.PIPE, stderr=errors, env=environment()
            )
            writer = subprocess.run(
                [tar, "--extract", "--no-same-owner", "--directory", root, *without],
                stdin=reader.stdout,
                stderr=errors,
                env=environment(),
                check=False,
            )
            assert reader.stdout is not None
            reader.stdout.close()
            status = reader.wait() or writer.returncode
            errors.seek(0)
            printed = errors.read().decode(errors="replace")
        raise_if_full(printed)
        if status:
            what = f"the package cannot be unpacked: {last_error(printed)}"
            raise InputError(what, where=str(deb.path), hint="download it again")
