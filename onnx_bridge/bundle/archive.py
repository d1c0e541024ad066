"""Reading a packed bundle: an uncompressed tar archive, its manifest first."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from onnx_bridge.core.errors import InputError

FIRST = "manifest.json"
"""The first file of an archive."""
_BLOCK = 512


def is_packed(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a packed bundle."""
    try:
        if not Path(path).is_file():
            return False
        with Path(path).open("rb") as file:
            head = file.read(_BLOCK)
    except OSError:
        return False
    return head.startswith(FIRST.encode() + b"\0") and head[257:262] == b"ustar"


@contextmanager
def opened(packed: Path) -> Iterator[tarfile.TarFile]:
    """A packed bundle, open for reading; raises InputError if it is truncated."""
    try:
        with tarfile.open(packed, "r:") as archive:
            yield archive
    except (tarfile.TarError, EOFError) as error:
        raise InputError(f"it is damaged: {error}", where=str(packed), hint="copy or pack it again") from error


def members(archive: tarfile.TarFile, packed: Path) -> Iterator[tarfile.TarInfo]:
    """Its files; raises InputError for links, devices, and paths that lead out of the archive."""
    for entry in archive:
        name = PurePosixPath(entry.name)
        if not entry.isreg() or name.is_absolute() or ".." in name.parts:
            what = f"{entry.name!r} in it is not a file of a bundle"
            raise InputError(what, where=str(packed), hint="it was not made by `onnx-bridge pack`")
        yield entry
