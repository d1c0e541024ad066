"""The judgement of a difference: the other side is wrong, or the reference does not determine the result.

Outputs that differ from the reference's by more than their tolerance are wrong, unless one of these explains it, which
are tried in this order:

- *rounding*: the difference is a rounding of what the output was computed from
  (`onnx_bridge.reference.comparison.rounding`);
- *ties*: given the other side's choices the reference agrees (`onnx_bridge.reference.comparison.ties`). A model that
  rounds to steps still agrees if its outputs differ by no more than steps do; otherwise they are not determined;
- *chaos*: the reference itself moves by as much when its inputs, and the coordinates of its Resize nodes, move by one
  unit in the last place (`onnx_bridge.reference.comparison.chaos`), and every node is right by itself: fed with the
  other side's own values, the reference computes the same. Then the outputs are not determined.

Both of the latter look at every place where a fault could be. A fault behind a tie, or in a chaotic model, is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx_ir as ir

from onnx_bridge.core.errors import BridgeError
from onnx_bridge.core.values import flat
from onnx_bridge.reference.comparison.chaos import MovedReference, before_bounds, wrong_node
from onnx_bridge.reference.comparison.choices import rounds
from onnx_bridge.reference.comparison.compare import Comparison, OutputComparison, compare
from onnx_bridge.reference.comparison.computed_precision import Inside, computed_precisions
from onnx_bridge.reference.comparison.conditioning import explains_all
from onnx_bridge.reference.comparison.inside import OpenModel, Tested, Values
from onnx_bridge.reference.comparison.rounding import floors
from onnx_bridge.reference.comparison.ties import GivenChoices, given_choices
from onnx_bridge.reference.comparison.tolerances import Tolerances
from onnx_bridge.reference.reference import Reference


@dataclass
class Judge:
    """Judges differences from a reference.

    Args:
        model: the model of the reference, which is not changed.
        epsilon: the unit in the last place of 1.0 (`onnx_bridge.reference.comparison.conditioning.nudged`).
        session: the model's session, if there is one.

    Attributes:
        unexamined: why choices and nodes could not be looked at, for the differences judged last; None if they were.
    """

    model: ir.Model
    tolerances: Tolerances
    epsilon: float = 0.0
    session: Reference | None = None
    unexamined: str | None = field(default=None, init=False)

    def judge(self, actual: Values, expected: Values, sample: Values, tested: Tested | None) -> Comparison:
        """Compare outputs with the reference's, and judge those that differ.

        Args:
            actual: the other side's outputs.
            expected: the reference's outputs.
            sample: the inputs of the reference.
            tested: the other side; None if nothing of it can be looked into.
        """
        self.unexamined = None
        compared = compare(actual, expected, self.tolerances)
        if compared.passed:
            return compared
        tolerances = self._with_rounding(compared, sample)
        compared = compare(actual, expected, tolerances)
        if tested is None:
            self.unexamined = "no values inside the program are known"
        if compared.passed or tested is None or _differ_in_kind(actual, expected):
            return compared
        try:
            given = given_choices(self._open, self._moved, self._precisions, tested, sample, actual, tolerances)
            if given.problem is None:
                return self._tied(compared, actual, expected, given)
            why = self._chaos(compared, actual, expected, sample, tested)
        except BridgeError as error:  # the reference need not take the inputs that it is given here
            self.unexamined = str(error)
            return compared
        outputs = (output if output.passed else replace(output, undetermined=why) for output in compared.outputs)
        return compared if why is None else Comparison(tuple(outputs))

    def from_outside(self, compared: Comparison, expected: Values, sample: Values, unexamined: str) -> Comparison:
        """Return outputs that differ as not determined, if the reference moves as far.

        Args:
            unexamined: why nothing inside could be compared.
        """
        differing = [output for output in compared.outputs if output.differs]
        try:
            if not explains_all(differing, self._moved.against(expected, sample)):
                return compared
        except BridgeError:  # the reference need not take moved inputs
            return compared
        itself = "the reference itself moves as far when its inputs move by one unit in the last place"
        why = f"{itself}; inside nothing was compared: {unexamined}"
        outputs = (replace(output, undetermined=why) if output.differs else output for output in compared.outputs)
        return Comparison(tuple(outputs))

    def moves(self, sample: Values, expected: Values) -> dict[str, OutputComparison]:
        """Return the outputs with inputs moved by one unit in the last place, against those without, by name.

        The result is empty if the reference fails, or if no input is a float or a place in a table of floats.
        """
        if not self._moved.can_move(sample):
            return {}
        try:
            (moved,) = self._moved.against(expected, sample, 1)
        except BridgeError:  # the reference need not take them
            return {}
        return {output.name: output for output in moved.outputs}

    def _with_rounding(self, compared: Comparison, sample: Values) -> Tolerances:
        names = [output.name for output in compared.outputs if not output.passed and output.dtype == "float32"]
        if not names:
            return self.tolerances
        try:
            own = floors(self._open.unfolded, names, lambda wanted: self._open.values(wanted, sample))
        except BridgeError:
            return self.tolerances
        return replace(self.tolerances, floors={**self.tolerances.floors, **own})

    def _tied(self, compared: Comparison, actual: Values, expected: Values, given: GivenChoices) -> Comparison:
        """Return the comparison of outputs whose differences are those of ties."""
        steps = compare(actual, expected, replace(self.tolerances, preset=self.tolerances.preset or "int8"))
        in_steps = {output.name: output for output in steps.outputs if output.passed}
        right = () if given.comparison is None else given.comparison.outputs
        errors = {output.name: output.max_abs for output in right}
        only_rounding = all(rounds(tie.operator) for tie in given.ties)
        outputs = []
        for output in compared.outputs:
            if not output.passed and only_rounding and output.name in in_steps:
                output = in_steps[output.name]
            elif not output.passed:
                error = errors.get(output.name)
                output = replace(output, undetermined=given.explanation(error), given_choices=error)
            outputs.append(output)
        return Comparison(tuple(outputs))

    def _chaos(
        self, compared: Comparison, actual: Values, expected: Values, sample: Values, tested: Tested
    ) -> str | None:
        """Return why outputs are not determined, if the reference moves as far by itself; otherwise None."""
        moved = self._moved.against(expected, sample)
        differing = [output for output in compared.outputs if not output.passed]
        if not explains_all(differing, moved):
            unbounded = before_bounds(self._open, self.epsilon, [output.name for output in differing], tested, sample)
            if unbounded is None or not explains_all(*unbounded):
                return None
            moved = unbounded[1]
        wrong, self.unexamined = wrong_node(self._open, tested, sample, actual, self.tolerances)
        if wrong or self.unexamined is not None:
            return None
        most = max((output.max_abs or 0.0 for comparison in moved for output in comparison.outputs), default=0.0)
        by = f"by {most:.2g}" if most else "to another shape"
        itself = f"the reference itself moves {by} when its inputs move by one unit in the last place"
        return f"{itself}, and every node is right by itself"

    @cached_property
    def _open(self) -> OpenModel:
        return OpenModel(self.model, self.session)

    @cached_property
    def _moved(self) -> MovedReference:
        return MovedReference(self._open, self.epsilon)

    @cached_property
    def _precisions(self) -> Mapping[str, Inside]:
        return computed_precisions(self._open.unfolded)


def _differ_in_kind(actual: Values, expected: Values) -> bool:
    """Return whether an output is missing, extra, or of another dtype, which no choice explains."""
    dtypes, wanted = ({name: array.dtype for name, array in flat(values).items()} for values in (actual, expected))
    if actual.keys() != expected.keys():
        return True
    return any(wanted.get(name, dtype) != dtype for name, dtype in dtypes.items())
