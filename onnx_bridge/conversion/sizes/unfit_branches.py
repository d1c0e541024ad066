"""Branches of Ifs that are not valid for the sizes of the inputs, and that nobody takes with these sizes.

ONNX Runtime runs such a model, since it checks the branch only when it is taken, but not with the sizes in its file.
The node that it names then is in the branch in question. If the branch cannot be run either when it is forced to be
taken, it is closed (`passes.cleanup.close_branches`).
"""

from __future__ import annotations

import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.reference.onnxruntime_errors import OnnxRuntimeError, Reason
from onnx_bridge.reference.reference import Reference, load_error
from onnx_bridge.samples import inputs as samplers
from passes.cleanup.close_branches import (
    BRANCHES,
    CLOSED,
    SINCE,
    close_branch,
    closed_branch,
    force_branch,
    ifs_around,
    is_if,
)
from passes.cleanup.remove_dead import RemoveDead
from passes.graphs.scopes import Scope
from passes.graphs.traversal import is_used, with_nested
from passes.rewriting.base import Context
from passes.shapes.axes.words import Dims
from passes.shapes.declarations import forget_sizes, settle
from passes.shapes.inference import infer
from passes.shapes.open_sizes import is_too_short
from passes.specialize.convert_opset import ConvertOpset

_SEEDS = 4
"""The number of samples on which a branch must fail: another node may fail before it on one of them."""


def close_unfit_branches(model: ir.Model, context: Context) -> bool:
    """Close the branches that do not fit the sizes of a model, in place; return whether there were any."""
    changed = False
    while any(is_if(node) for node in Scope(model, model.graph).nodes()):
        error = load_error(model)
        if isinstance(error, OnnxRuntimeError) and error.reason is Reason.OTHER:
            why, named = error.what, [node for node in with_nested(model.graph) if node.name == error.inner_node]
        else:
            why, named = "a window is larger than its input", _too_short(model)
        pair = next((pair for node in named for pair in ifs_around(model, node) if _fails(model, *pair)), None)
        if pair is None or closed_branch(pair[0]):
            break
        if Scope(model, model.graph).opset() < SINCE:
            _convert(model, *pair, context)
        if not close_branch(model, *pair, why):
            break
        changed = True
    if changed:
        settle(model, context)
        infer(model)
    return changed


def _too_short(model: ir.Model) -> list[ir.Node]:
    """Return convolutions in branches that the sizes are too small for: ONNX Runtime sees it in a run."""
    infer(model)
    nodes = [node for node in with_nested(model.graph) if node.graph is not model.graph and node.op_type == "Conv"]

    def shape_of(value: ir.Value) -> Dims | None:
        return None if value.shape is None or not value.shape.is_static() else tuple(value.shape.numpy())

    return [node for node in nodes if is_too_short(node, shape_of)][:1]


def closed_branches(model: ir.Model) -> list[str]:
    """Return notes on the closed branches of a cleaned model; raises InputError if one is always taken."""
    notes = []
    for node in with_nested(model.graph):
        if (why := node.metadata_props.get(CLOSED)) is None:
            continue
        if node.graph is model.graph:
            hint = "give other sizes with `dims` or `shapes`, or freeze other values"
            raise InputError(f"the sizes of the inputs do not fit: {why}", hint=hint)
        notes.append(f"a run that takes the {node.name} fails: {why}")
    return notes


def _convert(model: ir.Model, node: ir.Node, closed: str, context: Context) -> None:
    """Convert a model, but for a branch that will be closed, to the first opset in which that is possible."""
    shapes, branch = [(value, value.shape) for value in model.graph.inputs], node.attributes[closed]
    other = node.attributes[BRANCHES[closed]].as_graph().clone(allow_outer_scope_values=True)
    node.attributes[closed] = ir.AttrGraph(closed, other)
    _forget(model)
    infer(model)
    try:
        ConvertOpset(SINCE).run(model, context)
    except InputError:  # a node cannot be converted
        node.attributes[closed] = branch
    for value, shape in shapes:
        value.shape = shape


def _forget(model: ir.Model) -> None:
    forget_sizes((*model.graph.inputs, *(value for node in with_nested(model.graph) for value in node.outputs)))


def _fails(model: ir.Model, node: ir.Node, branch: str) -> bool:
    """Return whether ONNX Runtime fails inside of a branch that is taken, without the sizes that are in the model."""
    loose = model.clone()
    twins = dict(zip(with_nested(model.graph), with_nested(loose.graph), strict=True))  # names may be there twice
    top = next(top for top in loose.graph if twins[node] in with_nested([top]))
    loose.graph.outputs[:] = [value for value in top.outputs if value.name]
    for outer, taken in [(node, branch), *ifs_around(model, node)]:
        force_branch(loose, twins[outer], taken)
    RemoveDead().run(loose, Context())
    loose.graph.inputs[:] = [value for value in loose.graph.inputs if is_used(value)]
    try:
        samples = [samplers.generate(loose, seed=seed)[0] for seed in range(_SEEDS)]
    except InputError:  # no sample can be generated
        return False
    inside = {inner.name for inner in with_nested(node.attributes[branch].as_graph())}
    _forget(loose)
    for sample in samples:
        try:
            Reference(loose).run(sample)
        except OnnxRuntimeError as error:
            if error.inner_node in inside:
                return True
        except InputError:
            return False
    return False
