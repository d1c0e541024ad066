"""The reference given the choices of the other side (`onnx_bridge.reference.comparison.choices`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from onnx_bridge.core.errors import BridgeError
from onnx_bridge.reference.comparison.chaos import MovedReference
from onnx_bridge.reference.comparison.choices import Examination, Tie, choices
from onnx_bridge.reference.comparison.compare import Comparison, compare, tolerances_of
from onnx_bridge.reference.comparison.computed_precision import Inside, output_presets
from onnx_bridge.reference.comparison.conditioning import SEEDS, explains_all
from onnx_bridge.reference.comparison.inside import OpenModel, Tested, Values
from onnx_bridge.reference.comparison.tolerances import Tolerances


@dataclass(frozen=True)
class GivenChoices:
    """The reference given the choices of the other side.

    Attributes:
        ties: the choices that differ, in the order of the nodes.
        problem: why ties do not explain the differences of outputs; None if they do.
    """

    comparison: Comparison | None = None
    ties: tuple[Tie, ...] = ()
    problem: str | None = None

    def explanation(self, error: float | None) -> str:
        """Return why an output is not determined, from its largest error given the same choices."""
        more = f", and {len(self.ties) - 1} more" if len(self.ties) > 1 else ""
        agrees = "the output agrees" if error is None else f"the largest error is {error:.2g}"
        right = "every node that chooses is right by itself"
        return f"{self.ties[0].sentence}{more}; {right}; given the same choices {agrees}"


def given_choices(
    opened: OpenModel,
    moved: MovedReference,
    precisions: Mapping[str, Inside],
    tested: Tested,
    sample: Values,
    actual: Values,
    tolerances: Tolerances,
) -> GivenChoices:
    """Compare outputs with those of the reference, given the other side's choices.

    Args:
        opened: the reference.
        moved: the reference with moved inputs.
        precisions: the precision of each of the reference's values, if it is lower than its dtype.
        tested: the other side.
        sample: the inputs.
        actual: the other side's outputs.
        tolerances: the tolerances of the outputs.
    """
    nodes = choices(opened.unfolded, tested.names)
    if not nodes:
        return GivenChoices(problem="nothing in the model chooses")
    examination = Examination(opened.unfolded, nodes)
    results = examination.results
    try:
        values = {**sample, **tested.values(sample, examination.names)}
        if not compare({name: values[name] for name in actual}, actual, tolerances).passed:
            return GivenChoices(problem="the outputs change when the choices are fetched")
        operands = [name for name in examination.operands if name not in results]
        ours = opened.values([*opened.outputs, *operands, *examination.computed], values, results)
        computed = opened.values(examination.computed, values, examination.names)
    except (BridgeError, KeyError) as error:
        return GivenChoices(problem=str(error))
    comparison = compare(actual, {name: ours[name] for name in opened.outputs}, tolerances)
    problem = next((f"{output.name}: {output.reason}" for output in comparison.outputs if not output.passed), None)
    problem = problem or examination.wrong_choice(values, computed)
    if problem is None:
        names = [name for name in examination.operands if name in ours]
        presets, _ = output_presets(precisions, names)
        own = replace(tolerances, inside={**presets, **tolerances.inside}, floors={})
        problem = _disagreement(moved, names, values, ours, results, sample, own)
    ties = examination.ties(values, {**ours, **{name: values[name] for name in results}}, sample)
    if problem is None and not ties:
        ties = _of_itself(opened, examination, sample)
    return GivenChoices(comparison, ties, problem or (None if ties else "no choice differs"))


def _of_itself(opened: OpenModel, examination: Examination, sample: Values) -> tuple[Tie, ...]:
    """Return the choices that the reference makes differently when it is given its own.

    ONNX Runtime computes float16 nodes that it has no kernels for in float32, and does not round between two of them.
    A choice that becomes an input parts them, and what follows it is rounded.
    """
    try:
        own = {**sample, **opened.values(examination.names, sample)}
        again = opened.values([*examination.operands, *examination.computed], own, examination.results)
    except (BridgeError, KeyError):
        return ()
    return examination.ties(own, {**again, **{name: own[name] for name in examination.results}}, sample)


def _disagreement(
    moved: MovedReference,
    names: Sequence[str],
    tested: Values,
    ours: Values,
    given: Sequence[str],
    sample: Values,
    tolerances: Tolerances,
) -> str | None:
    """Return the first operand of a choice that differs by more than it can be computed; None if there is none."""
    right = {name: ours[name] for name in names}
    compared = compare({name: tested[name] for name in names}, right, tolerances_of(tolerances, right))
    differing = [operand for operand in compared.outputs if not operand.passed]
    if not differing:
        return None
    wanted = [operand.name for operand in differing]
    right = {name: ours[name] for name in wanted}
    runs = []
    for seed in SEEDS:
        inputs = moved.inputs(sample, seed)
        reference = moved.reference(sample, seed)
        values = reference.values(wanted, {**tested, **inputs}, [*given, *inputs.keys() - sample.keys()])
        runs.append(compare(values, right, Tolerances()))
    for operand in differing:
        if not explains_all([operand], runs):
            return f"{operand.name}, which a choice depends on, differs: {operand.reason}"
    return None
