"""Tensors: those of Constant nodes, as integers, as protobuf messages, and as dictionary keys."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

_HEAD = 4096
"""The bytes of every tensor that are read; the rest is read only of tensors that are equal so far."""


def constant_of(node: ir.Node) -> ir.TensorProtocol | None:
    """Return the tensor of a Constant node; None for others, sparse tensors, and attributes of a function's caller."""
    if node.op_type != "Constant" or node.domain != "" or len(node.attributes) != 1:
        return None
    attribute = next(iter(node.attributes.data.values()))
    if attribute.is_ref():
        return None
    match attribute.name:
        case "value":
            tensor: ir.TensorProtocol = attribute.value  # as_tensor() would check the protocol, which is slow
            return tensor
        case "value_float" | "value_floats":
            return ir.Tensor(np.array(attribute.value, np.float32))
        case "value_int" | "value_ints":
            return ir.Tensor(np.array(attribute.value, np.int64))
        case "value_string":
            return ir.StringTensor([attribute.as_string().encode()], shape=ir.Shape([]))
        case "value_strings":
            strings = [string.encode() for string in attribute.as_strings()]
            return ir.StringTensor(strings, shape=ir.Shape([len(strings)]))
    return None


def ints(tensor: ir.TensorProtocol | None) -> list[int] | None:
    """Return the elements of a small integer tensor; None for no tensor, floats, and more than 64 elements."""
    if tensor is None or tensor.size > 64 or not tensor.dtype.is_integer():
        return None
    return [int(element) for element in tensor.numpy().ravel()]


def tensor_proto(tensor: ir.TensorProtocol, name: str) -> onnx.TensorProto:
    """Return a tensor with its elements, including external ones."""
    if tensor.dtype == ir.DataType.STRING:
        proto = ir.serde.serialize_tensor(tensor)
        proto.name = name
        return proto
    return onnx.TensorProto(
        name=name, data_type=tensor.dtype.value, dims=tensor.shape.numpy(), raw_data=tensor.tobytes()
    )


def write_info(value: ir.Value, proto: onnx.ValueInfoProto, name: str = "") -> None:
    """Write what is known of a value; but not a shape without a type, which ONNX Runtime refuses.

    Args:
        value: has a name, or ``name`` is given.
        proto: an empty message, which is written to.
        name: the name to write, if it is not the value's own.
    """
    if value.type is None and value.shape is not None:
        value = ir.Value(name=value.name, doc_string=value.doc_string, metadata_props=value.metadata_props)
    ir.serde.serialize_value_into(proto, value, name=name)


class TensorKey:
    """A tensor by its dtype, shape and bytes: -0.0 is not 0.0, and a NaN is itself only with the same bits.

    The tensor is read in place, and copied only if its elements are packed or strided.
    """

    def __init__(self, tensor: ir.TensorProtocol) -> None:
        self._tensor = tensor
        self._start = (dtype_and_shape(tensor), self._head())

    def __hash__(self) -> int:
        return hash(self._start)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorKey) and self._start == other._start and self._digest == other._digest

    def _head(self) -> bytes | tuple[bytes, ...]:
        if self._tensor.dtype == ir.DataType.STRING:
            return tuple(tensor_proto(self._tensor, "").string_data)
        return bytes(_view(self._tensor)[:_HEAD])

    @cached_property
    def _digest(self) -> bytes:
        """A cryptographic hash of all bytes after the head; empty without such bytes."""
        if self._tensor.dtype == ir.DataType.STRING or self._tensor.nbytes <= _HEAD:
            return b""
        return hashlib.blake2b(_view(self._tensor)[_HEAD:].data, digest_size=32).digest()


def dtype_and_shape(tensor: ir.TensorProtocol) -> tuple[ir.DataType, tuple[int, ...]]:
    """Return the part of a tensor's key that needs no reading."""
    return tensor.dtype, tuple(tensor.shape.numpy())


def _view(tensor: ir.TensorProtocol) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if tensor.dtype.bitwidth < 8:
        return np.frombuffer(tensor.tobytes(), np.uint8)
    return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8)
