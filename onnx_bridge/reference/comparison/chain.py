"""The judgement of a check: of the cleaned model against the original, and of the bundle against both.

    original ─ on ONNX Runtime ─┐ cleaned leg: choices and nodes by the names that both models have
    cleaned  ─ on ONNX Runtime ─┤
    bundle   ─ on MIGraphX ─────┘ device leg: choices and nodes of the cleaned model

A difference of the bundle is no fault only if neither a pass nor MIGraphX makes one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import onnx_ir as ir

from onnx_bridge.core.errors import BridgeError
from onnx_bridge.core.tolerance import PartialTolerance
from onnx_bridge.reference.comparison.compare import Comparison, OutputComparison, compare
from onnx_bridge.reference.comparison.inside import InsideModel, Tested, Values
from onnx_bridge.reference.comparison.judge import Judge
from onnx_bridge.reference.comparison.tolerances import Tolerances
from onnx_bridge.reference.reference import Reference
from passes.graphs.scopes import Scope, name_nodes
from passes.rewriting.base import Context
from passes.specialize.convert_precision import ConvertPrecision

_WIDENED = "the model itself returns these numbers if it is computed in float32, as the program is"


@dataclass
class ChainJudge:
    """Judges the differences of both legs of a check.

    Args:
        original: the reference.
        epsilon: the unit in the last place of 1.0 of what is computed; 0 if it is that of the dtypes.
        session: the session of the original, if there is one.
    """

    original: ir.Model
    cleaned: ir.Model
    epsilon: float = 0.0
    session: Reference | None = None
    _judges: dict[str, Judge] = field(default_factory=dict)

    def of_cleaned(
        self, actual: Values, expected: Values, sample: Values, original_sample: Values, tolerances: Tolerances
    ) -> Comparison:
        """Judge the cleaned model's outputs against the original's."""
        judge = self._judge("original", self.original, tolerances)
        return judge.judge(actual, expected, original_sample, InsideModel(self.cleaned, sample))

    def of_device(
        self,
        actual: Values,
        expected: Values,
        sample: Values,
        cleaned: tuple[Values, Comparison],
        tested: Tested | None,
        tolerances: Tolerances,
    ) -> Comparison:
        """Judge a bundle's outputs against the original's.

        Args:
            actual: the bundle's outputs.
            expected: the original's outputs.
            sample: the inputs of the bundle.
            cleaned: the outputs of the cleaned model, and their judgement.
            tested: the bundle; None if nothing of it can be looked into.
        """
        compared = compare(actual, expected, tolerances)
        if compared.passed:
            return compared
        cleaned_outputs, passes = cleaned
        judged = self._judge("cleaned", self.cleaned, tolerances).judge(actual, cleaned_outputs, sample, tested)
        device, earlier = ({known.name: known for known in comparison.outputs} for comparison in (judged, passes))
        merged = (
            _merged(output, earlier.get(output.name), device.get(output.name), actual, expected)
            for output in compared.outputs
        )
        return Comparison(tuple(merged))

    def from_outside(
        self, compared: Comparison, expected: Values, original_sample: Values, why: str | None = None
    ) -> Comparison:
        """Return outputs that differ as not determined, if the reference moves as far and nothing inside is compared.

        Args:
            why: why that is so; default: `unexamined`.
        """
        unexamined = why or self.unexamined
        if unexamined is None or not compared.differs:
            return compared
        judge = self._judge("original", self.original, Tolerances())
        return judge.from_outside(compared, expected, original_sample, unexamined)

    def moves(self, expected: Values, original_sample: Values) -> dict[str, OutputComparison]:
        """Return how far each output of the reference moves by itself, by name."""
        return self._judge("original", self.original, Tolerances()).moves(original_sample, expected)

    @property
    def unexamined(self) -> str | None:
        """The reason why choices and nodes could not be looked at, for the differences judged last, otherwise None."""
        return next((judge.unexamined for judge in self._judges.values() if judge.unexamined is not None), None)

    def _judge(self, name: str, model: ir.Model, tolerances: Tolerances) -> Judge:
        if name not in self._judges:
            name_nodes(Scope(model, model.graph))
            session = self.session if model is self.original else None
            self._judges[name] = Judge(model, tolerances, self.epsilon, session)
        self._judges[name].tolerances = tolerances
        return self._judges[name]


def of_widened(compared: Comparison, actual: Values, cleaned: ir.Model, sample: Values) -> Comparison:
    """Return outputs that differ as not determined, if they are those of the model in float32, or differ by its moves.

    Args:
        compared: the program's outputs against the original's.
        actual: the program's outputs.
        cleaned: the cleaned model, which computes in 16 bits.
        sample: its inputs.
    """
    wide = cleaned.clone()
    ConvertPrecision(to="fp32").run(wide, Context())
    judge = Judge(wide, Tolerances())
    try:
        right = Reference(wide).run(sample)
        judged = judge.judge(actual, right, sample, None)
    except BridgeError:
        return compared
    judged = judge.from_outside(judged, right, sample, _WIDENED)
    same = {output.name for output in judged.outputs if not output.differs}
    return Comparison(
        tuple(
            replace(output, undetermined=_WIDENED) if output.differs and output.name in same else output
            for output in compared.outputs
        )
    )


def _merged(
    whole: OutputComparison,
    passes: OutputComparison | None,
    device: OutputComparison | None,
    actual: Values,
    expected: Values,
) -> OutputComparison:
    """Return the judgement of an output from those of the passes and of MIGraphX."""
    if whole.passed or passes is None or device is None or passes.differs or device.differs:
        return whole
    if device.undetermined is not None or passes.undetermined is not None:
        error = device.given_choices if device.undetermined is not None else passes.given_choices
        return replace(whole, undetermined=device.undetermined or passes.undetermined, given_choices=error)
    name = whole.name
    both = [judged.tolerance for judged in (passes, device) if judged.tolerance is not None]
    if not both or name not in expected:
        return whole
    # one of them may be that of steps, if numbers next to a tie were rounded to either side
    limit = PartialTolerance(max(tolerance.rtol for tolerance in both), max(tolerance.atol for tolerance in both))
    return compare({name: actual[name]}, {name: expected[name]}, Tolerances(named={name: limit})).outputs[0]
