"""Arrays in files of numpy.

Others may have written them: what a header claims is checked before memory is taken for it.
"""

from __future__ import annotations

import io
import lzma
import math
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from passes.core.errors import InputError
from passes.isolation.limits import available_bytes

Array = np.ndarray[Any, np.dtype[Any]]
Expected = Callable[[str], int | None]
"""The number of bytes that an array of a name should have: 0 if unknown, None if it is not to be read."""

_SPARE = 2**26
_INFLATION = 8
"""Arrays have, beyond what is expected, `_SPARE` bytes together, or so many times the bytes of their file."""
_MOST_HEADER = 2**14
"""The most bytes of a header; numpy reads 10,000 characters."""
_MOST_EMPTY = 2**20
"""The most rows of an array without elements, or of elements without bytes, of which a file says how many."""
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_NPY = b"\x93NUMPY"
"""The first bytes of a file of one array."""
_BROKEN_HEADER = (ValueError, SyntaxError, TypeError, OverflowError, RecursionError, tokenize.TokenError)
BROKEN_ARCHIVE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, OverflowError, ValueError),
    RuntimeError,  # of encrypted members
    NotImplementedError,  # of other methods of compression
)
"""The errors that `zipfile` raises for a damaged archive."""


def read_npz(file: IO[bytes], where: str, expected: Expected = lambda name: 0, spare: int = _SPARE) -> dict[str, Array]:
    """Return the arrays of an ``.npz`` by name.

    Args:
        file: from its begin to its end.
        where: its name, for errors.
        expected: tells what is read, and how large it should be.
        spare: the bytes that arrays may have beyond what is expected, however small their file is.

    Raises:
        InputError: it is not one, or a member is not an array that can be read, or is much larger than expected.
    """
    names: set[str] = set()
    arrays: dict[str, Array] = {}
    if file.read(len(_NPY)) == _NPY:
        raise InputError("the file is a single array without a name", where=where, hint=_HINT)
    size = file.seek(0, io.SEEK_END)
    left = most = max(spare, _INFLATION * size)
    file.seek(0)
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name in names:
                    raise InputError(f"the file has two arrays {name!r}", where=where, hint=_HINT)
                if name == member.filename:
                    raise InputError(f"the member {name!r} is not an .npy", where=where, hint=_HINT)
                names.add(name)
                if (bytes_expected := expected(name)) is None:
                    continue
                place = f"{where}, array {name!r}"
                with archive.open(member) as stream:
                    needed = _check_header(stream, member.file_size, place)
                left -= max(0, needed - bytes_expected)
                if left < 0:
                    limit = f"arrays of a file of {size:,} bytes may exceed what is expected by {most:,}"
                    hint = "if it is right, write it with numpy.savez, uncompressed"
                    raise InputError(f"the array would inflate to {needed:,} bytes: {limit}", where=place, hint=hint)
                with archive.open(member) as stream:
                    arrays[name] = _read(stream, place)
    except InputError:
        raise
    except BROKEN_ARCHIVE as error:
        raise InputError(f"the file cannot be read as .npz: {error}", where=where, hint=_HINT) from error
    return arrays


def write_npz(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    """Write arrays by name as an ``.npz``: strings as numpy's own, since objects would have to be pickled."""
    with zipfile.ZipFile(file, "w") as archive:  # numpy.savez takes no array named "file"
        for name, array in arrays.items():
            plain = np.asarray(array, np.str_ if array.dtype.hasobject else None, order="C")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                npy.write_array(stream, plain, allow_pickle=False)


def read_npy(file: IO[bytes], where: str) -> Array:
    """Return the array of an ``.npy``.

    Raises:
        InputError: it is not one, or has Python objects, is structured or big-endian, or too large for this machine.
    """
    begin = file.tell()
    size = file.seek(0, io.SEEK_END) - begin
    file.seek(begin)
    _check_header(file, size, where)
    file.seek(begin)
    return _read(file, where)


_HINT = "write it with numpy.savez"


def _read(stream: IO[bytes], where: str) -> Array:
    try:
        array: Array = npy.read_array(stream, allow_pickle=False)
    except ValueError as error:
        raise InputError(f"the array cannot be read: {error}", where=where) from error
    return array


def _check_header(stream: IO[bytes], size: int, where: str) -> int:
    """Check the header of an array of ``size`` bytes with it; return how many bytes its elements have."""
    begin = io.BytesIO(stream.read(_MOST_HEADER))
    try:
        version = npy.read_magic(begin)
        if version not in _HEADERS:
            raise ValueError(f"version {version[0]}.{version[1]} of the format, of structured arrays, is not supported")
        shape, _, dtype = _HEADERS[version](begin)
    except _BROKEN_HEADER as error:
        first = str(error).partition("\n")[0] or type(error).__name__
        raise InputError(f"the file is not an .npy: {first}", where=where, hint=_HINT) from error
    if dtype.hasobject:
        raise InputError(
            "the array has Python objects, which are not loaded", where=where, hint="save strings as numpy.str_"
        )
    if dtype.names is not None or dtype.kind in "mM":
        raise InputError(f"the elements are {dtype}, and not numbers", where=where)
    if dtype.byteorder == ">":
        hint = f"write it as astype({dtype.newbyteorder('<').str!r})"
        raise InputError(
            f"the array is big-endian ({dtype.str}), and only little-endian is read", where=where, hint=hint
        )
    if any(dim < 0 for dim in shape):
        raise InputError(f"the shape is {list(shape)}", where=where)
    if 0 in (*shape, dtype.itemsize) and math.prod(max(dim, 1) for dim in shape) > _MOST_EMPTY:
        raise InputError(f"the shape is {list(shape)}, of elements of no size", where=where)
    needed, there = math.prod(shape) * dtype.itemsize, size - begin.tell()
    if needed > there:
        raise InputError(f"the header says {needed} bytes of elements, and it has {there}", where=where)
    if needed > available_bytes():
        what = f"the array takes {needed / 2**30:.1f} GiB of memory, and {available_bytes() / 2**30:.1f} GiB are free"
        raise InputError(what, where=where)
    return needed
