"""Check what a model declares of its own values, which is a hint, and replace it by what inference proves.

    y: [3, 4, 1, 6] = MatMul(a, b)                   →  y: [3, 4, 6]          what inference finds
    Loop(…){ (acc: [0, 4]) → (Concat(acc, row)) }    →  acc: [unknown, 4]     as it grows from turn to turn
    x: [-1, ?, 3]                                    →  x: [unknown, unknown, 3]

What a body declares of a value that it carries holds only if the initial value has that shape, and if the body's result
has it whenever its input does. So the shapes of carried values are computed: from those of the initial values, a size
becomes unknown if the result differs, until nothing changes. What was declared is not used.

What depends on a declaration that turns out to be wrong was declared under the same error: only what inference finds
is left of it. All other declarations are kept, since inference does not know everything.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Set

import onnx_ir as ir

from passes.graphs.limits import MAX_ELEMENTS
from passes.graphs.scopes import CLAIMED, DISPUTED, Scope, scopes, values_of
from passes.graphs.traversal import has_subgraphs, subgraphs, with_nested
from passes.operators import operators
from passes.shapes import inference, skeleton
from passes.shapes.runtime_inference import ask
from passes.shapes.settled import Settled
from passes.shapes.skeleton import DOMAINS, Known, Parameter
from passes.shapes.steered_sizes import may_be_steered, steered_outputs

_ROUNDS = 20
"""The most inferences to find the shapes of carried values; without a result they are unknown."""


def settle(model: ir.Model, context: Settled) -> int:
    """Replace the declared types and shapes of a model's values by the inferred ones if they differ.

    Args:
        model: the values of the main graph and its subgraphs are changed in place; its inputs are what they say.
        context: its ``contradictions`` are added to, and ``settled``, ``inferred`` and ``complete`` are set.

    Returns:
        How many values were declared otherwise.
    """
    for scope in scopes(model):
        if scope.function is not None:  # its calls may differ
            for parameter in skeleton.parameters(scope):
                parameter.value.shape = None
    parameters = list(skeleton.parameters(Scope(model, model.graph)))
    undeclared = not any(map(_has_declarations, model.graph))
    declared = {
        value: value.shape
        for parameter in parameters
        for value in (parameter.value, parameter.final)
        if value is not None
    }
    failed = False
    try:
        inferred = _carried_through(model, parameters)
    except inference.FAILURES:
        failed, inferred = True, {}
        for value in declared:
            value.shape = None
    wrong = {
        value: reason
        for value, known in inferred.items()
        if DISPUTED not in value.meta and (reason := contradiction(value, known))
    }
    bodies = [skeleton.body_of(node) for node in Scope(model, model.graph).nodes() if node.op_type == "Scan"]
    scans = [body for body in bodies if body is not None]
    results = {value: value.shape for body in scans for value in body.outputs if value.shape is not None}
    for body in scans:
        for value in body.inputs:  # they keep their rank, and ONNX Runtime needs to know it
            shape = declared.get(value)
            if value.shape is None and shape is not None:
                value.shape = ir.Shape([None] * len(shape))
    unproven = [value for value, shape in declared.items() if _says_more(shape, value.shape)]
    for value in wrong:
        value.type = inferred[value][0] or value.type
    for value in _dependents((*wrong, *unproven), parameters, model) - declared.keys():
        kind, shape = inferred.get(value, (None, None))
        value.type, value.shape = value.type or kind, shape
    for value, shape in results.items():
        if value.shape is None:
            value.shape = ir.Shape([None] * len(shape))
    wrong |= _settle_constants(model)
    claimed = _mark_claims(model, parameters, inferred, failed=failed)
    context.settled = model
    context.inferred = inferred if undeclared else None
    context.complete = not (parameters or claimed or model.functions) and all(
        node.domain in DOMAINS and _is_proven(value, *inferred.get(value, (None, None)))
        for node in model.graph.all_nodes()
        for value in node.outputs
    )
    context.contradictions |= {str(value.name): reason for value, reason in wrong.items()}
    return len(wrong)


def _settle_constants(model: ir.Model) -> dict[ir.Value, str]:
    """Correct what is declared of outputs that are initializers; return each contradiction as a sentence."""
    wrong, scope = {}, Scope(model, model.graph)
    for value in model.graph.outputs:
        tensor = scope.constant(value)
        if tensor is not None:
            known = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
            reason = contradiction(value, known)
            if reason is not None:
                wrong[value], (value.type, value.shape) = reason, known
    return wrong


def settle_foreign(model: ir.Model, context: Settled) -> int:
    """Correct what a model declares of its values (`settle`), also of the results of foreign operators.

    Returns:
        How many values were declared otherwise.
    """
    count = settle(model, context) if context.settled is not model else 0
    foreign = [value for node in model.graph if node.domain not in DOMAINS for value in node.outputs if value.name]
    wrong = 0
    for value, (kind, shape) in ask(model, foreign, declared=False).items():
        reason = contradiction(value, (kind, shape))
        if reason is not None:
            context.contradictions[str(value.name)] = reason
            value.type, value.shape = kind, shape
            wrong += 1
    return count + wrong + (settle(model, context) if wrong else 0)


def unproven(model: ir.Model) -> list[ir.Value]:
    """Return the results of foreign operators whose shapes neither ONNX nor ONNX Runtime infers."""
    domains = {
        value: node.domain
        for node in model.graph
        if node.domain != "" and node.op_identifier() not in model.functions
        for value in node.outputs
        if value.name and (value.type is None or isinstance(value.type, ir.TensorType))
    }
    inferred = {value: shape for value, (_, shape) in ask(model, list(domains), declared=False).items()}
    if "ai.onnx.ml" in domains.values():
        with contextlib.suppress(*inference.FAILURES):
            own = _infer(model, propagate=False)
            ml = [value for value, domain in domains.items() if domain == "ai.onnx.ml"]
            inferred |= {value: own.get(value, (None, None))[1] for value in ml}
    return [value for value in domains if (shape := inferred.get(value)) is None or not shape.is_static()]


def claims(model: ir.Model) -> dict[ir.Value, ir.Shape | None]:
    """Return the values whose shapes are declared, and depend on data, with the part that inference proves."""
    return {value: value.meta[CLAIMED] for value in values_of(model) if CLAIMED in value.meta}


def _mark_claims(
    model: ir.Model, parameters: list[Parameter], inferred: dict[ir.Value, Known], *, failed: bool
) -> bool:
    """Keep how much is proven of what depends on elements, of what has an open size of an input, and of what is
    declared to have a size of others, beside what is declared of it.

    They let the device have such values, which a run verifies; nothing is folded or removed because of them.

    If inference ``failed``, every shape is only claimed. Returns whether there is any such value.
    """
    for value in values_of(model):
        value.meta.pop(CLAIMED, None)
    scope = Scope(model, model.graph)
    nodes = list(scope.nodes())
    sources = [value for node in nodes if failed or node.op_type in operators("by data") for value in node.outputs]
    shapes = [value.shape for value in model.graph.inputs if value.shape is not None]
    sizes = {dim.value for shape in shapes for dim in shape if isinstance(dim, ir.SymbolicDim) and dim.value}
    for value, (_, shape) in inferred.items():
        node = value.producer()
        steered = node is not None and _says_more(value.shape, shape) and may_be_steered(node, scope)
        if steered or _is_claim(value.shape, shape, sizes):
            sources.append(value)
    foreign = [value for node in nodes for value in steered_outputs(node, scope)]
    unknown = _dependents(foreign, parameters, model)  # inference takes what is declared of foreign operators
    sources += foreign
    if sources and not failed:
        with contextlib.suppress(*inference.FAILURES):  # what is inferred without propagation is proven as well
            inferred = _infer(model, propagate=True)
    for value in _dependents(sources, parameters, model):
        proven = None if value in unknown else inferred.get(value, (None, None))[1]
        if value.shape is None or _says_more(value.shape, proven):  # what has none may be inferred one from a claim
            value.meta[CLAIMED] = proven
    return bool(sources)


def _is_claim(declared: ir.Shape | None, proven: ir.Shape | None, sizes: Set[str]) -> bool:
    """Return whether a declaration names a size that is not proven to have this name, or has a number in place of one
    of the named sizes.
    """
    if declared is None:
        return False
    if proven is None or len(declared) != len(proven):
        return any(isinstance(dim, ir.SymbolicDim) and dim.value is not None for dim in declared)
    for dim, proven_dim in zip(declared, proven, strict=True):
        if isinstance(proven_dim, int):
            continue
        if proven_dim.value in sizes if isinstance(dim, int) else dim.value is not None and dim != proven_dim:
            return True
    return False


def _carried_through(model: ir.Model, parameters: list[Parameter]) -> dict[ir.Value, Known]:
    """Set the shapes of all parameters to what is proven; return what inference finds then, from inputs alone."""
    for parameter in parameters:
        parameter.value.shape = None
        _leave(parameter, None)
    started: set[Parameter] = set()
    inferred = _infer(model, propagate=False)
    for _ in range(_ROUNDS):
        changed = _advance(parameters, started, inferred, Scope(model, model.graph))
        if not changed:
            return inferred
        inferred = _infer(model, propagate=True)
    for parameter in parameters:
        parameter.value.shape = None
        _leave(parameter, None)
    return _infer(model, propagate=bool(parameters))


def _advance(
    parameters: Iterable[Parameter], started: set[Parameter], inferred: dict[ir.Value, Known], scope: Scope
) -> bool:
    """Take one step towards shapes that hold in every iteration; return whether anything changed.

    First every parameter gets the shape of its source if that is known; then sizes that change become unknown.
    """
    sources = {parameter: _shape(parameter.source, inferred, scope) for parameter in parameters}
    new = [parameter for parameter, shape in sources.items() if shape is not None and parameter not in started]
    for parameter in new:
        parameter.value.shape = _entered(parameter, sources[parameter])
        # a shape without a type cannot be written
        parameter.value.type = parameter.value.type or _kind(parameter, inferred)
        if parameter.final is not None:
            parameter.final.type = parameter.final.type or parameter.value.type
        _leave(parameter, sources[parameter])
    if new:
        started.update(new)
        return True
    changed = False
    for parameter in started:
        kept = _common(parameter.value.shape, _entered(parameter, sources[parameter]))
        if parameter.result is not None:
            kept = _common(kept, _shape(parameter.result, inferred, scope))
        if kept != parameter.value.shape:
            parameter.value.shape, changed = kept, True
            _leave(parameter, sources[parameter])
    return changed


def _leave(parameter: Parameter, source: ir.Shape | None) -> None:
    """Set the shape of the final value of a carried one."""
    if parameter.final is None:
        return
    shape, parameter.final.shape = parameter.value.shape, None
    if shape is not None and source is not None:
        parameter.final.shape = ir.Shape([*(source[axis] for axis in parameter.removed), *shape])


def _kind(parameter: Parameter, inferred: dict[ir.Value, Known]) -> ir.TypeProtocol | None:
    """Return the type of what a body is given."""
    if parameter.source is None:
        return None
    kind = parameter.source.type or inferred.get(parameter.source, (None, None))[0]
    if parameter.final is None and isinstance(kind, ir.SequenceType):  # SequenceMap gives its elements
        elements: ir.TypeProtocol = kind.elem_type
        return elements
    return kind


def _entered(parameter: Parameter, source: ir.Shape | None) -> ir.Shape | None:
    if source is None or not all(-len(source) <= axis < len(source) for axis in parameter.removed):
        return None
    removed = {axis % len(source) for axis in parameter.removed}
    return ir.Shape([dim for axis, dim in enumerate(source) if axis not in removed])


def _shape(value: ir.Value | None, inferred: dict[ir.Value, Known], scope: Scope) -> ir.Shape | None:
    if value is None:
        return None
    tensor = scope.constant(value)
    if tensor is not None:
        return ir.Shape(tensor.shape.numpy())
    return value.shape if value.producer() is None else inferred.get(value, (None, None))[1]


def _common(shape: ir.Shape | None, other: ir.Shape | None) -> ir.Shape | None:
    """Return what two shapes have in common; None without a common rank."""
    if shape is None or other is None or len(shape) != len(other):
        return None
    return ir.Shape([dim if dim == other_dim else None for dim, other_dim in zip(shape, other, strict=True)])


def _infer(model: ir.Model, *, propagate: bool) -> dict[ir.Value, Known]:
    return inference.run(model, declared=False, propagate=propagate)


def contradiction(value: ir.Value, inferred: tuple[ir.TypeProtocol | None, ir.Shape | None]) -> str | None:
    """Return how a value's type and shape contradict the inferred ones, as a sentence; None if they do not."""
    kind, shape = inferred
    if kind is not None and value.type is not None and kind != value.type:
        return f"{value.name} is declared as {value.type}, and inferred to be {kind}"
    if shape is None or value.shape is None:
        return None
    pairs = zip(value.shape, shape, strict=False)
    differ = any(isinstance(dim, int) and isinstance(other, int) and dim != other for dim, other in pairs)
    if differ or len(shape) != len(value.shape):
        return f"{value.name} is declared with shape {value.shape}, and inferred to have {shape}"
    return None


def _has_declarations(node: ir.Node) -> bool:
    """Return whether what a model declares of a node's outputs, or within it, may help inference."""
    return has_subgraphs(node) or any(
        (value.type is not None or value.shape is not None) and (not value.is_graph_output() or value.uses())
        for value in node.outputs
    )


def _is_proven(value: ir.Value, kind: ir.TypeProtocol | None, shape: ir.Shape | None) -> bool:
    """Return whether the type and the shape of a value, if it has any, are no more than what inference proves."""
    return value.type in (None, kind) and not _says_more(value.shape, shape)


def _says_more(declared: ir.Shape | None, proven: ir.Shape | None) -> bool:
    """Return whether a declaration has a size that is not proven."""
    if declared is None:
        return False
    if proven is None or len(declared) != len(proven):
        return True
    return any(
        dim != other and (isinstance(dim, int) or not isinstance(other, int))
        for dim, other in zip(declared, proven, strict=True)
        if isinstance(dim, int) or dim.value is not None
    )


def _dependents(values: Iterable[ir.Value], parameters: Iterable[Parameter], model: ir.Model) -> set[ir.Value]:
    """Return some values, with all that is computed from them."""
    reached = set(values)
    if not reached:
        return reached
    owners = {graph: node for node in with_nested(model.graph) for graph in subgraphs(node)}
    passed: dict[ir.Value | None, list[ir.Value]] = {}
    for parameter in parameters:
        for value in (parameter.source, parameter.result):
            passed.setdefault(value, []).append(parameter.value)
    pending = list(reached)

    def reach(more: Iterable[ir.Value]) -> None:
        pending.extend(value for value in more if value not in reached)
        reached.update(more)

    while pending:
        value = pending.pop()
        reach(passed.get(value, ()))
        for use in value.uses():
            reach(use.node.outputs)
        if value.is_graph_output() and value.graph in owners:
            reach(owners[value.graph].outputs)
    return reached


def names_a_size(name: str) -> bool:
    """Return whether values that have the same name of a size have the same size."""
    return name.strip() not in ("", "?")


def forget_sizes(values: Iterable[ir.Value]) -> None:
    """Keep only the ranks of values that have a shape."""
    for value in values:
        value.shape = None if value.shape is None else ir.Shape([None] * len(value.shape))


def forget_impossible_sizes(model: ir.Model) -> None:
    """Make sizes unknown that are negative or too large, and those whose name says nothing: ``?``, or none at all.

    Each is a size of its own, whatever other values have in its place. Types without a dtype are forgotten, too.
    """
    for value in itertools.chain.from_iterable(scope.values() for scope in scopes(model)):
        if value.dtype == ir.DataType.UNDEFINED:
            value.type = None
        if value.shape is not None and any(map(_is_impossible, value.shape)):
            value.shape = ir.Shape([None if _is_impossible(dim) else dim for dim in value.shape])


def _is_impossible(dim: int | ir.SymbolicDim) -> bool:
    return (
        not 0 <= dim <= MAX_ELEMENTS if isinstance(dim, int) else dim.value is not None and not names_a_size(dim.value)
    )
