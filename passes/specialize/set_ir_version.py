"""Set the IR version of a model.

    ir_version: 10  →  ir_version: 8        where the model uses nothing that needs 9 or 10

convert-opset sets the versions of operators. Before IR version 4 every initializer had to be listed among the inputs;
since then, such an initializer is a default value that callers can override. So raising the version from below 4
removes initializers from the inputs. The metadata of these passes (``onnx_bridge.*``) does not count: old readers
ignore it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from passes.core.errors import InputError
from passes.core.text import counted
from passes.graphs.scopes import ANNOTATION, Scope, scopes
from passes.rewriting.base import Context, Pass, Result, Rewrite

_DTYPES = {
    ir.DataType.BFLOAT16: 4,
    ir.DataType.FLOAT8E4M3FN: 9,
    ir.DataType.FLOAT8E4M3FNUZ: 9,
    ir.DataType.FLOAT8E5M2: 9,
    ir.DataType.FLOAT8E5M2FNUZ: 9,
    ir.DataType.INT4: 10,
    ir.DataType.UINT4: 10,
    ir.DataType.FLOAT4E2M1: 11,
    ir.DataType.FLOAT8E8M0: 12,
    ir.DataType.INT2: 13,
    ir.DataType.UINT2: 13,
    ir.DataType.FLOAT6E2M3: 14,
    ir.DataType.FLOAT6E3M2: 14,
}
"""The versions that introduced dtypes; the other dtypes exist since version 1."""

Need = tuple[int, str]
"""A required version, and the feature that needs it."""


@dataclass(frozen=True)
class SetIrVersion(Pass):
    """Set the IR version of a model.

    Attributes:
        version: the new version; required.
    """

    name = "set-ir-version"
    version: int | None = None

    def run(self, model: ir.Model, context: Context) -> Result:
        """Set the version.

        Raises InputError if the version is missing or does not exist, or the model uses a feature of a later version.
        """
        result = Result(model)
        before, after = model.ir_version, self.version
        if after is None:
            raise InputError("its option version is missing", where=self.name, hint="as in set-ir-version{version=10}")
        if after == before:
            return result
        if not 1 <= after <= onnx.IR_VERSION:
            raise InputError(
                f"ONNX has no IR version {after}", where=self.name, hint=f"there are 1 to {onnx.IR_VERSION}"
            )
        for needed, what in _needs(model):
            if needed > after:
                raise InputError(
                    f"IR version {after} has no {what}", where=self.name, hint=f"version {needed} is the first"
                )
        if not context.budget.take():
            return result
        note = f"IR version {before} → {after}"
        if before < 4 <= after:
            inputs = model.graph.inputs
            kept = [value for value in inputs if not value.is_initializer()]
            note += f", {counted(len(inputs) - len(kept), 'initializer')} removed from the inputs"
            inputs[:] = kept
        model.ir_version = after
        result.rewrites.append(Rewrite((), note=note))
        return result


def _needs(model: ir.Model) -> Iterator[Need]:
    """Yield the features that a model uses, and the versions that they need."""
    if model.opset_imports:
        yield 3, "opset imports"
    for configuration in model.device_configurations:
        yield 11, f"device configurations, as {configuration.name}"
    for function in model.functions.values():
        name = "::".join(filter(None, function.identifier()))
        yield 8, f"functions, as {name}"
        if function.overload:
            yield 10, f"overloads, as {name}"
        if any(attribute.value is not None for attribute in function.attributes.values()):
            yield 9, f"defaults of a function's attributes, as {name} has"
    for scope in scopes(model):
        for graph in scope.graphs():
            yield from _graph(graph, scope)


def _graph(graph: ir.Graph, scope: Scope) -> Iterator[Need]:
    yield from _metadata(graph.metadata_props, f"graph {graph.name}")
    for value in graph.initializers.values():
        if not value.is_graph_input():
            yield 4, f"initializers that are not inputs, as {value.name}"
        if value.const_value is not None:
            yield from _tensor(value.const_value, f"initializer {value.name}")
    for value in (*graph.inputs, *graph.initializers.values()):
        yield from _value(value)
    for node in graph:
        where = f"node {node.name}"
        yield from _metadata(node.metadata_props, where)
        if node.overload:
            yield 10, f"overloads, as {where} calls"
        if node.device_configurations:
            yield 11, f"device configurations, as {where} has"
        for attribute in node.attributes.values():
            if not attribute.is_ref():
                yield from _attribute(attribute, where)
        for value in node.outputs:
            yield from _value(value)


def _attribute(attribute: ir.Attr, where: str) -> Iterator[Need]:
    kind = ir.AttributeType
    match attribute.type:
        case kind.TENSOR:
            yield from _tensor(attribute.as_tensor(), f"{where} ({attribute.name})")
        case kind.TENSORS:
            for tensor in attribute.as_tensors():
                yield from _tensor(tensor, f"{where} ({attribute.name})")
        case kind.SPARSE_TENSOR | kind.SPARSE_TENSORS:
            yield 6, f"sparse tensors, as {where} ({attribute.name})"
        case kind.TYPE_PROTO | kind.TYPE_PROTOS:
            yield 8, f"types as attributes, as {where} ({attribute.name})"


def _value(value: ir.Value) -> Iterator[Need]:
    where = f"value {value.name}"
    yield from _metadata(value.metadata_props, where)
    if value.meta.get(ANNOTATION):
        yield 5, f"quantization annotations, as {where} has"
    kind = value.type
    while isinstance(kind, ir.SequenceType | ir.OptionalType):
        if isinstance(kind, ir.OptionalType):
            yield 8, f"optional types, as {where}"
        kind = kind.elem_type
    if isinstance(kind, ir.SparseTensorType):
        yield 8, f"types of sparse tensors, as {where}"
    if kind is not None:
        yield from _dtype(kind.dtype, where)


def _tensor(tensor: ir.TensorProtocol, where: str) -> Iterator[Need]:
    yield from _dtype(tensor.dtype, where)
    yield from _metadata(tensor.metadata_props, where)


def _dtype(dtype: ir.DataType, where: str) -> Iterator[Need]:
    yield _DTYPES.get(dtype, 1), f"{dtype}, as {where}"


def _metadata(properties: Iterable[str], where: str) -> Iterator[Need]:
    foreign = next((key for key in properties if not key.startswith("onnx_bridge.")), None)
    if foreign is not None:
        yield 10, f"metadata of graphs, nodes, values and tensors, as {foreign} of {where}"
