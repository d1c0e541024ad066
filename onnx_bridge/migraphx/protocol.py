"""The messages between a worker and its process: tensors, shapes and options as JSON values and arrays.

An array carries the bits of a tensor, the message its MIGraphX type.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx_bridge.migraphx.program import DynamicDimension, OnnxOptions, Shape, Tensor
from passes.isolation.messages import Array, Message

Tensors = dict[str, Tensor]
TensorMessage = tuple[dict[str, Any], Tensors]


def pack(message: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Message:
    """A message with tensors as one with arrays."""
    types = {name: tensor.type for name, tensor in tensors.items()}
    return {"message": message, "types": types}, {name: tensor.data for name, tensor in tensors.items()}


def unpack(message: Mapping[str, Any], arrays: Mapping[str, Array]) -> TensorMessage:
    """The inverse of `pack`."""
    tensors = {name: Tensor(type_name, arrays[name]) for name, type_name in message["types"].items()}
    return message["message"], tensors


def shape_to_json(shape: Shape) -> list[Any]:
    """Type, sizes, strides, and the ranges of dynamic dimensions."""
    return [shape.type, shape.lens, shape.strides, [(each.min, each.max) for each in shape.dyn_dims]]


def shape_from_json(value: Sequence[Any]) -> Shape:
    """The inverse of `shape_to_json`."""
    type_name, lens, strides, ranges = value
    return Shape(type_name, tuple(lens), tuple(strides), tuple(DynamicDimension(*each) for each in ranges))


def options_to_json(options: OnnxOptions) -> dict[str, Any]:
    """The options that are set."""
    values = dataclasses.asdict(options)
    if options.default_dyn_dim_value:
        values["default_dyn_dim_value"] = dataclasses.astuple(options.default_dyn_dim_value)
    values["map_input_dims"] = {name: list(dims) for name, dims in options.map_input_dims.items()}
    values["map_dyn_input_dims"] = {
        name: [dataclasses.astuple(each) for each in dims] for name, dims in options.map_dyn_input_dims.items()
    }
    if options.external_data_path:
        values["external_data_path"] = str(options.external_data_path.absolute())
    return {name: value for name, value in values.items() if value not in (None, {})}


def options_from_json(values: Mapping[str, Any]) -> OnnxOptions:
    """The inverse of `options_to_json`."""
    options = dict(values)
    if options.get("default_dyn_dim_value"):
        options["default_dyn_dim_value"] = DynamicDimension(*options["default_dyn_dim_value"])
    options["map_dyn_input_dims"] = {
        name: [DynamicDimension(*each) for each in dims] for name, dims in options.get("map_dyn_input_dims", {}).items()
    }
    if options.get("external_data_path"):
        options["external_data_path"] = Path(options["external_data_path"])
    return OnnxOptions(**options)
