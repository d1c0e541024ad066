"""Compute in 16-bit floats what a model computes in float32, or in float32 what it computes in 16-bit floats.

    y = Op(x, w)    →    y = Cast<float>(Op(Cast<float16>(x), w rounded to float16))
    y = Op(x, w)    →    y = Cast<float16>(Op(Cast<float>(x), Cast<float>(w)))

Graph inputs and outputs stay as they are; there is no Cast between converted neighbors. Constants are rounded to the
nearest value, ties to even, where MIGraphX would truncate them on the host. A value has one Cast, shared by all of its
consumers. To float32, the model's own Casts from and to 16 bits are converted, too: nothing is rounded in between.

Skips: nodes that ``keep`` names, by name or operator; operators that do not support the format in the model's opset;
constants that would become infinite or, if scalar, zero; nodes that also return integers that depend on the rounding
(TopK); products of dequantized integers, which have integer kernels. Other Casts, quantization, nodes without float
outputs (comparisons), subgraphs and functions are unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import HALVES
from passes.core.errors import InputError, nearest
from passes.core.schemas import parameter, schema_of, type_name
from passes.graphs import lineage
from passes.graphs.matching import origin
from passes.graphs.replacement import remove_nodes
from passes.graphs.scopes import Scope, name_nodes
from passes.graphs.traversal import is_used, subgraphs
from passes.rewriting.base import Context, Exactness, Pass, Result, Rewrite, Skip

FORMATS: Mapping[str, ir.DataType] = {
    "fp32": ir.DataType.FLOAT,
    "fp16": ir.DataType.FLOAT16,
    "bf16": ir.DataType.BFLOAT16,
}
"""The formats by their usual names."""

_OTHERS = {"Cast", "CastLike", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Constant"}
"""Operators that convert dtypes themselves, and constants, which are converted with their consumers."""
_PRODUCTS = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
_MOVING = {"Transpose", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Expand"}
_CHUNK = 1 << 20
"""The number of elements to check at a time."""


@dataclass(frozen=True)
class ConvertPrecision(Pass):
    """Compute in 16-bit floats what a model computes in float32, or the other way round.

    Attributes:
        to: ``fp16``, ``bf16`` or ``fp32``; required.
        keep: nodes, by name, and operators, by type, that stay as they are.
    """

    name = "convert-precision"
    exactness = Exactness.QUANTIZATION_STEP
    to: str = ""
    keep: tuple[str, ...] = ()

    def run(self, model: ir.Model, context: Context) -> Result:
        """Convert the nodes of the main graph.

        Raises InputError if the format is missing or unknown, or ``keep`` names neither a node (of this or the source
        model) nor an operator.
        """
        if self.to not in FORMATS:
            raise InputError("its option to is not a format", where=self.name, hint=f"to={' or to='.join(FORMATS)}")
        result = Result(model)
        scope = name_nodes(Scope(model, model.graph))
        self._check_names(scope)
        values = _Values(scope, FORMATS[self.to])
        chosen: dict[ir.Node, _Converted] = {}
        for node in model.graph:
            converted = self._converted(node, values)
            if isinstance(converted, Skip):
                result.skips.append(converted)
            elif converted is not None and context.budget.take():
                chosen[node] = converted
        chosen = {node: converted for node, converted in chosen.items() if _joins(node, chosen)}
        for node in chosen:
            result.rewrites.append(Rewrite((str(node.name),), (str(node.name),), f"computes in {self.to}"))
        values.apply(chosen, self.name)
        return result

    def _converted(self, node: ir.Node, values: _Values) -> _Converted | Skip | None:
        """Return the inputs and outputs of a node to convert; a Skip or None if the node is not converted."""
        scope, widens = values.scope, values.widens
        if node.domain != "" or any(subgraphs(node)):
            return None
        if node.op_type == "Cast" and widens:
            return _Converted.of_cast(node, values)
        if node.op_type in _OTHERS:
            return None
        if not any(values.is_source(value) for value in node.outputs if value.name):
            return None
        if not any(values.is_source(value) for value in node.inputs if value is not None):
            return None
        name = node.name or ""
        kept = next((entry for entry in self.keep if entry == node.op_type or entry in _names(node)), None)
        if kept is not None:
            return Skip(f"{kept} is kept in {'16 bits' if widens else 'float32'}", name)
        converted = _Converted.of(node, values)
        if converted is None:
            return Skip(f"{node.op_type} of opset {scope.opset()} does not support {values.dtype.name.lower()}", name)
        if converted.unknown:
            return Skip(f"the dtype of {converted.unknown} is unknown: infer-shapes comes first", name)
        other = [value for i, value in enumerate(node.outputs) if i not in converted.outputs and is_used(value)]
        if other and not widens:
            return Skip(f"its output {other[0].name} depends on the rounding", name)
        if node.op_type in _PRODUCTS and all(map(_is_dequantized, node.inputs[:2])):
            return Skip("it multiplies dequantized integers, which have integer kernels", name)
        reasons = (values.misfit(node.inputs[index]) for index in converted.inputs)
        misfit = next(filter(None, reasons), None)
        return converted if misfit is None else Skip(misfit, name)

    def _check_names(self, scope: Scope) -> None:
        operators = {node.op_type for node in scope.nodes()}
        known = {*operators, *(name for node in scope.nodes() for name in _names(node))}
        for entry in self.keep:
            if entry not in known:
                hint = nearest(entry, known) or f"its operators are {', '.join(sorted(operators))}"
                raise InputError("keep names no node or operator", where=f"{self.name}, {entry!r}", hint=hint)


@dataclass(frozen=True)
class _Converted:
    """The inputs and outputs of a node to convert, by index.

    ``unknown`` is a value that must be of the same dtype as these, and whose dtype is not known; empty if there is
    none.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    unknown: str = ""

    @classmethod
    def of(cls, node: ir.Node, values: _Values) -> _Converted | None:
        """Return the inputs and outputs of which the type may be the format; None if there is no such output."""
        schema = schema_of(node.op_type, values.scope.opset(), node.domain)
        if schema is None:
            return None
        wanted = type_name(int(values.dtype))
        open_ = {
            constraint.type_param_str
            for constraint in schema.type_constraints
            if wanted in constraint.allowed_type_strs
        }
        inputs = {
            index: kind
            for index, value in enumerate(node.inputs)
            if value is not None and values.is_source(value) and (kind := _kind(schema.inputs, index)) in open_
        }
        outputs = tuple(
            index
            for index, value in enumerate(node.outputs)
            if value.name and values.is_source(value) and _kind(schema.outputs, index) in set(inputs.values())
        )
        parameters = [(value, _kind(schema.inputs, index)) for index, value in enumerate(node.inputs)]
        parameters += [(value, _kind(schema.outputs, index)) for index, value in enumerate(node.outputs)]
        kinds = set(inputs.values())
        same = (value for value, kind in parameters if value is not None and kind in kinds)
        unknown = (str(value.name) for value in same if value.name and values.scope.dtype(value) is None)
        return cls(tuple(inputs), outputs, next(unknown, "")) if outputs else None

    @classmethod
    def of_cast(cls, node: ir.Node, values: _Values) -> _Converted | None:
        """Return what to convert of a Cast from or to what is converted."""
        inputs = (0,) if node.inputs[0] is not None and values.is_source(node.inputs[0]) else ()
        outputs = (0,) if values.is_source(node.outputs[0]) else ()
        return cls(inputs, outputs) if inputs or outputs else None


@dataclass
class _Values:
    """The values of a graph in a format: constants, and Casts to and from them."""

    scope: Scope
    dtype: ir.DataType
    _misfits: dict[ir.Value, str | None] = field(default_factory=dict)
    _made: dict[ir.Value, ir.Value] = field(default_factory=dict)

    @property
    def widens(self) -> bool:
        return self.dtype == ir.DataType.FLOAT

    def is_source(self, value: ir.Value) -> bool:
        """Return whether a value has a dtype that is converted."""
        dtype = self.scope.dtype(value)
        return dtype in HALVES if self.widens else dtype == ir.DataType.FLOAT

    def misfit(self, value: ir.Value | None) -> str | None:
        """Return why a constant cannot have the format; None if it can, and for other values."""
        tensor = self.scope.constant(value)
        if value is None or tensor is None:
            return None
        if value not in self._misfits:
            self._misfits[value] = _misfit(str(value.name), tensor.numpy(), self.dtype)
        return self._misfits[value]

    def apply(self, chosen: Mapping[ir.Node, _Converted], maker: str) -> None:
        """Convert the chosen nodes, in graph order."""
        graph = self.scope.graph
        made: dict[ir.Value, ir.Value] = {}
        unused: dict[ir.Value, None] = {}
        for node, converted in chosen.items():
            for index in converted.outputs:
                made[node.outputs[index]] = node.outputs[index]
        for node, converted in chosen.items():
            for index in converted.inputs:
                value = node.inputs[index]
                assert value is not None
                if value in made:
                    continue
                node.replace_input_with(index, self._in_format(value, node, maker))
                unused[value] = None
        for node, converted in chosen.items():
            for index in converted.outputs:
                self._convert(node.outputs[index], node, chosen, maker)
            if node.op_type == "Cast" and converted.outputs:
                node.attributes.add(ir.AttrInt64("to", int(self.dtype)))
        for value in unused:
            producer = value.producer()
            if is_used(value):
                continue
            if producer is None:
                self.scope.drop_constant(value)
            elif producer.op_type == "Constant":
                remove_nodes(graph, [producer])

    def _in_format(self, value: ir.Value, node: ir.Node, maker: str) -> ir.Value:
        """Return the value in the format, created before its first consumer."""
        if value in self._made:
            return self._made[value]
        graph, tensor = self.scope.graph, self.scope.constant(value)
        name = self.scope.names.value(f"{value.name}_{_short(self.dtype)}")
        if tensor is not None:
            self._made[value] = self.scope.new_constant(graph, _rounded(tensor, self.dtype, name), name)
        else:
            self._made[value] = self._cast(value, self.dtype, name, node, maker, before=True)
        return self._made[value]

    def _convert(self, value: ir.Value, node: ir.Node, chosen: Mapping[ir.Node, _Converted], maker: str) -> None:
        """Give an output the format, and cast it for the consumers that need its own; that value keeps the name."""
        name, shape, dtype = str(value.name), value.shape, self.scope.dtype(value)
        assert dtype is not None
        others = [use for use in value.uses() if use.node not in chosen or use.idx not in chosen[use.node].inputs]
        value.type = ir.TensorType(self.dtype)
        value.name = self.scope.names.value(f"{name}_{_short(self.dtype)}")
        if not others and not value.is_graph_output():
            return
        back = self._cast(value, dtype, name, node, maker, before=False)
        back.shape = shape
        for use in others:
            use.node.replace_input_with(use.idx, back)
        for index, output in enumerate(self.scope.graph.outputs):
            if output is value:
                self.scope.graph.outputs[index] = back

    def _cast(
        self, value: ir.Value, to: ir.DataType, name: str, node: ir.Node, maker: str, *, before: bool
    ) -> ir.Value:
        cast = ir.node("Cast", [value], {"to": int(to)}, name=self.scope.names.node(f"{node.name}/Cast"))
        (result,) = cast.outputs
        result.name, result.type, result.shape = name, ir.TensorType(to), value.shape
        (self.scope.graph.insert_before if before else self.scope.graph.insert_after)(node, [cast])
        lineage.stamp([cast], maker, [node])
        return result


def _joins(node: ir.Node, chosen: Collection[ir.Node]) -> bool:
    """Return whether a node is no Cast, or one beside others that are converted."""
    source, others = node.inputs[0], (use.node for use in node.outputs[0].uses())
    return (
        node.op_type != "Cast"
        or (source is not None and source.producer() in chosen)
        or any(other in chosen for other in others)
    )


def _short(dtype: ir.DataType) -> str:
    return next(name for name, format_ in FORMATS.items() if format_ == dtype)


def _names(node: ir.Node) -> list[str]:
    """Return the name of a node, and those of its origins in the source model."""
    return [str(node.name), *lineage.origin(node)]


def _is_dequantized(value: ir.Value | None) -> bool:
    """Return whether a value is dequantized, directly or before being rearranged."""
    node = origin(value, lambda node: node.op_type in _MOVING)
    return node is not None and node.op_type == "DequantizeLinear"


def _kind(formals: Iterable[Any], index: int) -> str:
    """Return the type variable or type of a parameter, the last of which may be variadic; empty if there is none."""
    formal = parameter(list(formals), index)
    return "" if formal is None else str(formal.type_str)


def _round(array: np.ndarray[Any, Any], dtype: ir.DataType) -> np.ndarray[Any, Any]:
    """Round to the nearest value, ties to even (as numpy and ml_dtypes do)."""
    with np.errstate(over="ignore", under="ignore"):
        return array.astype(dtype.numpy())


def _misfit(name: str, array: np.ndarray[Any, Any], dtype: ir.DataType) -> str | None:
    flat = array.reshape(-1)
    for piece in (flat[start : start + _CHUNK] for start in range(0, flat.size, _CHUNK)):
        if np.any(np.isfinite(piece) & ~np.isfinite(_round(piece, dtype).astype(np.float32))):
            largest = float(ml_dtypes.finfo(dtype.numpy()).max)  # type: ignore[no-untyped-call]
            return f"the constant {name} has values beyond {largest:g}, the maximum of {dtype.name.lower()}"
    if array.size == 1 and array.item() != 0 and _round(array, dtype).item() == 0:
        return f"the constant {name}, {array.item():g}, would become 0"
    return None


def _rounded(tensor: ir.TensorProtocol, dtype: ir.DataType, name: str) -> ir.TensorProtocol:
    """Return a tensor that is rounded when it is read, so that weights are not stored twice."""

    def read() -> ir.TensorProtocol:
        return ir.Tensor(_round(tensor.numpy(), dtype), name=name)

    return ir.LazyTensor(read, dtype=dtype, shape=ir.Shape(tensor.shape.numpy()), name=name)
