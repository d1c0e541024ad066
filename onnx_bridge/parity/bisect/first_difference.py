"""Two models that should be the same: the first node of one that computes something else than the other says.

What both call by the same name is taken to mean the same. So the values of both are compared in the order of the nodes,
and where one differs, the nodes behind it are fed with the reference's own values: only what differs then is at fault,
and not what merely passes an error on, or makes it larger.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.parity.pieces import Pieces
from onnx_bridge.parity.trial import Kind, Symptom, reasons
from onnx_bridge.reference.compare import compare
from onnx_bridge.reference.reference import Reference
from onnx_bridge.reference.tolerances import Tolerances
from passes.core import graphs
from passes.target.partition import boundary, extract

_MOST = 6
"""How many values that differ are looked at."""


def differing(reference: Pieces, model: Pieces, tolerances: Tolerances) -> tuple[list[ir.Node], Symptom | None]:
    """The first nodes of ``model`` that differ from ``reference`` by themselves.

    Returns:
        The nodes between one value of both that differs and those before it that do not, and how it differs; no nodes,
        and None, where no such place is found.
    """
    names = {str(value.name) for node in reference.order for value in node.outputs}
    names |= {str(value.name) for value in reference.model.graph.inputs}
    shared = [str(value.name) for node in model.order for value in node.outputs if value.name in names]
    ours, theirs = model.values(shared), reference.values(shared)
    wrong: set[str] = set()
    tried = 0
    for node in model.order:
        for value in node.outputs:
            name = str(value.name)
            if name not in names or not all(isinstance(each.get(name), np.ndarray) for each in (*ours, *theirs)):
                continue
            pairs = [({name: got[name]}, {name: right[name]}) for got, right in zip(ours, theirs, strict=True)]
            if all(compare(got, right, tolerances).passed for got, right in pairs):
                continue
            wrong.add(name)
            if (tried := tried + 1) > _MOST:
                return [], None
            nodes = _behind(value, names, model.order)
            found = _local(nodes, name, reference, model, tolerances)
            if found is not None:
                return nodes, found
    return [], None


def _behind(value: ir.Value, shared: set[str], order: list[ir.Node]) -> list[ir.Node]:
    """The nodes between a value and what both models have before it, in order."""
    found: set[ir.Node] = set()
    pending = [value.producer()]
    while pending:
        node = pending.pop()
        if node is None or node in found:
            continue
        found.add(node)
        used = (each for each in (*node.inputs, *graphs.captures(node)) if each is not None)
        pending += [each.producer() for each in used if each.name not in shared]
    return [node for node in order if node in found]


def _local(nodes: list[ir.Node], name: str, reference: Pieces, model: Pieces, tolerances: Tolerances) -> Symptom | None:
    """How a value differs where its nodes are fed with the reference's values."""
    inputs = [str(value.name) for value in boundary(model.model.graph, nodes)[0]]
    model.runs.reference += 1
    try:
        session = Reference(extract(model.model, inputs, [name]))
        given, right = reference.values(inputs), reference.values([name])
        for number, (sample, expected) in enumerate(zip(given, right, strict=True)):
            compared = compare(session.run(sample), expected, tolerances)
            if not compared.passed:
                return Symptom(Kind.WRONG, "", reasons(compared), number, compared)
    except (InputError, KeyError) as error:
        return Symptom(Kind.REJECTED, "", str(error))
    return None
