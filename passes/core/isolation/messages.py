"""Messages between processes: JSON over a socket, arrays in an anonymous memory file.

A message is a dict of JSON values with arrays by name. The arrays lie one after the other in a memfd whose descriptor
is sent along: nothing is pickled, nothing touches /dev/shm, and the receiver maps instead of copying. What is in a file
already is sent as the file's descriptor.
"""

from __future__ import annotations

import json
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

_HEADER = struct.Struct("<Q")
_ALIGNMENT = 64
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
    packed = None
    if len(ranges) < len(arrays):
        packed, more = _pack({name: each for name, each in arrays.items() if not isinstance(each, FileRange)})
        entries += [{**each, "file": len(files)} for each in more]
        files.append(packed)
    try:
        body = json.dumps({"message": message, "arrays": entries}).encode()
        head = _HEADER.pack(len(body))
        if files:
            socket.send_fds(connection, [head], files)
            connection.sendall(body)
        else:
            connection.sendall(head + body)
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
        body = json.loads(_exactly(connection, _HEADER.unpack(head)[0]))
        arrays = _map(descriptors, body["arrays"])
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


def _pack(arrays: Mapping[str, Array]) -> tuple[int, list[dict[str, Any]]]:
    entries, offset = [], 0
    for name, array in arrays.items():
        entries.append({"name": name, "dtype": array.dtype.name, "shape": array.shape, "offset": offset})
        offset += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    descriptor = os.memfd_create("onnx-bridge-arrays", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, max(offset, 1))
        for entry, array in zip(entries, arrays.values(), strict=True):
            _write(descriptor, array, entry["offset"])
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, entries


def _write(descriptor: int, array: Array, offset: int) -> None:
    view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    while view:
        written = os.pwrite(descriptor, view, offset)  # at most 2 GiB a call
        view, offset = view[written:], offset + written


def _map(descriptors: Sequence[int], entries: list[dict[str, Any]]) -> dict[str, Array]:
    files = [mmap.mmap(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ) for descriptor in descriptors]
    arrays: dict[str, Array] = {}
    for entry in entries:
        dtype, shape = _dtype(entry["dtype"]), tuple(entry["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        arrays[entry["name"]] = np.frombuffer(files[entry["file"]], dtype, count, entry["offset"]).reshape(shape)
    return arrays


def _dtype(name: str) -> np.dtype[Any]:
    if hasattr(np, name):
        return np.dtype(name)
    import ml_dtypes  # MIGraphX's worker process, which never receives these, starts faster without it

    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return dtype
