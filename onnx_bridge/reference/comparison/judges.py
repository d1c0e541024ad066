"""The judgement of a check: the cleaned model against the original, and the bundle against both.

    original ─ on ONNX Runtime ─┐ cleaned leg: choices and nodes by the names that both models have
    cleaned  ─ on ONNX Runtime ─┤
    bundle   ─ on MIGraphX ─────┘ device leg: choices and nodes of the cleaned model

A difference of the bundle is not one of faults only where neither a pass nor MIGraphX makes one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.values import Value
from onnx_bridge.reference.comparison.choices import cut
from onnx_bridge.reference.comparison.compare import Comparison, OutputComparison, compare
from onnx_bridge.reference.comparison.judgement import Judge, Tested
from onnx_bridge.reference.comparison.tolerances import PartialTolerance, Tolerances
from onnx_bridge.reference.reference import Reference
from onnx_bridge.reference.unfolded import unfolded
from passes.graphs import lineage
from passes.graphs.scopes import Scope, name_nodes

Values = Mapping[str, Value]


@dataclass(frozen=True)
class InsideModel:
    """The values inside a model on ONNX Runtime.

    Integers that a pass shifted with their zero point are there by their earlier name, as they were before.

    Attributes:
        model: the model.
        sample: its inputs, where they are not those of the reference: frozen ones are no inputs.
    """

    model: ir.Model
    sample: Values | None = None

    @cached_property
    def _unfolded(self) -> ir.Model:
        return unfolded(self.model)

    @cached_property
    def names(self) -> Collection[str]:
        """The tensors of its main graph."""
        tensors = (each for each in self._made if each.type is None or isinstance(each.type, ir.TensorType))
        return frozenset((*(str(each.name) for each in tensors), *self._shifted))

    @property
    def _made(self) -> Iterator[ir.Value]:
        return (value for node in self._unfolded.graph for value in node.outputs if value.name)

    @cached_property
    def _shifted(self) -> Mapping[str, tuple[str, int]]:
        """The values that were shifted, with the offset, by their earlier names."""
        shifts = ((value, lineage.shift_of(value)) for value in self._made)
        return {shift[0]: (str(value.name), shift[1]) for value, shift in shifts if shift is not None}

    def values(self, sample: Values, names: Sequence[str]) -> Values:
        """Some of its values, and its outputs; raises InputError."""
        outputs = [str(value.name) for value in self._unfolded.graph.outputs]
        part = cut(self._unfolded, {}, [*outputs, *(self._shifted.get(name, (name, 0))[0] for name in names)])
        inputs = [str(value.name) for value in part.graph.inputs if not value.is_initializer()]
        given = sample if self.sample is None else self.sample
        found = Reference(part).run({name: given[name] for name in inputs})
        values = dict(zip((str(value.name) for value in part.graph.outputs), found.values(), strict=True))
        for name in self._shifted.keys() & set(names):
            mine, offset = self._shifted[name]
            array = values[mine]
            assert isinstance(array, np.ndarray)
            values[name] = lineage.unshifted(array, offset)
        return values


@dataclass
class Judges:
    """Judges the differences of both legs of a check.

    Args:
        original: the reference.
        cleaned: the cleaned model.
        epsilon: the unit in the last place of 1.0 of what is computed; 0 where it is that of the dtypes.
        session: of the original, where there is one.
    """

    original: ir.Model
    cleaned: ir.Model
    epsilon: float = 0.0
    session: Reference | None = None
    _judges: dict[str, Judge] = field(default_factory=dict)

    def of_cleaned(
        self, found: Values, expected: Values, sample: Values, original_sample: Values, tolerances: Tolerances
    ) -> Comparison:
        """The cleaned model's outputs against the original's."""
        judge = self._judge("original", self.original, tolerances)
        return judge.judge(found, expected, original_sample, InsideModel(self.cleaned, sample))

    def of_device(
        self,
        found: Values,
        expected: Values,
        sample: Values,
        cleaned: tuple[Values, Comparison],
        tested: Tested | None,
        tolerances: Tolerances,
    ) -> Comparison:
        """A bundle's outputs against the original's.

        Args:
            found: the bundle's outputs.
            expected: the original's.
            sample: the inputs of the bundle.
            cleaned: the outputs of the cleaned model, and their judgement.
            tested: the bundle.
            tolerances: of what the bundle computes.
        """
        compared = compare(found, expected, tolerances)
        if compared.passed:
            return compared
        outputs, passes = cleaned
        judged = self._judge("cleaned", self.cleaned, tolerances).judge(found, outputs, sample, tested)
        mine, earlier = ({each.name: each for each in one.outputs} for one in (judged, passes))
        return Comparison(
            tuple(
                _merged(each, earlier.get(each.name), mine.get(each.name), found, expected) for each in compared.outputs
            )
        )

    def moves(self, expected: Values, original_sample: Values) -> dict[str, OutputComparison]:
        """How far each output of the reference moves by itself."""
        return self._judge("original", self.original, Tolerances()).moves(original_sample, expected)

    @property
    def unexamined(self) -> str | None:
        """Why choices and nodes could not be looked at, for the differences judged last; None if they were."""
        return next((each.unexamined for each in self._judges.values() if each.unexamined is not None), None)

    def _judge(self, name: str, model: ir.Model, tolerances: Tolerances) -> Judge:
        if name not in self._judges:
            name_nodes(Scope(model, model.graph))
            session = self.session if model is self.original else None
            self._judges[name] = Judge(model, tolerances, self.epsilon, session)
        self._judges[name].tolerances = tolerances
        return self._judges[name]


def _merged(
    whole: OutputComparison,
    passes: OutputComparison | None,
    device: OutputComparison | None,
    found: Values,
    expected: Values,
) -> OutputComparison:
    """The judgement of an output, from those of the passes and of MIGraphX."""
    if whole.passed or passes is None or device is None or passes.differs or device.differs:
        return whole
    if device.undetermined is not None or passes.undetermined is not None:
        error = device.given_choices if device.undetermined is not None else passes.given_choices
        return replace(whole, undetermined=device.undetermined or passes.undetermined, given_choices=error)
    both = [each.tolerance for each in (passes, device) if each.tolerance is not None]
    if not both or whole.name not in expected:
        return whole
    # one of them may be that of steps, where numbers next to a tie were rounded to either side
    limit = PartialTolerance(max(each.rtol for each in both), max(each.atol for each in both))
    pair = {whole.name: found[whole.name]}, {whole.name: expected[whole.name]}
    (again,) = compare(*pair, Tolerances(named={whole.name: limit})).outputs
    return again
