"""Outputs that are the same numbers whatever the inputs are: a comparison of them proves nothing.

Scores of noise, a saturated softmax, a sigmoid of 1. What no input leads to is constant, and is not asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.values import Value, flat
from onnx_bridge.reference.comparison.compare import compare, tolerances_of
from onnx_bridge.reference.comparison.tolerances import Tolerances, is_float
from passes.graphs.traversal import leading_to, operands_of

SAYS_NOTHING = "the same numbers on all inputs that were generated, within their tolerances"
Sample = Mapping[str, Value]


def dependent(model: ir.Model, outputs: Sample) -> set[str]:
    """Return the names, as of `flat` arrays, of the floats among outputs that inputs of a model lead to."""
    names: set[str] = set()
    for value in model.graph.outputs:
        operands = {value, *(operand for node in leading_to([value]) for operand in operands_of(node))}
        if any(operand.is_graph_input() and not operand.is_initializer() for operand in operands):
            arrays = flat({str(value.name): outputs.get(str(value.name))})
            names |= {name for name, array in arrays.items() if is_float(array.dtype) and array.size}
    return names


def alike(outputs: Sample, tolerances: Tolerances) -> set[str]:
    """Return the names of the floats among outputs that a constant is within the tolerances of."""
    floats = {name: array for name, array in flat(outputs).items() if is_float(array.dtype) and array.size}
    constants: dict[str, Value] = {}
    for name, array in floats.items():
        wide = array.astype(np.float64)
        constants[name] = np.full_like(array, wide.min() / 2 + wide.max() / 2)
    compared = compare(constants, floats, tolerances_of(tolerances, floats), measured=False)
    return {output.name for output in compared.outputs if output.passed}


def changing(
    names: set[str], first: Sample, others: Iterable[tuple[Sample, Sample]], tolerances: Tolerances
) -> Iterator[tuple[Sample, Sample, set[str]]]:
    """Yield the samples on which outputs differ from the ``first`` ones beyond the tolerances, and their names.

    Args:
        names: the outputs that are looked at; those that differ are removed.
        first: the outputs of the first sample.
        others: further samples, with their outputs; they are taken while ``names`` has any.
    """
    remaining = iter(others)
    while names and (pair := next(remaining, None)) is not None:
        compared = compare(pair[1], first, tolerances_of(tolerances, first), measured=False)
        changed = names - {output.name for output in compared.outputs if output.passed}
        names -= changed
        if changed:
            yield (*pair, changed)
