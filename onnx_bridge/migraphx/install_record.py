"""What `install` writes down about a private runtime: ``runtime.json`` in its folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

NAME = "runtime.json"


@dataclass(frozen=True)
class Package:
    """One package that was unpacked; ``sha256`` is that of its file, which apt checked if it came from the archive."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True)
class File:
    """One installed library: its path below the runtime's folder, bytes, checksum."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class InstallRecord:
    """What a private runtime consists of.

    Attributes:
        suite: the suite of Debian that it came from, or ``from`` (a folder of package files, unsigned).
        origin: what apt says who publishes it, or that folder.
        target: the target it was installed for; ``gpu`` includes ``ref``.
        date: when, in ISO 8601, UTC.
        identity: changes when a package's version does.
    """

    suite: str
    origin: str
    target: Literal["ref", "gpu"]
    date: str
    identity: str
    packages: tuple[Package, ...]
    files: tuple[File, ...]

    @classmethod
    def read(cls, folder: Path) -> InstallRecord | None:
        """The record in ``folder``; None where there is none that can be read."""
        try:
            said = json.loads((folder / NAME).read_text())
            said["packages"] = tuple(Package(**one) for one in said["packages"])
            said["files"] = tuple(File(**one) for one in said["files"])
            return cls(**said)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, folder: Path) -> None:
        """Write the record into ``folder``."""
        (folder / NAME).write_text(json.dumps(asdict(self), indent=1))

    def damage(self, folder: Path, *, thorough: bool = False) -> list[str]:
        """The recorded files that are missing or changed; by size only, or ``thorough``: by checksum."""

        def intact(file: File) -> bool:
            path = folder / file.path
            if not path.is_file() or path.stat().st_size != file.size:
                return False
            return not thorough or checksum(path) == file.sha256

        return [file.path for file in self.files if not intact(file)]


def checksum(path: Path) -> str:
    """The SHA256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def libraries(root: Path, folders: Iterable[Path]) -> tuple[File, ...]:
    """The libraries directly in ``folders``, as a record lists them; links are left out, being only names."""
    paths = sorted(path for folder in folders for path in folder.glob("*.so*"))
    return tuple(
        File(str(path.relative_to(root)), path.stat().st_size, checksum(path))
        for path in paths
        if path.is_file() and not path.is_symlink()
    )


def identity_of(versions: Iterable[tuple[str, str]]) -> str:
    """A short text that stands for a set of (package, version)."""
    listed = "\n".join(f"{name} {version}" for name, version in sorted(versions))
    return hashlib.sha256(listed.encode()).hexdigest()[:10]
