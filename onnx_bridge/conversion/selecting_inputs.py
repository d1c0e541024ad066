"""Inputs whose value selects a branch, and with it the shapes of results or whether the sizes of the inputs fit.

MIGraphX needs one shape for a value, so that such an If would run on the host with its branches. For each value of the
input, the branch is constant, and the model one program. These are buckets of the input: ``convert`` makes them, and a
call picks one by its value.

    use_cache_branch of merged decoders            false, true    the results differ in shape
    sr of a model for 16 kHz that has another      16000          with these sizes, all other values are errors
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_bridge.conversion.cleaning import rewrite
from onnx_bridge.core.errors import InputError
from onnx_bridge.requests.conversion import ConvertRequest, DoctorRequest
from passes.cleanup.close_branches import closed_branch, ifs_around, is_if
from passes.core.errors import PassError
from passes.evaluation.constant_session import EvaluationError
from passes.evaluation.evaluation import evaluate
from passes.graphs.scopes import Scope
from passes.graphs.traversal import operands_of

_MOST = 2
"""The number of such inputs up to which there is a program for each combination of their values."""
Values = dict[str, tuple[int, ...]]
"""The values of inputs by name; of a boolean 0 and 1."""


def selecting_inputs(model: ir.Model, request: ConvertRequest | DoctorRequest) -> Values:
    """Return the values of these inputs of an original, of one element each; empty if there are too many."""
    if not any(True for _ in _selections(model)):
        return {}
    buckets = request.buckets if isinstance(request, ConvertRequest) else {}
    dims = {**request.dims, **{name: max(sizes, default=1) for name, sizes in buckets.items()}}
    dims = {name: size for name, size in dims.items() if name not in {value.name for value in model.graph.inputs}}
    passes = "inline-functions,unshadow-names,fold-constants,infer-shapes,fold-constants,infer-shapes"
    cleaning = replace(request.cleaning, pipeline=passes, dims=dims)
    try:
        sized = rewrite(model.clone(), cleaning).model
    except (InputError, PassError):  # which the conversion reports
        return {}
    values = selecting(sized)
    return values if len(values) <= _MOST else {}


def selecting(model: ir.Model) -> Values:
    """Return the values of these inputs of a model with inferred shapes."""
    selections: dict[ir.Value, list[_Selection]] = {}
    for selection in _selections(model):
        value = selection.leaf
        if value.shape is not None and all(dim == 1 for dim in value.shape):
            selections.setdefault(value, []).append(selection)
    pairs = ((str(value.name), _values(value, of_it)) for value, of_it in selections.items())
    return {name: values for name, values in pairs if values}


def _values(leaf: ir.Value, selections: Iterable[_Selection]) -> tuple[int, ...]:
    """Return the values of an input that take no closed branch; none if all the others, or all, take none."""
    closed = [selection for selection in selections if closed_branch(selection.node)]
    if leaf.dtype == ir.DataType.BOOL:
        candidates = [0, 1]
        if not closed and not any(_branches_differ(selection.node) for selection in selections):
            return ()
    else:
        candidates = sorted({number for selection in selections for number in selection.numbers}, reverse=True)
        if not any(selection.fails(max(candidates, default=0) + 1) for selection in closed):
            return ()
    return tuple(value for value in candidates if not any(selection.fails(value) for selection in closed))


@dataclass(frozen=True)
class _Selection:
    """An If whose condition depends on one input alone.

    Attributes:
        around: the Ifs that it is in, of the same kind and of the same input, and the branches.
        leaf: the input.
        cone: the nodes that compute the condition, in topological order.
    """

    node: ir.Node
    condition: ir.Value
    around: tuple[tuple[_Selection, str], ...]
    leaf: ir.Value
    cone: tuple[ir.Node, ...]
    constants: Mapping[ir.Value, ir.TensorProtocol]
    scope: Scope

    @property
    def numbers(self) -> list[int]:
        """The integers that the input may be compared with."""
        single = [tensor for tensor in self.constants.values() if tensor.size == 1 and tensor.dtype.is_integer()]
        return [int(tensor.numpy().item()) for tensor in single]

    def fails(self, value: int) -> bool:
        """Return whether a value of the input takes the closed branch, or that cannot be computed."""
        reached = all(outer.takes(value) in (None, branch) for outer, branch in self.around)
        return reached and self.takes(value) in (None, closed_branch(self.node))

    def takes(self, value: int) -> str | None:
        """Return the branch for a value of the input; None if that cannot be computed."""
        assert self.leaf.dtype is not None
        shape = self.leaf.shape.numpy() if self.leaf.shape is not None else ()
        try:
            given = ir.Tensor(np.full(shape, value, self.leaf.dtype.numpy()))
            constants = {**self.constants, self.leaf: given}
            (condition,) = evaluate(self.cone, constants, [self.condition], self.scope) if self.cone else [given]
        except (EvaluationError, OverflowError):
            return None
        return "then_branch" if condition.numpy().item() else "else_branch"


def _selections(model: ir.Model) -> Iterable[_Selection]:
    """Yield the Ifs whose condition depends on one input of booleans or integers alone."""
    scope = Scope(model, model.graph)
    inputs, selections = set(model.graph.inputs), dict[ir.Node, _Selection]()
    for node in filter(is_if, scope.nodes()):
        condition = node.inputs[0]
        if condition is None:
            continue
        cone, constants, leaves = _computation(condition, scope)
        if len(leaves) != 1 or leaves[0] not in inputs or (dtype := leaves[0].dtype) is None:
            continue
        if dtype != ir.DataType.BOOL and not dtype.is_integer():
            continue
        around = [(selections.get(outer), branch) for outer, branch in ifs_around(model, node)]
        same = tuple((outer, branch) for outer, branch in around if outer is not None and outer.leaf is leaves[0])
        if len(same) == len(around):
            selections[node] = _Selection(node, condition, same, leaves[0], cone, constants, scope)
            yield selections[node]


def _computation(
    condition: ir.Value, scope: Scope
) -> tuple[tuple[ir.Node, ...], dict[ir.Value, ir.TensorProtocol], list[ir.Value]]:
    """Return the nodes that compute a value, the constants and the inputs of the model that they use."""
    nodes: set[ir.Node] = set()
    constants: dict[ir.Value, ir.TensorProtocol] = {}
    leaves: dict[ir.Value, None] = {}
    pending = [condition]
    while pending:
        value = pending.pop()
        if (tensor := scope.constant(value)) is not None:
            constants[value] = tensor
        elif (node := value.producer()) is None:
            leaves[value] = None
        elif node not in nodes:
            nodes.add(node)
            pending += operands_of(node)
    return tuple(node for node in scope.nodes() if node in nodes), constants, [*leaves]


def _branches_differ(node: ir.Node) -> bool:
    """Return whether a result of an If does not have the same dtype and known shape in both branches."""
    then, otherwise = (node.attributes[name].as_graph().outputs for name in ("then_branch", "else_branch"))
    return any(
        first.dtype != second.dtype or first.shape is None or not first.shape.is_static() or first.shape != second.shape
        for first, second in zip(then, otherwise, strict=True)
    )
