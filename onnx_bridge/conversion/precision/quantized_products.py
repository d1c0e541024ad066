"""int8 and fp8 in the model: QuantizeLinear and DequantizeLinear for each product.

    Conv(x, w)    →    Conv(DequantizeLinear(QuantizeLinear(x)), DequantizeLinear(QuantizeLinear(w)))

MIGraphX's quantizers cannot exclude nodes: the one for int8 quantizes all convolutions and matrix products, the one for
fp8 every operator, and what that makes does not compile for CDNA 3 (MIGraphX 2.14 fails at a bit_cast). There, and if
nodes are to be kept, the model gets the nodes that MIGraphX's int8 quantizer would insert into the program, except at
kept nodes: QuantizeLinear and DequantizeLinear at both operands of Conv, MatMul and Gemm, one pair per value, with a
scale per tensor, zero point 0, and a range up to the largest magnitude on the calibration samples (of a constant, its
own). Constants are stored quantized: a gpu target drops the pair of one, and its rounding, unless a product takes it.
It makes integer or fp8 products, ``ref`` computes the same values in float32; and the model stays ONNX, which the
reference can run.

fp8 is e4m3fnuz, whose largest value is 240: MIGraphX does not read e4m3fn from ONNX.
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
from passes.graphs import lineage
from passes.graphs.scopes import Scope, name_nodes, required_inputs
from passes.probing.partition import extract

PRODUCTS = ("Conv", "Gemm", "MatMul")
"""The operators that are quantized."""
OPSETS = {"int8": 13, "fp8": 19}
"""The first opset in which QuantizeLinear gives the format."""

_MAKER = "quantize-products"
_OF_MODELS: Mapping[str, tuple[Any, float]] = {"int8": (np.int8, 127.0), "fp8": (ml_dtypes.float8_e4m3fnuz, 240.0)}
"""The dtype of each precision, and its largest magnitude."""
_OF_PROGRAMS: Mapping[str, tuple[Any, float]] = {**_OF_MODELS, "fp8": (ml_dtypes.float8_e4m3fn, 448.0)}
"""The same, as MIGraphX's quantizers have them."""
_TOGETHER = 64
"""The number of values that are fetched in one run."""


@dataclass(frozen=True)
class QuantizedProducts:
    """A copy of a model with quantized products: the precision, the samples, their names, and those of the others."""

    model: ir.Model
    precision: str
    calibration: Calibration
    quantized: tuple[str, ...]
    kept: tuple[str, ...]

    @property
    def notes(self) -> list[str]:
        if not self.kept:
            return [*self.calibration.notes, *effect(self.model, self.precision)]
        count = len(self.quantized) + len(self.kept)
        said = f"{len(self.quantized)} of {count} products are quantized; in float32 stay {', '.join(self.kept)}"
        return [*self.calibration.notes, said]


def quantize_products(
    model: ir.Model, precision: str, keep: Sequence[str], calibration: Calibration
) -> QuantizedProducts:
    """Quantize the products of a model, except for some.

    Args:
        model: the cleaned model, with fixed shapes; not modified.
        precision: ``int8`` or ``fp8``.
        keep: operators, and nodes by name (in this model, or of the original node that they come from).

    Raises:
        InputError: ``keep`` names no product of the model, or all of them.
    """
    copy = model.clone()
    scope = name_nodes(Scope(copy, copy.graph))
    candidates = products(copy)
    kept = [node for node in candidates if set(keep) & {str(node.name), node.op_type, *lineage.origin(node)}]
    _check(keep, candidates, kept)
    chosen = [node for node in candidates if node not in kept]
    operands = dict.fromkeys(value for node in chosen for value in node.inputs[:2] if value is not None)
    _insert_pairs(scope, chosen, _OF_MODELS[precision], largest_magnitudes(copy, operands, calibration.samples))
    names = tuple(str(node.name) for node in chosen), tuple(str(node.name) for node in kept)
    return QuantizedProducts(copy, precision, calibration, *names)


def effect(model: ir.Model, precision: str) -> list[str]:
    """Return a note if a model has no products, so that a precision changes nothing; otherwise none."""
    if any(node.op_type in PRODUCTS for node in model.graph.all_nodes()):
        return []
    return [f"the model has none of {', '.join(PRODUCTS)}: {precision} has no effect"]


def with_pairs(model: ir.Model, precision: str) -> ir.Model:
    """Return a copy of a model with the nodes that MIGraphX's quantizer inserts into its program, for any ranges."""
    copy = model.clone()
    _insert_pairs(name_nodes(Scope(copy, copy.graph)), products(copy), _OF_PROGRAMS[precision], {})
    return copy


def _insert_pairs(
    scope: Scope, chosen: Sequence[ir.Node], into: tuple[Any, float], largest: Mapping[str, float]
) -> None:
    """Insert QuantizeLinear and DequantizeLinear at the operands of products, by their largest magnitudes."""
    dtype, end = into
    pairs: dict[ir.Value, ir.Value] = {}
    for node in chosen:
        for place in (0, 1):
            value = node.inputs[place]
            if value is None:
                continue
            if value not in pairs:
                scale = np.array((largest.get(str(value.name), end) / end) or 1.0, np.float32)
                pairs[value] = _pair(scope, node, value, scale, np.array(end, dtype))
            node.replace_input_with(place, pairs[value])


def products(model: ir.Model) -> list[ir.Node]:
    """Return the products of float32 operands in the main graph."""
    return [
        node
        for node in model.graph
        if node.op_type in PRODUCTS
        and node.domain in ("", "ai.onnx")
        and all(value is not None and value.dtype == ir.DataType.FLOAT for value in node.inputs[:2])
    ]


def _check(keep: Sequence[str], candidates: Sequence[ir.Node], kept: Sequence[ir.Node]) -> None:
    known = {text for node in candidates for text in (str(node.name), node.op_type, *lineage.origin(node))}
    for name in keep:
        if name not in known:
            some = ", ".join(str(node.name) for node in candidates[:5]) or "none"
            hint = nearest(name, sorted(known)) or f"the model has {some}"
            raise InputError("the model has no such product to keep", where=f"keep-fp32 {name!r}", hint=hint)
    if kept and len(kept) == len(candidates):
        raise InputError("nothing is left to quantize", where="keep-fp32", hint="keep fewer, or convert to fp32")


def _pair(scope: Scope, node: ir.Node, value: ir.Value, scale: Array, end: Array) -> ir.Value:
    """Quantize a value and dequantize it, before the first node that uses it; a constant is stored quantized.

    Args:
        end: the largest magnitude, in the dtype to quantize to.
    """
    name = str(value.name)

    def constant(array: Array, what: str) -> ir.Value:
        return scope.new_constant(scope.graph, ir.tensor(array), f"{name}/{what}")

    scales = [constant(scale, "scale"), constant(np.zeros((), end.dtype), "zero_point")]
    nodes = []
    if value.const_value is None:
        nodes.append(ir.node("QuantizeLinear", [value, *scales], name=f"{name}/QuantizeLinear"))
        (quantized,) = nodes[0].outputs
        quantized.name, quantized.type, quantized.shape = f"{name}/quantized", scales[1].type, value.shape
    else:
        largest = end.astype(np.float32)
        steps = np.clip(value.const_value.numpy().astype(np.float32) / scale, -largest, largest)
        with np.errstate(invalid="ignore"):  # NaN, of which no integer is right
            quantized = constant((np.rint(steps) if end.dtype.kind == "i" else steps).astype(end.dtype), "quantized")
    up = ir.node("DequantizeLinear", [quantized, *scales], name=f"{name}/DequantizeLinear")
    (output,) = up.outputs
    output.name, output.type, output.shape = f"{name}/dequantized", value.type, value.shape
    nodes.append(up)
    scope.graph.insert_before(node, nodes)
    lineage.stamp(nodes, _MAKER, [node])
    return output


def largest_magnitudes(
    model: ir.Model, operands: Iterable[ir.Value], samples: Sequence[Mapping[str, Value]]
) -> dict[str, float]:
    """Return the largest magnitudes of values; ONNX Runtime computes those that are not constants or inputs."""
    magnitudes: dict[str, float] = {}
    wanted: list[str] = []
    inputs = [str(value.name) for value in required_inputs(model)]
    for value in operands:
        name, tensor = str(value.name), value.const_value
        if tensor is not None:
            magnitudes[name] = _magnitude(tensor.numpy())
        elif name in inputs:
            magnitudes[name] = max(_magnitude(flat(sample)[name]) for sample in samples)
        else:
            wanted.append(name)
    for start in range(0, len(wanted), _TOGETHER):
        part = Reference(extract(model, inputs, wanted[start : start + _TOGETHER]))
        for sample in samples:
            outputs = part.run({input_name: sample[input_name] for input_name in part.input_names})
            for name, array in flat(outputs).items():
                magnitudes[name] = max(magnitudes.get(name, 0.0), _magnitude(array))
    return magnitudes


def _magnitude(array: Array) -> float:
    return float(np.fmax.reduce(np.abs(array.astype(np.float32)), axis=None, initial=0.0))
