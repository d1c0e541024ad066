"""Compute in floats of 16 bits what a model computes in float32.

    y = Op(x, w)    →    y = Cast<float>(Op(Cast<float16>(x), w rounded to float16))

Inputs, outputs and what is kept stay float32; of two neighbours that are converted no Cast stands between. Constants
are rounded to the nearest value, ties to even, while MIGraphX on the host truncates them. A value gets one Cast down,
however many use it.

A node stays in float32, with a Skip that says why, where ``keep`` names it or its operator; where the operator takes no
such floats in the model's opset; where a constant of it would become infinite, or, being one number, zero; where it
also gives integers, which would depend on the rounding (TopK); or where it multiplies dequantized integers: that is an
integer kernel. Left alone without a word: what casts, quantizes, or gives no floats (comparisons), subgraphs and
functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from passes.core import graphs
from passes.core.base import Context, Exactness, Pass, Result, Rewrite, Skip
from passes.core.errors import InputError, nearest
from passes.core.graphs import Scope

FORMATS: Mapping[str, ir.DataType] = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}
"""The formats by their usual names."""

_OTHERS = {"Cast", "CastLike", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Constant"}
"""What converts between dtypes itself, and constants, which follow what uses them."""
_PRODUCTS = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
_MOVING = {"Transpose", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Expand"}
_CHUNK = 1 << 20
"""Elements that are looked at in one go."""


@dataclass(frozen=True)
class ConvertPrecision(Pass):
    """Compute in floats of 16 bits what a model computes in float32.

    Attributes:
        to: ``fp16`` or ``bf16``, which must be given.
        keep: nodes, by name, and operators, by type, that stay in float32.
    """

    name = "convert-precision"
    exactness = Exactness.QUANTIZATION_STEP
    to: str = ""
    keep: tuple[str, ...] = ()

    def run(self, model: ir.Model, context: Context) -> Result:
        """Convert the nodes of the main graph.

        Raises:
            InputError: no format is given, or there is none such; or ``keep`` names what is neither a node nor an
                operator of the model, nor a node that one of its nodes stands for.
        """
        if self.to not in FORMATS:
            raise InputError("it must be told the format", where=self.name, hint=f"to={' or to='.join(FORMATS)}")
        result = Result(model)
        scope = Scope(model, model.graph)
        graphs.name_nodes(scope)
        self._check_names(scope)
        half = _Half(scope, FORMATS[self.to])
        chosen: dict[ir.Node, _Parts] = {}
        for node in model.graph:
            found = self._parts(node, scope, half)
            if isinstance(found, Skip):
                result.skips.append(found)
            elif found is not None and context.budget.take():
                chosen[node] = found
        for node in chosen:
            result.rewrites.append(Rewrite((str(node.name),), (str(node.name),), f"computes in {self.to}"))
        half.apply(chosen, self.name)
        return result

    def _parts(self, node: ir.Node, scope: Scope, half: _Half) -> _Parts | Skip | None:
        """What of a node is converted; a Skip, or None, where nothing is."""
        if node.domain != "" or node.op_type in _OTHERS or any(graphs.subgraphs(node)):
            return None
        if not any(_is_float(each, scope) for each in node.outputs if each.name):
            return None
        if not any(_is_float(each, scope) for each in node.inputs if each is not None):
            return None
        name = node.name or ""
        kept = next((each for each in self.keep if each == node.op_type or each in _names(node)), None)
        if kept is not None:
            return Skip(f"{kept} is kept in float32", name)
        parts = _Parts.of(node, scope, half.dtype)
        if parts is None:
            return Skip(f"{node.op_type} of opset {scope.opset()} takes no {half.dtype.name.lower()}", name)
        other = [each for i, each in enumerate(node.outputs) if i not in parts.outputs and _is_used(each)]
        if other:
            return Skip(f"it also gives {other[0].name}, which depends on the rounding", name)
        if node.op_type in _PRODUCTS and all(map(_is_dequantized, node.inputs[:2])):
            return Skip("it multiplies dequantized integers, which integer kernels do", name)
        reasons = (half.misfit(node.inputs[index]) for index in parts.inputs)
        misfit = next(filter(None, reasons), None)
        return parts if misfit is None else Skip(misfit, name)

    def _check_names(self, scope: Scope) -> None:
        operators = {node.op_type for node in scope.nodes()}
        known = {*operators, *(name for node in scope.nodes() for name in _names(node))}
        for each in self.keep:
            if each not in known:
                hint = nearest(each, known) or f"its operators are {', '.join(sorted(operators))}"
                raise InputError("there is no such node or operator to keep", where=f"{self.name}, {each!r}", hint=hint)


@dataclass(frozen=True)
class _Parts:
    """What of a node is converted, by position."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @classmethod
    def of(cls, node: ir.Node, scope: Scope, dtype: ir.DataType) -> _Parts | None:
        """The float32 inputs and outputs whose type the operator leaves open; None where it has no such output."""
        try:
            schema = onnx.defs.get_schema(node.op_type, scope.opset(), node.domain)
        except onnx.defs.SchemaError:
            return None
        wanted = f"tensor({dtype.name.lower()})"
        open_ = {each.type_param_str for each in schema.type_constraints if wanted in each.allowed_type_strs}
        inputs = {
            index: kind
            for index, value in enumerate(node.inputs)
            if value is not None and _is_float(value, scope) and (kind := _kind(schema.inputs, index)) in open_
        }
        outputs = tuple(
            index
            for index, value in enumerate(node.outputs)
            if value.name and _is_float(value, scope) and _kind(schema.outputs, index) in set(inputs.values())
        )
        return cls(tuple(inputs), outputs) if outputs else None


@dataclass
class _Half:
    """The values of a graph in 16 bits: rounded constants, Casts down and up.

    Attributes:
        scope: where.
        dtype: the format.
    """

    scope: Scope
    dtype: ir.DataType
    _misfits: dict[ir.Value, str | None] = field(default_factory=dict)
    _down: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def misfit(self, value: ir.Value | None) -> str | None:
        """Why a constant cannot be of the format; None for what can, and for what is no constant."""
        tensor = self.scope.constant(value)
        if value is None or tensor is None:
            return None
        if value not in self._misfits:
            self._misfits[value] = _misfit(str(value.name), tensor.numpy(), self.dtype)
        return self._misfits[value]

    def apply(self, chosen: Mapping[ir.Node, _Parts], maker: str) -> None:
        """Convert the chosen nodes, in the order of the graph."""
        graph = self.scope.graph
        made: dict[ir.Value, ir.Value] = {}
        unused: dict[ir.Value, None] = {}
        for node, parts in chosen.items():
            for index in parts.outputs:
                made[node.outputs[index]] = node.outputs[index]
        for node, parts in chosen.items():
            for index in parts.inputs:
                value = node.inputs[index]
                assert value is not None
                if value in made:
                    continue
                node.replace_input_with(index, self._lowered(value, node, maker))
                unused[value] = None
        for node, parts in chosen.items():
            for index in parts.outputs:
                self._raise(node.outputs[index], node, chosen, maker)
        for value in unused:
            producer = value.producer()
            if value.uses() or value.is_graph_output():
                continue
            if producer is None:
                self.scope.drop_constant(value)
            elif producer.op_type == "Constant":
                graphs.remove(graph, [producer])

    def _lowered(self, value: ir.Value, node: ir.Node, maker: str) -> ir.Value:
        """The value in 16 bits, made where it is first needed."""
        if value in self._down:
            return self._down[value]
        graph, tensor = self.scope.graph, self.scope.constant(value)
        name = self.scope.names.value(f"{value.name}_{_short(self.dtype)}")
        if tensor is not None:
            self._down[value] = self.scope.new_constant(graph, _rounded(tensor, self.dtype, name), name)
        else:
            self._down[value] = self._cast(value, self.dtype, name, node, maker, before=True)
        return self._down[value]

    def _raise(self, value: ir.Value, node: ir.Node, chosen: Mapping[ir.Node, _Parts], maker: str) -> None:
        """Let an output be of 16 bits, and give float32 to what wants that; this keeps the name."""
        name, shape = str(value.name), value.shape
        others = [use for use in value.uses() if use.node not in chosen or use.idx not in chosen[use.node].inputs]
        value.type = ir.TensorType(self.dtype)
        output = value.is_graph_output()
        if not others and not output:
            value.name = self.scope.names.value(f"{name}_{_short(self.dtype)}")
            return
        value.name = self.scope.names.value(f"{name}_{_short(self.dtype)}")
        up = self._cast(value, ir.DataType.FLOAT, name, node, maker, before=False)
        up.shape = shape
        for use in others:
            use.node.replace_input_with(use.idx, up)
        for index, each in enumerate(self.scope.graph.outputs):
            if each is value:
                self.scope.graph.outputs[index] = up

    def _cast(
        self, value: ir.Value, to: ir.DataType, name: str, node: ir.Node, maker: str, *, before: bool
    ) -> ir.Value:
        cast = ir.node("Cast", [value], {"to": int(to)}, name=self.scope.names.node(f"{node.name}/Cast"))
        (result,) = cast.outputs
        result.name, result.type, result.shape = name, ir.TensorType(to), value.shape
        (self.scope.graph.insert_before if before else self.scope.graph.insert_after)(node, [cast])
        graphs.stamp([cast], maker, [node])
        return result


def _short(dtype: ir.DataType) -> str:
    return next(name for name, each in FORMATS.items() if each == dtype)


def _names(node: ir.Node) -> list[str]:
    """Its own name, and those of the nodes of the source model that it stands for."""
    return [str(node.name), *graphs.origin(node)]


def _is_float(value: ir.Value, scope: Scope) -> bool:
    return scope.dtype(value) == ir.DataType.FLOAT


def _is_used(value: ir.Value) -> bool:
    return bool(value.name) and (bool(value.uses()) or value.is_graph_output())


def _is_dequantized(value: ir.Value | None) -> bool:
    """Whether a value comes from DequantizeLinear, perhaps moved."""
    while value is not None and (producer := value.producer()) is not None:
        if producer.op_type == "DequantizeLinear":
            return True
        if producer.op_type not in _MOVING:
            return False
        value = producer.inputs[0]
    return False


def _kind(formals: Iterable[Any], index: int) -> str:
    """The type variable of a parameter, or its type; the last one may stand for many. Empty where there is none."""
    listed = list(formals)
    if index < len(listed):
        return str(listed[index].type_str)
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return str(listed[-1].type_str) if listed and listed[-1].option == variadic else ""


def _chunks(array: np.ndarray[Any, Any]) -> Iterable[np.ndarray[Any, Any]]:
    flat = array.reshape(-1)
    return (flat[start : start + _CHUNK] for start in range(0, flat.size, _CHUNK))


def _round(array: np.ndarray[Any, Any], dtype: ir.DataType) -> np.ndarray[Any, Any]:
    """To the nearest value, ties to even (as numpy and ml_dtypes do)."""
    with np.errstate(over="ignore", under="ignore"):
        return array.astype(dtype.numpy())


def _misfit(name: str, array: np.ndarray[Any, Any], dtype: ir.DataType) -> str | None:
    for piece in _chunks(array):
        if np.any(np.isfinite(piece) & ~np.isfinite(_round(piece, dtype).astype(np.float32))):
            largest = float(ml_dtypes.finfo(dtype.numpy()).max)  # type: ignore[no-untyped-call]
            return f"the constant {name} has values beyond {largest:g}, the largest of {dtype.name.lower()}"
    if array.size == 1 and array.item() != 0 and _round(array, dtype).item() == 0:
        return f"the constant {name}, {array.item():g}, would become 0"
    return None


def _rounded(tensor: ir.TensorProtocol, dtype: ir.DataType, name: str) -> ir.TensorProtocol:
    """A tensor that is rounded when it is read: weights are not held twice."""

    def read() -> ir.TensorProtocol:
        return ir.Tensor(_round(tensor.numpy(), dtype), name=name)

    return ir.LazyTensor(read, dtype=dtype, shape=ir.Shape(tensor.shape.numpy()), name=name)
