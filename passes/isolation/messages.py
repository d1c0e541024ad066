"""Messages between processes: JSON values over a socket, arrays in an anonymous memory file.

A message is a dict of JSON values, written as MessagePack, with arrays by name. The arrays lie one after the other in a
memfd whose descriptor is sent after it: nothing is pickled, nothing touches /dev/shm, and the receiver maps instead of
copying. What is in a file already is sent as the file's descriptor. A few small arrays follow the message itself, which
takes a third of the time.

The socket keeps the borders of packets, so that a small message is received by one call, with its arrays. Descriptors
have a packet of their own, since to be ready for them takes longer than to receive a small message. Of a message that
is like the last but for the elements of arrays, where these lie in memory that is reused, only the header is sent.
"""

from __future__ import annotations

import errno
import functools
import json
import mmap
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from passes.isolation.reused_memory import MOST, ReusedMemory, placed

try:
    import msgspec
except ModuleNotFoundError:  # in an environment that is not the project's
    msgspec = None  # type: ignore[assignment]

Array = np.ndarray[Any, np.dtype[Any]]
Message = tuple[dict[str, Any], dict[str, Array]]

_HEADER = struct.Struct("<QQQQ")
"""The bytes of the text, those of the arrays behind it, the number of the memory for the answer, and the number of
descriptors. Without a text, it is that of the last message whose arrays were in memory that is reused."""
_ALIGNMENT = 64
_FIRST, _PACKET = 4096, 1 << 16
"""The most bytes of a message's first packet, and of a later one."""
_BEHIND = 1 << 16
"""The most bytes of arrays that follow the message."""
_MOST_FILES = 250
"""The kernel sends 253 descriptors at a time."""


@dataclass(frozen=True)
class FileRange:
    """Bytes of an open file, received as an array of uint8 that is mapped from it."""

    file: int
    offset: int
    nbytes: int


def connect() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a new connection."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(
    connection: socket.socket,
    message: Mapping[str, Any],
    arrays: Mapping[str, Array | FileRange],
    reused: ReusedMemory | None = None,
    answer: int = 0,
    *,
    as_json: bool = False,
) -> None:
    """Send one message; raises OSError if the other side is gone, or there is no memory for the arrays.

    Args:
        connection: an end of `connect`.
        message: JSON values.
        arrays: arrays of numeric dtypes, ml_dtypes included; or ranges of at most 250 files.
        reused: where to write the arrays, if they fit in; they are valid until the next message there.
        answer: the number of the reused memory that the answer's are to be written to; 0 for none.
        as_json: whether the other side may have no msgspec.
    """
    ranges = {name: range_ for name, range_ in arrays.items() if isinstance(range_, FileRange)}
    given = {name: array for name, array in arrays.items() if not isinstance(array, FileRange)}
    entries, size = _layout(given)
    if reused is not None and not ranges and size <= MOST:
        _send_reused(connection, {"message": message, "in_reused": entries}, given, size, reused, answer)
        return
    files = list(dict.fromkeys(range_.file for range_ in ranges.values()))
    if len(files) > _MOST_FILES:
        raise OSError(f"a message cannot have {len(files)} files")
    in_files = [
        {
            "name": name,
            "dtype": "uint8",
            "shape": [range_.nbytes],
            "offset": range_.offset,
            "file": files.index(range_.file),
        }
        for name, range_ in ranges.items()
    ]
    if size <= _BEHIND:
        padded = (array.tobytes().ljust(_padded_size(array.nbytes), b"\0") for array in given.values())
        behind = b"".join(padded)
        text = _encoded({"message": message, "in_files": in_files, "behind": entries}, as_json)
        _send_packets(connection, text, behind, files, answer)
        return
    in_files += [{**entry, "file": len(files)} for entry in entries]
    packed = _pack(given, entries, size)
    try:
        text = _encoded({"message": message, "in_files": in_files}, as_json)
        _send_packets(connection, text, b"", [*files, packed], answer)
    finally:
        os.close(packed)


def _send_reused(
    connection: socket.socket,
    body: Mapping[str, Any],
    arrays: Mapping[str, Array],
    size: int,
    reused: ReusedMemory,
    answer: int,
) -> None:
    text = _encoded(body)
    if text == reused.text:
        reused.write(arrays)
        connection.send(_HEADER.pack(0, 0, answer, 0))
        return
    grown = reused.grow(size)
    try:
        reused.lay_out(body["in_reused"])
        reused.write(arrays)
        _send_packets(connection, text, b"", [] if grown is None else [grown], answer)
        reused.text = text
    finally:
        if grown is not None:
            os.close(grown)


def _send_packets(connection: socket.socket, text: bytes, behind: bytes, files: Sequence[int], answer: int) -> None:
    head = _HEADER.pack(len(text), len(behind), answer, len(files)) + text
    whole = memoryview(head.ljust(_padded_size(len(head)), b"\0") + behind)
    connection.send(whole[:_FIRST])
    for start in range(_FIRST, len(whole), _PACKET):
        connection.send(whole[start : start + _PACKET])
    if files:
        socket.send_fds(connection, [b"files"], files)


def receive(connection: socket.socket, reused: ReusedMemory | None = None) -> Message:
    """Receive one message; its arrays are read-only views of memory that lives as long as they do.

    Args:
        connection: an end of `connect`.
        reused: what the other side may have written arrays to, whose `read` says how long they are valid.

    Raises:
        EOFError: the other side is gone.
    """
    data = _aligned(_FIRST) if reused is None or reused.packet is None else reused.packet
    count = connection.recv_into(data.data)
    if not count:
        raise EOFError
    size, more, answer, files = _HEADER.unpack_from(data.data)
    if not size:
        assert reused is not None
        reused.wanted, reused.packet = answer, data
        return reused.message, reused.read()
    start = _padded_size(_HEADER.size + size)
    if start + more > count:
        data = _completed(connection, data[:count], start + more)
    data.flags.writeable = False
    descriptors = _descriptors(connection, files)
    try:
        text = data[_HEADER.size : _HEADER.size + size].data
        body = json.loads(bytes(text)) if text[0] == ord("{") else msgspec.msgpack.decode(text)
        if reused is not None:
            reused.wanted, reused.packet = answer, None
        if "in_reused" in body:
            assert reused is not None
            for descriptor in descriptors:
                reused.map(descriptor)
            reused.message = body["message"]
            reused.lay_out(body["in_reused"])
            return reused.message, reused.read()
        mapped = [mmap.mmap(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ) for descriptor in descriptors]
        arrays = {entry["name"]: placed(entry, mapped[entry["file"]]) for entry in body["in_files"]}
        arrays |= {entry["name"]: placed(entry, data[start:]) for entry in body.get("behind", ())}
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return body["message"], arrays


def _completed(connection: socket.socket, first: Array, size: int) -> Array:
    """Return all bytes of a message, after its first packet; raises EOFError."""
    data, count = _aligned(size), len(first)
    data[:count] = first
    while count < size:
        received = connection.recv_into(data[count:].data)
        if not received:
            raise EOFError
        count += received
    return data


def _descriptors(connection: socket.socket, count: int) -> list[int]:
    """Return the descriptors that come after a message.

    Raises:
        EOFError: the other side is gone.
        OSError: this process may not open as many files.
    """
    if not count:
        return []
    data, descriptors, _flags, _address = socket.recv_fds(connection, _FIRST, count)
    if not data:
        raise EOFError
    if len(descriptors) < count:
        for descriptor in descriptors:
            os.close(descriptor)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return descriptors


def _encoded(body: Mapping[str, Any], as_json: bool = False) -> bytes:
    """Encode as MessagePack; if it fails, as JSON: halves of surrogate pairs (names that are not UTF-8), long integers.

    The first byte tells one from the other. (JSON as msgspec writes it has no infinities.)
    """
    if as_json or msgspec is None:
        return json.dumps(body).encode()
    try:
        return msgspec.msgpack.encode(body)
    except (UnicodeEncodeError, OverflowError):
        return json.dumps(body).encode()


def _aligned(count: int) -> Array:
    """Return bytes at an address where ONNX Runtime computes with them as with those of a mapped file."""
    memory = np.empty(count + _ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    return memory[start : start + count]


def _layout(arrays: Mapping[str, Array]) -> tuple[list[dict[str, Any]], int]:
    """Return the description of each array, with its place, and the bytes of all."""
    entries, offset = [], 0
    for name, array in arrays.items():
        entries.append({"name": name, "dtype": _name(array.dtype), "shape": array.shape, "offset": offset})
        offset += _padded_size(array.nbytes)
    return entries, offset


def _padded_size(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _pack(arrays: Mapping[str, Array], entries: list[dict[str, Any]], size: int) -> int:
    descriptor = os.memfd_create("onnx-bridge-arrays", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
        for entry, array in zip(entries, arrays.values(), strict=True):
            view, offset = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, entry["offset"]
            while view:
                written = os.pwrite(descriptor, view, offset)  # at most 2 GiB a call
                view, offset = view[written:], offset + written
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name
