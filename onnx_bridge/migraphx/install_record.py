"""The record of a private runtime: ``runtime.json`` in its folder, written by `install`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

import msgspec

from onnx_bridge.core.files.digest import file_digest

NAME = "runtime.json"
InstallTarget = Literal["ref", "gpu-compiler", "gpu"]
"""The purposes of an installation; each one includes those before it: ``gpu-compiler`` compiles for a GPU elsewhere."""


@dataclass(frozen=True)
class Package:
    """One unpacked package; ``sha256`` is that of its file, which apt verified if it came from the archive."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True)
class File:
    """One installed library: its path within the runtime's folder, its size in bytes, its checksum."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class InstallRecord:
    """The packages and libraries of a private runtime.

    Attributes:
        suite: the suite of Debian that it came from, or ``from`` (a folder of package files, unsigned).
        origin: the publisher according to apt, or that folder.
        target: the purpose that it was installed for.
        date: the time of the installation, in ISO 8601, UTC.
        identity: a text that changes with the version of a package.
        packages: what was unpacked.
        files: the libraries.
        ref_identity: the identity of the packages that ``ref`` needs; empty if these are all.
    """

    suite: str
    origin: str
    target: InstallTarget
    date: str
    identity: str
    packages: tuple[Package, ...]
    files: tuple[File, ...]
    ref_identity: str = ""

    @classmethod
    def read(cls, folder: Path) -> InstallRecord | None:
        """Return the record in ``folder``; None if there is none that can be read."""
        try:
            return msgspec.json.decode((folder / NAME).read_bytes(), type=cls)
        except (OSError, ValueError):
            return None

    def serves(self, target: InstallTarget) -> bool:
        """Return whether the installation includes what ``target`` needs."""
        purposes = get_args(InstallTarget)
        return purposes.index(target) <= purposes.index(self.target)

    def write(self, folder: Path) -> None:
        (folder / NAME).write_text(json.dumps(asdict(self), indent=1))

    def damage(self, folder: Path, *, thorough: bool = False) -> list[str]:
        """Return the recorded files that are missing or changed: by size, or with ``thorough`` by checksum."""

        def intact(file: File) -> bool:
            path = folder / file.path
            if not path.is_file() or path.stat().st_size != file.size:
                return False
            return not thorough or file_digest(path) == file.sha256

        return [file.path for file in self.files if not intact(file)]


def libraries(root: Path, folders: Iterable[Path]) -> tuple[File, ...]:
    """Return the libraries in ``folders``, without links, as a record lists them."""
    paths = sorted(path for folder in folders for path in folder.glob("*.so*"))
    return tuple(
        File(str(path.relative_to(root)), path.stat().st_size, file_digest(path))
        for path in paths
        if path.is_file() and not path.is_symlink()
    )


def identity_of(versions: Iterable[tuple[str, str]]) -> str:
    """Return a short hash of pairs of package and version."""
    listed = "\n".join(f"{name} {version}" for name, version in sorted(versions))
    return hashlib.sha256(listed.encode()).hexdigest()[:10]
