"""Outputs that are the same numbers whatever the inputs are: a comparison of them proves nothing.

Scores of noise, a saturated softmax, a sigmoid of 1. What no input leads to is constant, and is not asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.values import Array, Value, flat
from onnx_bridge.reference.comparison.compare import compare, tolerances_of
from onnx_bridge.reference.comparison.tolerances import Tolerances, is_float
from passes.graphs.traversal import leading_to, operands_of

SAYS_NOTHING = "the same numbers on all inputs that were generated, within their tolerances"
Sample = Mapping[str, Value]


def dependent(model: ir.Model, outputs: Sample) -> set[str]:
    """Return the names, as of `flat` arrays, of the numbers among outputs that elements of inputs lead to."""
    names: set[str] = set()
    for value in model.graph.outputs:
        operands = {value, *(operand for node in leading_to([value], _is_shape) for operand in operands_of(node))}
        led = any(operand.is_graph_input() and not operand.is_initializer() for operand in operands)
        is_empty = value.shape is not None and 0 in value.shape.dims
        if led and not (_is_shape(value) or is_empty):
            names |= _numbers({str(value.name): outputs.get(str(value.name))}).keys()
    return names


def _is_shape(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type in ("Shape", "Size")


def _numbers(outputs: Sample) -> dict[str, Array]:
    return {name: array for name, array in flat(outputs).items() if array.dtype.kind not in "OUST"}


def alike(outputs: Sample, tolerances: Tolerances) -> set[str]:
    """Return the names of the numbers among outputs that a constant is within the tolerances of."""
    numbers = _numbers(outputs)
    constants: dict[str, Value] = {}
    for name, array in numbers.items():
        constants[name] = array
        if array.size and is_float(array.dtype):
            wide = array.astype(np.float64)
            constants[name] = np.full_like(array, wide.min() / 2 + wide.max() / 2)
        elif array.size:
            constants[name] = np.full_like(array, array.flat[0])
    compared = compare(constants, numbers, tolerances_of(tolerances, numbers), measured=False)
    return {output.name for output in compared.outputs if output.passed}


def enliven(
    model: ir.Model,
    samples: list[dict[str, Value]],
    outputs: list[Sample],
    others: Iterable[tuple[Sample, Sample]],
    tolerances: Tolerances,
) -> set[str]:
    """Return the outputs that no sample changes, and add the samples that change those that a constant agrees with.

    Args:
        model: the cleaned model.
        samples: samples of the same sizes; other ones are added.
        outputs: the reference's outputs for them; those for others are added.
        others: other samples, with their outputs.
        tolerances: the limits within which outputs are the same.
    """
    first = outputs[0]
    same = unchanged(dependent(model, first), outputs, tolerances)
    constant = alike(first, tolerances)
    for sample, computed, changed in changing(same, first, others, tolerances):
        if changed & constant:
            samples.append(dict(sample))
            outputs.append(computed)
    return same


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


def unchanged(names: set[str], outputs: Sequence[Sample], tolerances: Tolerances) -> set[str]:
    """Return the names of the outputs that are the same in several runs, within the tolerances."""
    same = set(names)
    for _ in changing(same, outputs[0], ((other, other) for other in outputs[1:]), tolerances):
        pass
    return same
