"""Inference with corrections (`passes.shapes.corrections.protocol`).

A result whose size is wrong gets another name in its node, and what is right is declared of its own: ONNX then infers
from that what follows. As corrected nodes can follow each other, inference is repeated until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import onnx

from passes.shapes.corrections import readings, sizes
from passes.shapes.corrections.nodes import STANDARD, Node, Surroundings, dims, subgraphs, tensor_type, with_nested
from passes.shapes.corrections.protocol import DETACHED, HIDDEN, PROPAGATED, RESIZES, REWRITES, STAND_INS

CORRECTIONS = (readings, sizes)
"""The modules whose functions are registered."""
OPERATORS = frozenset(REWRITES) | frozenset(RESIZES)
"""The operators that have corrections."""
_NOT_PROPAGATED = OPERATORS - PROPAGATED
_ROUNDS = 20
"""The most inferences; what is not right after them is unknown."""
_Types = dict[str, onnx.TypeProto]


def infer(
    model: onnx.ModelProto,
    nodes: Iterable[Node],
    run: Callable[[onnx.ModelProto], onnx.ModelProto],
    *,
    propagates: bool,
) -> onnx.ModelProto:
    """Infer a model.

    Args:
        model: not changed.
        nodes: the nodes of its graph (`Surroundings.nodes`).
        propagates: whether that propagates the values of shapes.
    """
    opset = opset_of(model)
    operators = OPERATORS if propagates else _NOT_PROPAGATED
    originals: list[Node] = []
    rewritten: dict[int, onnx.NodeProto] = {}
    for position, node in enumerate(nodes):
        if node.message.op_type not in operators or node.message.domain not in STANDARD:
            continue
        message = _rewritten(node, operators)
        if message != node.message or _is_resized(message, opset):
            originals.append(node)
            rewritten[position] = message
    if not rewritten and not model.functions:
        return run(model)

    def corrected(graph: onnx.GraphProto) -> list[Node]:
        return [node for position, node in enumerate(Surroundings(graph, opset).nodes()) if position in rewritten]

    work = onnx.ModelProto()
    work.CopyFrom(model)
    changed = corrected(work.graph)
    for node, message in zip(changed, rewritten.values(), strict=True):
        if not subgraphs(message):  # no rule changes others here, and their nodes stay where they are
            node.message.CopyFrom(message)
    messages = [*rewritten.values(), *_rewrite_functions(work, operators)]
    for scope in (work, *work.functions):
        scope.opset_import.append(onnx.helper.make_opsetid(HIDDEN, 1))
    hidden = {message.op_type for message in messages if message.domain == HIDDEN}
    work.functions.extend(STAND_INS[name] for name in hidden & STAND_INS.keys())
    result = run(work)
    for turn in range(_ROUNDS + 1):
        triples = zip(originals, changed, corrected(result.graph), strict=True)
        edits = [_correct(*triple, is_last=turn == _ROUNDS) for triple in triples]  # all of them
        if not any(edits):
            break
        result = run(work)
    for original, node in zip(originals, corrected(result.graph), strict=True):
        _restore(original, node)
    for field in ("opset_import", "functions"):
        result.ClearField(field)
        getattr(result, field).extend(getattr(model, field))
    return result


def infer_node(
    node: onnx.NodeProto,
    types: Mapping[str, onnx.TypeProto],
    constants: Mapping[str, onnx.TensorProto],
    opset: int,
    run: Callable[[onnx.NodeProto, int], _Types],
    *,
    corrected: bool = True,
) -> _Types:
    """Infer the types of the outputs of one node; no shapes if a node in its subgraphs has to be corrected.

    Args:
        node: not changed.
        types: known types of its operands.
        run: ONNX's inference of a node, as it is in an opset.
        corrected: whether a node that has to be corrected is inferred at all.
    """
    graphs = subgraphs(node)
    if node.op_type not in _NOT_PROPAGATED and not graphs:
        return run(node, opset)
    known = onnx.GraphProto(initializer=constants.values())
    work = _rewritten(Node(node, Surroundings(known, opset, types=types)))
    if not corrected and work != node:
        return {}
    if work.domain == HIDDEN:
        if work.op_type not in STAND_INS:
            return {}
        work.domain, opset = "", opset_of(STAND_INS[work.op_type])
    unknown = Surroundings(onnx.GraphProto(), opset)
    inner = zip(
        *([inside for inside in with_nested([root]) if inside is not root] for root in (node, work)), strict=True
    )
    is_uncertain = bool(graphs) and _is_resized(node, opset)
    for original, message in inner:
        _rewrite(Node(message, unknown))
        is_uncertain |= message != original or _is_resized(message, opset)
    inferred = run(work, opset)
    if is_uncertain:
        for kind in inferred.values():
            if kind.HasField("tensor_type"):
                kind.tensor_type.ClearField("shape")
        return inferred
    around = Surroundings(known, opset, types={**types, **inferred})
    return inferred | {node.output[index]: kind for index, kind in _wrong(Node(work, around))}


def _is_resized(node: onnx.NodeProto, opset: int) -> bool:
    return node.op_type in RESIZES and opset <= RESIZES[node.op_type][1] and node.domain in STANDARD


def opset_of(scope: onnx.ModelProto | onnx.FunctionProto) -> int:
    """Return the version of ONNX's operators in a model or function."""
    return next((entry.version for entry in scope.opset_import if entry.domain in ("", "ai.onnx")), 1)


def _rewrite_functions(model: onnx.ModelProto, operators: Collection[str]) -> list[onnx.NodeProto]:
    """Rewrite the nodes of functions, and return them."""
    messages: list[onnx.NodeProto] = []
    for function in model.functions:
        unknown = Surroundings(onnx.GraphProto(), opset_of(function), is_function=True)
        for message in with_nested(function.node):
            _rewrite(Node(message, unknown), operators)
            messages.append(message)
    return messages


def _rewritten(node: Node, operators: Collection[str] = _NOT_PROPAGATED) -> onnx.NodeProto:
    """Return the message of a node as it is given to ONNX."""
    message = onnx.NodeProto()
    message.CopyFrom(node.message)
    _rewrite(Node(message, node.around), operators)
    return message


def _rewrite(node: Node, operators: Collection[str] = _NOT_PROPAGATED) -> None:
    operator = node.message.op_type
    if operator in operators and operator in REWRITES and node.message.domain in STANDARD:
        REWRITES[operator](node)


def _correct(original: Node, node: Node, inferred: Node, *, is_last: bool) -> bool:
    """Change ``node``, as given to ONNX, by what is inferred; return whether that is more than before.

    If nothing is inferred afterwards (``is_last``), what is wrong becomes unknown.
    """
    if node.message.domain == HIDDEN and node.message.op_type not in STAND_INS:
        node.message.CopyFrom(_rewritten(Node(original.message, inferred.around)))
        return bool(node.message.domain != HIDDEN)
    wrong = list(_wrong(inferred))
    for index, kind in wrong:
        if is_last:
            kind.tensor_type.ClearField("shape")
        name = node.message.output[index].removesuffix(DETACHED)
        node.message.output[index] = name + DETACHED
        node.around.declare(name, kind)
    return bool(wrong)


def _wrong(node: Node) -> Iterator[tuple[int, onnx.TypeProto]]:
    """Yield the indices of results whose shapes are wrong, with the right types."""
    if not _is_resized(node.message, node.around.opset):
        return
    resize, _ = RESIZES[node.message.op_type]
    for index, name in enumerate(node.message.output):
        branches = (graph.output[index].type for graph in subgraphs(node.message) if index < len(graph.output))
        kind = node.around.type(name) or next(branches, None)  # ONNX infers no type if the branches differ
        inferred = dims(kind)
        if kind is None or inferred is None:
            continue
        right = resize(node, index, inferred)
        if right != dims(node.around.type(name.removesuffix(DETACHED))):
            yield index, tensor_type(kind.tensor_type.elem_type, right)


def _restore(original: Node, node: Node) -> None:
    """Undo what was changed in a node; its subgraphs stay, with what was inferred of them."""
    detached = set(node.message.output).difference(original.message.output)
    if subgraphs(node.message):
        node.message.output[:] = original.message.output
    else:
        node.message.CopyFrom(original.message)
    if detached:
        node.around.forget(detached)
