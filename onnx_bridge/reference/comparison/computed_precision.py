"""The precision that outputs are computed in, which their dtypes need not show.

    x: float32 ─ Cast ─ float16 ─ MatMul ─ float16 ─ Cast ─ y: float32        y is as precise as float16
    x: float32 ─ MatMul ─ float32 ─ Cast ─ y: float64                         y is as precise as float32

Each value is as precise as the least precise number that it is computed from. A choice (TopK, ArgMax, a comparison) is
no number: what it selects from counts, and not what it selects by (`onnx_bridge.reference.comparison.choices`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from onnx_bridge.reference.comparison.tolerances import PRESETS
from passes.graphs.traversal import operands_of, subgraphs, with_nested
from passes.operators import operators

EPSILON = {"fp16": 2.0**-10, "bf16": 2.0**-7}
"""By preset: the unit in the last place of 1.0, if it differs from that of the dtypes."""
_BY_DTYPE = {
    ir.DataType.FLOAT16: "fp16",
    ir.DataType.BFLOAT16: "bf16",
    ir.DataType.FLOAT8E4M3FN: "fp8",
    ir.DataType.FLOAT8E4M3FNUZ: "fp8",
    ir.DataType.FLOAT8E5M2: "fp8",
    ir.DataType.FLOAT8E5M2FNUZ: "fp8",
}
_COMPARISONS = operators("broadcasts") & operators("sides") - {"Mod"} | {"IsInf", "IsNaN"}
_NAMES = {"float32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8", "int8": "rounding to 8 bits"}


@dataclass(frozen=True)
class Inside:
    """A precision lower than that of a dtype: the preset of its tolerances, and the first node that computes in it."""

    preset: str
    node: str

    def __str__(self) -> str:
        return f"{_NAMES[self.preset]} inside, from {self.node} on"


def computed_precisions(*models: ir.Model) -> dict[str, Inside]:
    """Return the lowest precision that one of the models has for a value, by name, if its dtype does not show it.

    Only the first model, the original, tells what is as precise as float32: else a pass that computes doubles in
    float32 would excuse itself.
    """
    lowest: dict[str, Inside] = {}
    for number, model in enumerate(models):
        flow = _Flow({str(value.name): value.dtype for value in model.graph.inputs}, model)
        for node in model.graph:
            flow.visit(node)
        for name, precision in flow.inside.items():
            if precision.preset == "float32" and (number or flow.dtypes[name] != ir.DataType.DOUBLE):
                continue
            lowest[name] = _coarsest((lowest[name], precision)) or precision if name in lowest else precision
    return lowest


def output_presets(inside: Mapping[str, Inside], outputs: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Return the presets of outputs, and notes on them."""
    chosen = {name: inside[name] for name in outputs if name in inside}
    by_reason: dict[str, list[str]] = {}
    for name, precision in chosen.items():
        by_reason.setdefault(str(precision), []).append(name)
    notes = [f"tolerance of {', '.join(names)}: {reason}" for reason, names in by_reason.items()]
    return {name: precision.preset for name, precision in chosen.items()}, notes


@dataclass
class _Flow:
    """Follows precisions through a graph: dtypes by name, and precisions in ``inside``; float32 if it was rounded."""

    dtypes: dict[str, ir.DataType | None]
    model: ir.Model
    inside: dict[str, Inside] = field(default_factory=dict)

    def visit(self, node: ir.Node) -> None:
        operands = operands_of(node)
        known = [self._dtype(value) for value in operands]
        result = self._result(node, known)
        function = self.model.functions.get(node.op_identifier())
        inside = [*subgraphs(node), *([] if function is None else [function.graph])]
        nested = [inner for graph in inside for inner in with_nested(graph)]
        own = [_of_dtype(dtype, str(node.name)) for dtype in (*known, result) if dtype is not None]
        for inner in nested:
            if (dtype := self._result(inner, [])) is not None:
                own.append(_of_dtype(dtype, str(inner.name)))
        if any(inner.op_type in operators("quantizes inside") for inner in (node, *nested)):
            own.append(Inside("int8", str(node.name)))
        if result == ir.DataType.FLOAT and (node.op_type not in operators("exact") or ir.DataType.DOUBLE in known):
            own.append(Inside("float32", str(node.name)))
        before = [
            self.inside.get(str(value.name))
            for value, dtype in zip(operands, known, strict=True)
            if dtype is None or dtype.is_floating_point()
        ]
        coarsest = _coarsest((*before, *own))
        for index, value in enumerate(node.outputs):
            places = index > 0 and node.op_type in ("TopK", "MaxPool", "Unique")
            dtype = value.dtype or (ir.DataType.INT64 if places else result)
            self.dtypes[str(value.name)] = dtype
            if coarsest is not None and (dtype is None or dtype.is_floating_point()):
                self.inside[str(value.name)] = coarsest

    def _dtype(self, value: ir.Value) -> ir.DataType | None:
        return value.dtype or self.dtypes.get(str(value.name))

    def _result(self, node: ir.Node, operands: list[ir.DataType | None]) -> ir.DataType | None:
        """Return the dtype of a node's first output, if it follows from the operator."""
        if node.outputs and node.outputs[0].dtype is not None:
            return node.outputs[0].dtype
        if node.op_type == "Cast":
            return ir.DataType(node.attributes.get_int("to", 0))
        if node.op_type in _COMPARISONS:
            return ir.DataType.BOOL
        if node.op_type in ("Shape", "Size", "NonZero", "ArgMax", "ArgMin", "NonMaxSuppression"):
            return ir.DataType.INT64
        if node.op_type == "DequantizeLinear":
            return operands[1] if len(operands) > 1 else None
        if node.op_type == "QuantizeLinear":
            return operands[2] if len(operands) > 2 else ir.DataType.UINT8
        if node.op_type == "Where":
            return operands[1] if len(operands) > 1 else None
        return operands[0] if operands else None


def _of_dtype(dtype: ir.DataType, node: str) -> Inside | None:
    return Inside(_BY_DTYPE[dtype], node) if dtype in _BY_DTYPE else None


def _coarsest(precisions: Iterable[Inside | None]) -> Inside | None:
    """Return the coarsest precision, the first of equal ones."""
    return max(filter(None, precisions), key=lambda precision: PRESETS[precision.preset] or 0.0, default=None)
