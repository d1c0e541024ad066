"""int8 and fp8 with nodes that stay in float32: quantization written into the model, product by product.

    Conv(x, w)    →    Conv(DequantizeLinear(QuantizeLinear(x)), DequantizeLinear(QuantizeLinear(w)))

MIGraphX's quantizers keep nothing: that for int8 refuses any other choice than all convolutions and matrix products,
and that for fp8 quantizes every operator that there is. So where nodes are to be kept, the model gets what MIGraphX's
int8 quantizer would put into the program, except at those nodes: a pair of QuantizeLinear and DequantizeLinear at both
operands of Conv, MatMul and Gemm, one pair a value, with a scale for the whole tensor, zero point 0, and the largest
magnitude on the calibration data (for constants their own) as the end of the range. A gpu target makes integer or fp8
products of it, ``ref`` computes the same values in float32; and it is ONNX, which the reference runs too.

fp8 is e4m3fnuz here, whose largest value is 240: MIGraphX does not read the other kind from ONNX.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.values import Array, Value, flat
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples.calibration import Calibration
from passes.core import graphs
from passes.core.graphs import Scope
from passes.target.partition import extract

PRODUCTS = ("Conv", "Gemm", "MatMul")
"""The operators that are quantized."""
OPSETS = {"int8": 13, "fp8": 19}
"""The first opset in which QuantizeLinear gives the format."""

_MAKER = "quantize-products"
_FORMATS: Mapping[str, tuple[Any, float]] = {"int8": (np.int8, 127.0), "fp8": (ml_dtypes.float8_e4m3fnuz, 240.0)}
"""The dtype of each, and the end of its range."""
_TOGETHER = 64
"""Values that are fetched in one run."""


@dataclass(frozen=True)
class QuantizedProducts:
    """A model with quantized products.

    Attributes:
        model: a copy; constants are shared.
        calibration: what ranges were measured on.
        quantized: the products that are quantized, by name.
        kept: those that are not.
    """

    model: ir.Model
    calibration: Calibration
    quantized: tuple[str, ...]
    kept: tuple[str, ...]

    @property
    def notes(self) -> list[str]:
        """What the user should know, in sentences."""
        count = len(self.quantized) + len(self.kept)
        said = f"{len(self.quantized)} of {count} products are quantized; in float32 stay {', '.join(self.kept)}"
        return [*self.calibration.notes, said]


def quantize_products(
    model: ir.Model, precision: str, keep: Sequence[str], calibration: Calibration
) -> QuantizedProducts:
    """Quantize the products of a model but for some.

    Args:
        model: cleaned, with fixed shapes; left as it is.
        precision: ``int8`` or ``fp8``.
        keep: nodes by name (that of the model, or of the node in the original that it stands for), and operators.
        calibration: the data.

    Raises:
        InputError: ``keep`` names no product of the model, or all of them.
    """
    copy = model.clone()
    graphs.name_nodes(Scope(copy, copy.graph))
    found = products(copy)
    kept = [node for node in found if set(keep) & {str(node.name), node.op_type, *graphs.origin(node)}]
    _check(keep, found, kept)
    chosen = [node for node in found if node not in kept]
    operands = dict.fromkeys(value for node in chosen for value in node.inputs[:2] if value is not None)
    dtype, end = _FORMATS[precision]
    largest = _largest(copy, operands, calibration.samples)
    pairs: dict[ir.Value, ir.Value] = {}
    for node in chosen:
        for place in (0, 1):
            value = node.inputs[place]
            if value is None:
                continue
            if value not in pairs:
                scale = np.array((largest[str(value.name)] / end) or 1.0, np.float32)
                pairs[value] = _pair(copy.graph, node, value, scale, np.zeros((), dtype))
            node.replace_input_with(place, pairs[value])
    names = tuple(str(node.name) for node in chosen), tuple(str(node.name) for node in kept)
    return QuantizedProducts(copy, calibration, *names)


def products(model: ir.Model) -> list[ir.Node]:
    """The products of float32 operands in the main graph."""
    return [
        node
        for node in model.graph
        if node.op_type in PRODUCTS
        and node.domain in ("", "ai.onnx")
        and all(value is not None and value.dtype == ir.DataType.FLOAT for value in node.inputs[:2])
    ]


def _check(keep: Sequence[str], found: Sequence[ir.Node], kept: Sequence[ir.Node]) -> None:
    known = {name for node in found for name in (str(node.name), node.op_type, *graphs.origin(node))}
    for each in keep:
        if each not in known:
            hint = nearest(each, sorted(known)) or f"it has {', '.join(str(node.name) for node in found[:5]) or 'none'}"
            raise InputError("the model has no such product to keep", where=f"keep-fp32 {each!r}", hint=hint)
    if len(kept) == len(found):
        raise InputError("nothing is left to quantize", where="keep-fp32", hint="keep fewer, or convert to fp32")


def _pair(graph: ir.Graph, node: ir.Node, value: ir.Value, scale: Array, zero: Array) -> ir.Value:
    """QuantizeLinear and DequantizeLinear of a value, in front of the first node that takes it."""
    name = str(value.name)
    constants = []
    for array, what in ((scale, "scale"), (zero, "zero_point")):
        tensor = ir.Tensor(array, name=f"{name}/{what}")
        constant = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape([]), const_value=tensor)
        graph.register_initializer(constant)
        constants.append(constant)
    down = ir.node("QuantizeLinear", [value, *constants], name=f"{name}/QuantizeLinear")
    up = ir.node("DequantizeLinear", [down.outputs[0], *constants], name=f"{name}/DequantizeLinear")
    for made, kind, ending in ((down, constants[1].type, "quantized"), (up, value.type, "dequantized")):
        (output,) = made.outputs
        output.name, output.type, output.shape = f"{name}/{ending}", kind, value.shape
    graph.insert_before(node, [down, up])
    graphs.stamp([down, up], _MAKER, [node])
    return up.outputs[0]


def _largest(model: ir.Model, operands: Iterable[ir.Value], samples: Sequence[Mapping[str, Value]]) -> dict[str, float]:
    """The largest magnitude of values: of constants, of inputs, and of what ONNX Runtime makes of the samples."""
    found: dict[str, float] = {}
    wanted: list[str] = []
    inputs = [str(value.name) for value in model.graph.inputs if not value.is_initializer()]
    for value in operands:
        name, tensor = str(value.name), value.const_value
        if tensor is not None:
            found[name] = _magnitude(tensor.numpy())
        elif name in inputs:
            found[name] = max(_magnitude(flat(sample)[name]) for sample in samples)
        else:
            wanted.append(name)
    for start in range(0, len(wanted), _TOGETHER):
        part = Reference(extract(model, inputs, wanted[start : start + _TOGETHER]))
        for sample in samples:
            for name, array in flat(part.run({each: sample[each] for each in part.input_names})).items():
                found[name] = max(found.get(name, 0.0), _magnitude(array))
    return found


def _magnitude(array: Array) -> float:
    return float(np.max(np.abs(array.astype(np.float32)), initial=0.0))
