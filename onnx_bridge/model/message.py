"""The message of a model, whose strings are all UTF-8.

Protobuf reads any bytes as a string of ONNX's messages, and tells nobody but who looks at that string. So a message is
read a second time, by definitions whose strings protobuf checks while it reads; they are otherwise the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import onnx
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

from onnx_bridge.model.wire_format import Malformed

_SHOWN = 60
"""The most bytes of a string in an error."""


class NotUtf8(Malformed):
    """A string of a message is not UTF-8; its place is written as in ``graph.node[3].doc_string``."""

    def __init__(self, place: str, value: bytes) -> None:
        shown = f"{value[:_SHOWN]!r}{'…' if len(value) > _SHOWN else ''}"
        super().__init__(f"{place} is not UTF-8: {shown}")
        self.place, self.value = place, value


def parse(message: bytes) -> onnx.ModelProto:
    """Return a ModelProto; raises Malformed if the bytes are not a message; `NotUtf8` if a string is at fault."""
    try:
        _strict().FromString(message)
    except DecodeError as error:
        for place, value in _strings(_parsed(message)):
            if isinstance(value, bytes):
                raise NotUtf8(place, value) from None
        raise Malformed(str(error)) from error
    return _parsed(message)


def _parsed(message: bytes) -> onnx.ModelProto:
    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(message)
    except DecodeError as error:
        raise Malformed(str(error)) from error
    return model


@cache
def _strict() -> Any:
    """Return ModelProto's class in a version of protobuf's language whose strings are UTF-8."""
    file = descriptor_pb2.FileDescriptorProto()
    onnx.ModelProto.DESCRIPTOR.file.CopyToProto(file)
    file.syntax = "proto3"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(onnx.ModelProto.DESCRIPTOR.full_name))


def _strings(message: Message, place: str = "") -> Iterator[tuple[str, str | bytes]]:
    """Yield the strings of a message with their places; as bytes if they are not UTF-8."""
    for field, value in message.ListFields():
        name = f"{place}{field.name}"
        items = (
            [(f"{name}[{index}]", item) for index, item in enumerate(value)] if field.is_repeated else [(name, value)]
        )
        if field.message_type is not None:
            for inner, part in items:
                yield from _strings(part, f"{inner}.")
        elif field.type == FieldDescriptor.TYPE_STRING:
            yield from items
