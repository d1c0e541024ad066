"""Messages between processes: JSON over a socket, arrays in an anonymous memory file.

A message is a dict of JSON values with arrays by name. The arrays lie one after the other in a memfd whose descriptor
is sent along: nothing is pickled, nothing touches /dev/shm, and the receiver maps instead of copying. What is in a file
already is sent as the file's descriptor. A few small arrays follow the message itself, which takes a third of the time.
"""

from __future__ import annotations

import functools
import json
import math
import mmap
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Message = tuple[dict[str, Any], dict[str, Array]]

_HEADER = struct.Struct("<QQ")
"""The bytes of the JSON text, and of the arrays behind it."""
_ALIGNMENT = 64
_BEHIND = 1 << 16
"""The most bytes of arrays that follow the message."""
_MOST_FILES = 250
"""The kernel sends 253 descriptors at a time."""


@dataclass(frozen=True)
class FileRange:
    """Bytes of an open file, received as an array of uint8 that is mapped from it.

    Attributes:
        file: the descriptor.
        offset, nbytes: where they are.
    """

    file: int
    offset: int
    nbytes: int


def send(connection: socket.socket, message: Mapping[str, Any], arrays: Mapping[str, Array | FileRange]) -> None:
    """Send one message.

    Args:
        connection: a Unix stream socket.
        message: JSON values.
        arrays: of numeric dtypes, those of ml_dtypes included; or ranges of at most 250 files.

    Raises:
        OSError: the other side is gone, or there is no memory for the arrays.
    """
    ranges = {name: each for name, each in arrays.items() if isinstance(each, FileRange)}
    files = list(dict.fromkeys(each.file for each in ranges.values()))
    if len(files) > _MOST_FILES:
        raise OSError(f"a message cannot have {len(files)} files")
    entries: list[dict[str, Any]] = [
        {"name": name, "dtype": "uint8", "shape": [each.nbytes], "offset": each.offset, "file": files.index(each.file)}
        for name, each in ranges.items()
    ]
    given = {name: each for name, each in arrays.items() if not isinstance(each, FileRange)}
    more, size = _layout(given)
    packed, behind = None, b""
    if size <= _BEHIND:
        entries += more
        behind = b"".join(_padded(each) for each in given.values())
    else:
        packed = _pack(given, more, size)
        entries += [{**each, "file": len(files)} for each in more]
        files.append(packed)
    try:
        body = json.dumps({"message": message, "arrays": entries}).encode()
        head = _HEADER.pack(len(body), len(behind))
        if files:
            socket.send_fds(connection, [head], files)
            connection.sendall(body + behind)
        else:
            connection.sendall(head + body + behind)
    finally:
        if packed is not None:
            os.close(packed)


def receive(connection: socket.socket) -> Message:
    """Receive one message; its arrays are read-only views of memory that lives as long as they do.

    Raises:
        EOFError: the other side is gone.
    """
    head, descriptors, _flags, _address = socket.recv_fds(connection, _HEADER.size, _MOST_FILES + 1)
    try:
        if not head:
            raise EOFError
        head += _exactly(connection, _HEADER.size - len(head))
        size, behind = _HEADER.unpack(head)
        body = json.loads(_exactly(connection, size))
        arrays = _map(descriptors, body["arrays"], _aligned(connection, behind))
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return body["message"], arrays


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def _aligned(connection: socket.socket, count: int) -> Array:
    """The bytes that follow, where ONNX Runtime computes with them as with those of a mapped file."""
    memory = np.empty(count + _ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    found = memory[start : start + max(count, 1)]
    view = found.data[:count]
    while view:
        received = connection.recv_into(view)
        if not received:
            raise EOFError
        view = view[received:]
    found.flags.writeable = False
    return found


def _layout(arrays: Mapping[str, Array]) -> tuple[list[dict[str, Any]], int]:
    """The description of each array, with its place, and the bytes of all."""
    entries, offset = [], 0
    for name, array in arrays.items():
        entries.append({"name": name, "dtype": _name(array.dtype), "shape": array.shape, "offset": offset})
        offset += _padded_size(array)
    return entries, offset


def _padded_size(array: Array) -> int:
    return -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT


def _padded(array: Array) -> bytes:
    return array.tobytes().ljust(_padded_size(array), b"\0")


def _pack(arrays: Mapping[str, Array], entries: list[dict[str, Any]], size: int) -> int:
    """A memory file with the arrays at their places."""
    descriptor = os.memfd_create("onnx-bridge-arrays", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
        for entry, array in zip(entries, arrays.values(), strict=True):
            _write(descriptor, array, entry["offset"])
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _write(descriptor: int, array: Array, offset: int) -> None:
    view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    while view:
        written = os.pwrite(descriptor, view, offset)  # at most 2 GiB a call
        view, offset = view[written:], offset + written


def _map(descriptors: Sequence[int], entries: list[dict[str, Any]], behind: Array) -> dict[str, Array]:
    files = [mmap.mmap(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ) for descriptor in descriptors]
    arrays: dict[str, Array] = {}
    for entry in entries:
        dtype, shape = _dtype(entry["dtype"]), tuple(entry["shape"])
        memory = files[entry["file"]] if "file" in entry else behind
        arrays[entry["name"]] = np.frombuffer(memory, dtype, math.prod(shape), entry["offset"]).reshape(shape)
    return arrays


@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name


@functools.cache
def _dtype(name: str) -> np.dtype[Any]:
    if hasattr(np, name):
        return np.dtype(name)
    import ml_dtypes  # MIGraphX's worker process, which never receives these, starts faster without it

    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype
