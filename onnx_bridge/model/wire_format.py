"""Protobuf's wire format, to the extent that leaves large tensors in their files.

`strip` copies a serialized ModelProto without the elements of its large tensors; a `Rope` is a message to be written,
whose large parts are still in their files. Neither loads these parts into memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from onnx_bridge.core.files.atomic_write import write_all

BIG = 1024
"""Tensors of at least this many bytes stay in their file."""
LIMIT = 2**31
"""Protobuf reads only messages of fewer bytes."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_DEPTH = 100
"""The limit of nested messages, as in protobuf itself."""

# The messages that contain tensors, by field number of onnx.proto.
_Kind = dict[int, "_Kind"]
_TENSOR: _Kind = {}
_GRAPH: _Kind = {}
_ATTRIBUTE: _Kind = {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH}
_LISTS = frozenset((7, 8, 9))
"""The fields of floats, ints and strings: an attribute that has one has no tensors, but maybe millions of these."""
_NODE: _Kind = {5: _ATTRIBUTE}
_GRAPH |= {1: _NODE, 5: _TENSOR}
_FUNCTION: _Kind = {7: _NODE, 11: _ATTRIBUTE}
_MODEL: _Kind = {7: _GRAPH, 25: _FUNCTION}

_MODEL_FIELDS = frozenset((1, 2, 3, 4, 5, 6, 7, 8, 14, 25, 26))
"""The fields of ModelProto that onnx_ir represents."""
_DATA_TYPE, _RAW, _EXTERNAL_DATA, _DATA_LOCATION = 2, 9, 13, 14
_PACKED = {1: 4, 14: 4, 11: 10, 15: 10}
"""The field of fixed-width elements by TensorProto.DataType: float_data and double_data, complex or not."""


class Malformed(ValueError):
    """The bytes are not a protobuf message."""


class Viewed(Protocol):
    """Bytes in memory or in a file."""

    def view(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the bytes, one-dimensional, copied only if necessary."""


class Payload(Viewed, Protocol):
    """Bytes that are not in the message."""

    @property
    def nbytes(self) -> int:
        """Their number."""

    def write(self, file: int) -> None:
        """Write them at the position of a file descriptor."""


class Rope:
    """A message in pieces: bytes, and payloads."""

    def __init__(self, start: bytes = b"") -> None:
        self.pieces: list[bytearray | Payload] = []
        self.size = 0
        self.add(start)

    def add(self, data: bytes) -> None:
        if not self.pieces or not isinstance(self.pieces[-1], bytearray):
            self.pieces.append(bytearray())
        last = self.pieces[-1]
        assert isinstance(last, bytearray)
        last += data
        self.size += len(data)

    def field(self, number: int, content: bytes | Rope | Payload) -> None:
        if isinstance(content, bytes):
            self.add(_header(number, len(content)) + content)
        elif isinstance(content, Rope):
            self.add(_header(number, content.size))
            for piece in content.pieces:
                if isinstance(piece, bytearray):
                    self.add(bytes(piece))
                else:
                    self._attach(piece)
        else:
            self.add(_header(number, content.nbytes))
            self._attach(content)

    def payloads(self) -> list[Payload]:
        return [piece for piece in self.pieces if not isinstance(piece, bytearray)]

    def join(self) -> bytes:
        return b"".join(piece if isinstance(piece, bytearray) else piece.view().data for piece in self.pieces)

    def write(self, file: int) -> None:
        for piece in self.pieces:
            if isinstance(piece, bytearray):
                write_all(file, piece)
            else:
                piece.write(file)

    def _attach(self, payload: Payload) -> None:
        self.pieces.append(payload)
        self.size += payload.nbytes


@dataclass
class Stripped:
    """A serialized ModelProto without the elements of its large tensors.

    Attributes:
        message: the model. Instead of its elements, a large tensor has ``data_location`` EXTERNAL and one
            ``external_data`` entry, whose key is `token` and whose value is an index into `extents`.
        token: random, so that no file can contain it.
        extents: start and end of each payload, in bytes from the start of the file.
        carried: start and end of each top-level field that onnx_ir would drop (``training_info``, unknown ones).
    """

    message: bytes = b""
    token: str = field(default_factory=lambda: os.urandom(16).hex())
    extents: list[tuple[int, int]] = field(default_factory=list)
    carried: list[tuple[int, int]] = field(default_factory=list)


def strip(data: Any, size: int) -> Stripped:
    """Copy a serialized ModelProto without the elements of its large tensors.

    Args:
        data: a bytes-like object whose items are integers and whose slices are bytes (a mapped file).
        size: its length.

    Raises:
        Malformed: it is not a protobuf message, or is truncated.
    """
    stripped = Stripped()
    lighter = _strip_message(data, _MODEL, 0, size, stripped, 0)
    stripped.message = lighter.join() if lighter else data[:size]
    return stripped


def _strip_message(data: Any, kind: _Kind, begin: int, end: int, stripped: Stripped, depth: int) -> Rope | None:
    """Return the message without large payloads; None if it has none."""
    if depth > _MAX_DEPTH:
        raise Malformed(f"messages are nested deeper than {_MAX_DEPTH} levels")
    rope = Rope()
    done = begin  # everything before is in the rope
    for number, wire, at, value, stop in _fields(data, begin, end):
        if kind is _MODEL and number not in _MODEL_FIELDS:
            if stripped.carried and stripped.carried[-1][1] == at:  # there may be millions of two bytes each
                stripped.carried[-1] = stripped.carried[-1][0], stop
            else:
                stripped.carried.append((at, stop))
            rope.add(data[done:at])
            done = stop
            continue
        if kind is _ATTRIBUTE and number in _LISTS:
            break
        inner = kind.get(number)
        if inner is None or wire != _BYTES or stop - value < BIG:
            continue
        if inner is _TENSOR:
            lighter = _strip_tensor(data, value, stop, stripped)
        else:
            lighter = _strip_message(data, inner, value, stop, stripped, depth + 1)
        if lighter is not None:
            rope.add(data[done:at])
            rope.field(number, lighter)
            done = stop
    if done == begin:
        return None
    rope.add(data[done:end])
    return rope


def _strip_tensor(data: Any, begin: int, end: int, stripped: Stripped) -> Rope | None:
    fields_by_number: dict[int, list[tuple[int, int, int]]] = {}
    dtype = 0
    for number, wire, at, value, stop in _fields(data, begin, end):
        if wire == _BYTES:
            fields_by_number.setdefault(number, []).append((at, value, stop))
        elif number == _DATA_TYPE:
            dtype = _varint(data, value, stop)[0]
        elif number == _DATA_LOCATION and _varint(data, value, stop)[0]:
            return None  # external data already
    payloads = fields_by_number.get(_RAW) or fields_by_number.get(_PACKED.get(dtype, _RAW), [])
    if len(payloads) != 1 or payloads[0][2] - payloads[0][1] < BIG:
        return None
    at, value, stop = payloads[0]
    rope = Rope(data[begin:at] + data[stop:end])
    rope.add(_encode(_DATA_LOCATION << 3 | _VARINT) + b"\1")
    entry = Rope()
    entry.field(1, stripped.token.encode())
    entry.field(2, str(len(stripped.extents)).encode())
    rope.field(_EXTERNAL_DATA, entry)
    stripped.extents.append((value, stop))
    return rope


def _fields(data: Any, begin: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the number, wire type, start, start of the value, and end of each field of a message."""
    at = begin
    while at < end:
        start = at
        key, at = _varint(data, at, end)
        number, wire = key >> 3, key & 7
        if wire == _BYTES:
            length, value = _varint(data, at, end)
            at = value + length
        else:
            value = at
            if wire == _VARINT:
                _, at = _varint(data, at, end)
            elif wire == _FIXED32:
                at += 4
            elif wire == _FIXED64:
                at += 8
            else:
                raise Malformed(f"no field starts at byte {start}")
        if number == 0:
            raise Malformed(f"no field starts at byte {start}")
        if at > end:
            raise Malformed(f"the field at byte {start} ends at byte {at}, its message at byte {end}")
        yield number, wire, start, value, at


def _varint(data: Any, at: int, end: int) -> tuple[int, int]:
    """Return a variable-length integer, and the index after it."""
    result = shift = 0
    while at < end and shift < 70:
        byte: int = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, at
        shift += 7
    raise Malformed(f"the integer before byte {at} does not end")


def _header(number: int, length: int) -> bytes:
    return _encode(number << 3 | _BYTES) + _encode(length)


def _encode(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
