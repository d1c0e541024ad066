"""Reading a packed bundle: an uncompressed tar archive, its manifest first."""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.regular_file import open_regular

FIRST = "manifest.json"
"""The first file of an archive."""
_BLOCK = 512
_RECORD = re.compile(rb"(\d{1,5}) (?:(size)=(\d{1,18})|path=[^\n]*)\n")
_LONGEST = 1 << 14
"""The longest extended header in bytes."""
_MAX_NAME = 255
_MAX_MANIFEST = 1 << 28
_HINT = "it was not made by `onnx-bridge pack`"
_HEADERS = frozenset(("path", "size"))
"""The extended headers that `pack` writes, for long names and large files."""


def is_packed(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a packed bundle."""
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
    """Open a packed bundle; raises InputError if it is truncated, or has other headers than `pack` writes.

    Python's tarfile obeys headers while it reads them: maps of sparse files take memory and disk without limit.
    """
    try:
        with open_regular(packed) as file:
            _check_headers(file, packed)
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r:") as archive:
                yield archive
    except (tarfile.TarError, EOFError) as error:
        raise InputError(f"the bundle is damaged: {error}", where=str(packed), hint="copy or pack it again") from error


def _check_headers(file: IO[bytes], packed: Path) -> None:
    size = file.seek(0, os.SEEK_END)
    at, given = 0, None  # the size that an extended header gives to the next file
    while at < size:
        file.seek(at)
        block = file.read(_BLOCK)
        if block == bytes(_BLOCK):
            return
        entry = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        extended = entry.type == tarfile.XHDTYPE
        length = entry.size if extended or given is None else given
        given = _extended_size(file.read(min(length, _LONGEST + 1))) if extended and length <= _LONGEST else None
        if not (extended and length <= _LONGEST) and entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise InputError(f"{entry.name!r} in it is not a file of a bundle", where=str(packed), hint=_HINT)
        if not 0 <= length <= size - at - _BLOCK:
            raise tarfile.ReadError(f"{entry.name!r} has {length} bytes, and there are fewer")
        at += _BLOCK + -(-length // _BLOCK) * _BLOCK


def _extended_size(content: bytes) -> int | None:
    """Return the size in an extended header, if it has one; raises ReadError if it has anything but that and a path."""
    size = None
    while content.rstrip(b"\0"):
        record = _RECORD.match(content)
        if record is None or int(record[1]) != record.end():
            raise tarfile.ReadError("a header is not one that `onnx-bridge pack` writes")
        if record[2] == b"size":
            size = int(record[3])
        content = content[record.end() :]
    return size


def members(archive: tarfile.TarFile, packed: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the files of a packed bundle.

    Raises InputError if there is a link, a device, a sparse file, a second file of the same name, a header that `pack`
    does not write, a manifest without end, or a path that leads out of the archive or through another file.
    """
    seen: set[str] = set()
    folders: set[str] = set()
    for entry in archive:
        name = PurePosixPath(entry.name)
        plain = entry.isreg() and not entry.issparse() and entry.pax_headers.keys() <= _HEADERS
        parents = {str(parent) for parent in name.parents}
        clashes = str(name) in seen | folders or not seen.isdisjoint(parents)
        unfit = "\0" in entry.name or len(entry.name.encode(errors="surrogateescape")) > _MAX_NAME
        if not plain or name.is_absolute() or ".." in name.parts or not name.parts or clashes or unfit:
            what = f"{entry.name!r} in it is not a file of a bundle"
            raise InputError(what, where=str(packed), hint=_HINT)
        if name.name == FIRST and entry.size > _MAX_MANIFEST:
            raise InputError(f"{entry.name!r} in it has {entry.size:,} bytes", where=str(packed), hint=_HINT)
        seen.add(str(name))
        folders |= parents
        yield entry
