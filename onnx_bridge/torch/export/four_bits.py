"""Store the weights of Quark's 4-bit layers in 4 bits; exporters see rounded floats.

    MatMul(x, W)   →  MatMul(x, DequantizeLinear(Q, s, z, block_size))       where W = (Q − z)·s in blocks of a row

Quark freezes such a layer with float weights that are multiples of its scales. A constant that has the numbers of a
layer's weight, or of its transpose, becomes integers with these scales. Numbers do not change.

Skips: weights that an opset before 21 holds, whose DequantizeLinear has no blocks; and uses that are no products, such
as an embedding that shares the weight.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from torch import nn

from onnx_bridge.core.values import Array
from onnx_bridge.torch.modules.tensors import to_array
from passes.rewriting.base import Context
from passes.rewriting.pipeline import Pipeline

_OPSET = 21
"""The first opset with 4-bit integers and blocks."""
_USERS = ("Gemm", "MatMul", "Transpose")


@dataclass(frozen=True)
class _Blocks:
    """A weight as integers with a scale and a zero point for each block along an axis."""

    integers: Array
    scales: Array
    zeros: Array
    axis: int
    size: int

    def transposed(self) -> _Blocks:
        integers, scales, zeros = (np.ascontiguousarray(part.T) for part in (self.integers, self.scales, self.zeros))
        return _Blocks(integers, scales, zeros, 1 - self.axis, self.size)


def store_four_bits(model: ir.Model, module: nn.Module, opset: int | None) -> ir.Model:
    """Return an export of a module with the weights of 4-bit layers in 4 bits, unless ``opset`` has none."""
    known: dict[bytes, _Blocks] = {}
    for layer in module.modules():
        for weight, blocks in _blocks(layer):
            known[_digest(weight)], known[_digest(weight.T)] = blocks, blocks.transposed()
    if not known or (opset or _OPSET) < _OPSET:
        return model
    if model.opset_imports[""] < _OPSET:
        model = Pipeline.parse(f"convert-opset{{to={_OPSET}}}").run(model, Context())[-1].result.model
    for value in list(model.graph.initializers.values()):
        users = [node for node in value.consumers() if node.op_type in _USERS]
        if not users or value.const_value is None or len(value.const_value.shape) != 2:
            continue
        stored = known.get(_digest(value.const_value.numpy()))
        if stored is not None:
            _replace(model.graph, value, users, stored)
    return model


def _blocks(layer: Any) -> Iterator[tuple[Array, _Blocks]]:
    """Yield the weight of a 4-bit layer with groups along its rows, if it is on the grid of its scales."""
    quantizer: Any = getattr(layer, "_weight_quantizer", None)
    size = getattr(quantizer, "group_size", None) or 0
    if size <= 0 or not hasattr(quantizer, "quant_max") or layer.weight.dim() != 2:
        return
    if quantizer.quant_max - quantizer.quant_min != 15:
        return
    dtype = ml_dtypes.int4 if quantizer.quant_min < 0 else ml_dtypes.uint4
    weight, scales, zeros = map(to_array, (layer.weight.detach(), quantizer.scale, quantizer.zero_point))
    columns = weight.shape[1]
    if columns % size or scales.size * size != weight.size:
        return
    scales, zeros = (part.reshape(len(weight), columns // size) for part in (scales.astype(weight.dtype), zeros))
    each, zero = (np.repeat(part, size, axis=1) for part in (scales, zeros.astype(weight.dtype)))
    integers = np.rint(weight / each + zero)
    if np.array_equal((integers - zero) * each, weight):
        yield weight, _Blocks(integers.astype(dtype), scales, zeros.astype(dtype), 1, size)


def _digest(weight: Array) -> bytes:
    return hashlib.sha256(weight.tobytes()).digest() + bytes(str(weight.shape), "ascii")


def _replace(graph: ir.Graph, weight: ir.Value, users: list[ir.Node], blocks: _Blocks) -> None:
    """Dequantize the weight of some nodes from blocks."""
    name = str(weight.name)
    parts = {"quantized": blocks.integers, "scale": blocks.scales, "zero_point": blocks.zeros}
    if not blocks.zeros.astype(np.float32).any():
        del parts["zero_point"]
    inputs: list[ir.Value] = []
    for part, array in parts.items():
        inputs.append(ir.val(f"{name}_{part}", const_value=ir.tensor(array, name=f"{name}_{part}")))
        graph.register_initializer(inputs[-1])
    node = ir.node(
        "DequantizeLinear", inputs, {"axis": blocks.axis, "block_size": blocks.size}, name=f"{name}/Dequantize"
    )
    output = node.outputs[0]
    output.name, output.type, output.shape = f"{name}_dequantized", weight.type, weight.shape
    graph.insert_before(graph[0], node)
    for user in users:
        for index in [index for index, value in enumerate(user.inputs) if value is weight]:
            user.replace_input_with(index, output)
    if not weight.uses():
        del graph.initializers[name]
        output.name = name
