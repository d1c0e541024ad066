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
_HEADERS = frozenset(("path", "size"))
"""The extended headers that `pack` writes, for long names and large files."""


def is_packed(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a packed bundle."""
    try:
        if not Path(path).is_file():
            return False
        with Path(path).open("rb") as file:
            head = file.read(_BLOCK)
    except OSError:
        return False
    plain = head[156:157] in (tarfile.REGTYPE, tarfile.AREGTYPE)  # no header that renames the next file
    return head.startswith(FIRST.encode() + b"\0") and plain and head[257:262] == b"ustar"


@contextmanager
def opened(packed: Path) -> Iterator[tarfile.TarFile]:
    """A packed bundle, open for reading; raises InputError if it is truncated."""
    try:
        with tarfile.open(packed, "r:") as archive:
            yield archive
    except (tarfile.TarError, EOFError) as error:
        raise InputError(f"it is damaged: {error}", where=str(packed), hint="copy or pack it again") from error


def members(archive: tarfile.TarFile, packed: Path) -> Iterator[tarfile.TarInfo]:
    """Its files.

    Raises:
        InputError: there is a link, a device, a sparse file, a second file of the same name, a header that `pack` does
            not write, or a path that leads out of the archive.
    """
    seen: set[str] = set()
    for entry in archive:
        name = PurePosixPath(entry.name)
        plain = entry.isreg() and not entry.issparse() and entry.pax_headers.keys() <= _HEADERS
        if not plain or name.is_absolute() or ".." in name.parts or not name.parts or str(name) in seen:
            what = f"{entry.name!r} in it is not a file of a bundle"
            raise InputError(what, where=str(packed), hint="it was not made by `onnx-bridge pack`")
        seen.add(str(name))
        yield entry
