"""The first nodes of a model that diverge from another model that should compute the same.

Values of the same name are taken to mean the same. They are compared in the order of the nodes; if one differs, the
nodes that compute it are fed with the reference's values: only what differs then is at fault, rather than what
propagates or amplifies an error.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.parity.submodels.cuts import submodel
from onnx_bridge.parity.submodels.submodels import SubmodelExtractor
from onnx_bridge.parity.symptoms.symptom import Symptom, SymptomKind
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.reference.comparison.tolerances import Tolerances
from onnx_bridge.reference.reference import Reference
from passes.graphs.traversal import leading_to
from passes.isolation.failure import NativeFailure
from passes.probing.partition import boundary

_MAX_DIFFERING = 6
"""The number of differing values that are examined."""


def first_divergence(
    reference: SubmodelExtractor, model: SubmodelExtractor, tolerances: Tolerances
) -> tuple[list[ir.Node], Symptom | None]:
    """Return the first nodes of ``model`` that diverge from ``reference`` when fed with the reference's values.

    Returns:
        The nodes between a shared value that differs and the shared values before it, and how it differs; no nodes and
        None if none are found.
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
            if name not in names or not all(isinstance(values.get(name), np.ndarray) for values in (*ours, *theirs)):
                continue
            pairs = [({name: got[name]}, {name: right[name]}) for got, right in zip(ours, theirs, strict=True)]
            if all(compare(got, right, tolerances).passed for got, right in pairs):
                continue
            wrong.add(name)
            if (tried := tried + 1) > _MAX_DIFFERING:
                return [], None
            computing = leading_to([value], lambda operand: operand.name in names)
            nodes = [node for node in model.order if node in computing]
            local = _local(nodes, name, reference, model, tolerances)
            if local is not None:
                return nodes, local
    return [], None


def _local(
    nodes: list[ir.Node], name: str, reference: SubmodelExtractor, model: SubmodelExtractor, tolerances: Tolerances
) -> Symptom | None:
    """Return how a value differs if its nodes are fed with the reference's values."""
    inputs = [str(value.name) for value in boundary(model.model.graph, nodes)[0]]
    model.runs.reference += 1
    try:
        given, right = reference.values(inputs), reference.values([name])
        session = Reference(submodel(model.model, inputs, [name], given[0], ()))
        for number, (sample, expected) in enumerate(zip(given, right, strict=True)):
            compared = compare(session.run(sample), expected, tolerances)
            if not compared.passed:
                return Symptom.of_comparison(compared, number)
    except NativeFailure as error:
        return Symptom(SymptomKind.of(error), None, error.what)
    except (InputError, KeyError) as error:
        return Symptom(SymptomKind.REJECTED, None, str(error))
    return None
