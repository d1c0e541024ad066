"""Messages with tensors between a worker and its process: an array carries the bits, the message MIGraphX's type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx_bridge.migraphx.program import Tensor
from passes.isolation.messages import Array, Message

Tensors = dict[str, Tensor]
TensorMessage = tuple[dict[str, Any], Tensors]


def pack(message: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Message:
    """Return a message with tensors as one with arrays."""
    types = {name: tensor.type for name, tensor in tensors.items()}
    return {"message": message, "types": types}, {name: tensor.data for name, tensor in tensors.items()}


def unpack(message: Mapping[str, Any], arrays: Mapping[str, Array]) -> TensorMessage:
    """Return the message and the tensors that `pack` was given."""
    tensors = {name: Tensor(type_name, arrays[name]) for name, type_name in message["types"].items()}
    return message["message"], tensors
