"""The tolerances of the outputs of a probe: ONNX leaves them open to the extent that they are rounded.

    moves, compares, rounds or casts numbers    exact: there is one right result; also QuantizeLinear of float32
    computes each number from a few             a rounding of the number, and of intermediate numbers of at most 1
    adds many numbers                           the same, of intermediate numbers up to the largest of the output
    rounds to the steps of a scale              the same, but for some elements that are a step away
    anything else, and several nodes together   `default_tolerance`

Half a unit in the last place would do for 16-bit floats that are rounded once. Targets cut off instead, which costs one
unit, and round an intermediate number or two. A sum that is kept in 16 bits loses a unit with each term, and exceeds
this. If the reference and a target round a scale differently, an element halfway between two steps has either. With
scales in 16 bits nothing is left open: a target that multiplies in 16 bits as well misses the step of every sixth
element, which in a small output is one.

What replaces a node is held to the tolerance of that node. The gpu target deletes a QuantizeLinear together with its
DequantizeLinear if no 8-bit kernel takes the result: what was to be rounded to float8 may then be half a step away.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import onnx_ir as ir

from onnx_bridge.core.tolerance import EXACT, ONE_STEP, Tolerance
from onnx_bridge.core.values import Array
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.reference.comparison.tolerances import default_tolerance, is_float, largest
from passes.builders.small_dtypes import float_info
from passes.graphs.int8_kernels import FLOAT8
from passes.graphs.quantization import quantized_dtype
from passes.operators import operators
from passes.probing.probe import Probe

_SHARES = {"float16": (2**-9, 3 * 2**-10), "bfloat16": (2**-6, 3 * 2**-7), "float32": (1e-4, 1e-5)}
"""By dtype: the error as a share of the element, and of the largest intermediate number."""
_NOISE = 2e-7
"""The least absolute part of a tolerance of floats."""
_FEW = 1 / 8
"""The share of the elements that may be a step away; a quantizer that cuts off is a step away in half of them."""


@dataclass(frozen=True)
class NodeTolerance:
    """The tolerance of an output's elements, and of the few that are rounded to another step; None without steps."""

    tolerance: Tolerance
    step: Tolerance | None = None

    def reason(self, actual: Array, expected: Array) -> tuple[str | None, float | None]:
        """Return how an output differs, None if it agrees; and its largest absolute error."""
        (comparison,) = compare({"": actual}, {"": expected}, {"": self.tolerance}, measured=False).outputs
        if self.step is not None and 0 < comparison.mismatched <= max(1, _FEW * comparison.elements):
            (comparison,) = compare({"": actual}, {"": expected}, {"": self.step}, measured=False).outputs
        return comparison.reason, comparison.max_abs


def node_tolerance(probe: Probe, expected: Array, *, stands_in: bool = False, rehearsed: bool = False) -> NodeTolerance:
    """Return the tolerance of an output of a probe.

    Args:
        stands_in: whether the probe ran on another target than the model will: how that one rounds to 16 bits says
            nothing. (``ref`` cuts off and adds in 16 bits; a GPU does neither.)
        rehearsed: whether the passes of the gpu target came before.
    """
    if stands_in and expected.dtype.name in ("float16", "bfloat16"):
        return NodeTolerance(default_tolerance(expected))
    judged = probe.replaces or probe
    standard = all(domain == "" for domain, _ in judged.operators)
    names = {name for _, name in judged.operators}
    if standard and (names <= operators("exact") or (names == {"QuantizeLinear"} and _divides_in_float32(judged))):
        return NodeTolerance(EXACT)
    known = names if standard and names <= operators("few", "many") and len(judged.nodes) == 1 else frozenset[str]()
    tolerance = _rounding(expected, known)
    if names.isdisjoint(operators("quantizes", "quantizes inside")):
        return NodeTolerance(tolerance)
    if expected.dtype.kind in "iu":
        return NodeTolerance(tolerance, ONE_STEP if expected.dtype.itemsize == 1 and not _is_narrow(judged) else None)
    step = max(tolerance.atol, largest(expected) / 64) if is_float(expected.dtype) else 0.0
    if rehearsed and "DequantizeLinear" in names and (half := _half_step(judged)):
        return NodeTolerance(Tolerance(half, step))
    return NodeTolerance(tolerance, Tolerance(tolerance.rtol, step))


def _half_step(probe: Probe) -> float:
    """Return half a step of the floats that a probe quantizes to, as a share of the number; 0 for integers."""
    dtypes = {quantized_dtype(node, probe.scope) for node in probe.nodes if node.op_type == "QuantizeLinear"}
    return max((float(float_info(dtype).eps) / 2 for dtype in dtypes if dtype in FLOAT8), default=0.0)


def _rounding(expected: Array, names: Collection[str]) -> Tolerance:
    """Return the tolerance of an operator that rounds, or, without names, of one of unknown precision."""
    dtype = expected.dtype.name
    if dtype not in _SHARES or (dtype != "float32" and not names):
        return default_tolerance(expected)
    share, of_largest = _SHARES[dtype]
    top = largest(expected)
    return Tolerance(share, max(_NOISE, of_largest * (min(1.0, top) if operators("many").isdisjoint(names) else top)))


def _divides_in_float32(probe: Probe) -> bool:
    """Return whether all floats are float32: ONNX divides in the dtype of the scale, ONNX Runtime in float32."""
    return all(probe.scope.dtype(value) == ir.DataType.FLOAT for node in probe.nodes for value in node.inputs[:2])


def _is_narrow(probe: Probe) -> bool:
    """Return whether an integer product has scales of 16 bits: the reference adds integers, and scales in float32."""
    products = [node for node in probe.nodes if node.op_type == "QLinearMatMul"]
    return any(probe.scope.dtype(node.inputs[1]) != ir.DataType.FLOAT for node in products)
