"""The judgement of a difference: the other side is wrong, or the reference does not determine the result.

Outputs that differ from the reference's by more than their tolerance are wrong, unless one of these shows otherwise:

- *rounding*: the difference is a rounding of what the output was computed from
(`onnx_bridge.reference.comparison.rounding`);
- *ties*: given the other side's choices the reference agrees (`onnx_bridge.reference.comparison.choices`). A model
that rounds to
  steps still agrees where outputs differ by no more than steps do; else the outputs are not determined;
- *chaos*: the reference itself moves as far when its inputs move by one unit in the last place
  (`onnx_bridge.reference.comparison.conditioning`), and every node is right by itself: fed with the other side's own
  values, the reference computes the same. Then the outputs are not determined.

Both of the latter look at every place where a fault could be. A fault behind a tie, or in a chaotic model, is found.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.errors import BridgeError
from onnx_bridge.core.values import Value, flat
from onnx_bridge.reference.comparison.choices import (
    COMPUTED,
    Examination,
    GivenChoices,
    choices,
    chooses,
    cut,
    rounds,
    same_choice,
)
from onnx_bridge.reference.comparison.compare import Comparison, OutputComparison, compare, tolerances_of
from onnx_bridge.reference.comparison.computed_precision import Inside, computed_precisions, output_presets
from onnx_bridge.reference.comparison.conditioning import SEEDS, explains, nudged
from onnx_bridge.reference.comparison.rounding import floors
from onnx_bridge.reference.comparison.tolerances import Tolerances, is_float
from onnx_bridge.reference.reference import Reference
from onnx_bridge.reference.unfolded import unfolded
from passes.graphs.dependencies import fixed_values
from passes.probing.partition import needed

Values = Mapping[str, Value]

_MOST_BYTES = 4 << 30
"""Of all values of a model, for each of its nodes to be examined."""


class Tested(Protocol):
    """The side that is compared with the reference."""

    @property
    def names(self) -> Collection[str]:
        """The values inside that it can give; they mean the same as those of the reference of the same name."""

    def values(self, sample: Values, names: Sequence[str]) -> Values:
        """Some values, the outputs among them; raises BridgeError where it cannot give them."""


@dataclass
class Judge:
    """Judges differences from a reference.

    Args:
        model: of the reference; it is not changed.
        tolerances: of what is compared.
        epsilon: as for `onnx_bridge.reference.comparison.conditioning.nudged`.
        session: of the model, where there is one.

    Attributes:
        unexamined: why choices and nodes could not be looked at, for the differences judged last; None if they were.
    """

    model: ir.Model
    tolerances: Tolerances
    epsilon: float = 0.0
    session: Reference | None = None
    unexamined: str | None = field(default=None, init=False)
    _moved: list[tuple[Values, Sequence[Values]]] = field(default_factory=list)
    _rows: list[tuple[Values, Values]] = field(default_factory=list)

    def judge(self, found: Values, expected: Values, sample: Values, tested: Tested | None) -> Comparison:
        """Compare outputs with the reference's, and judge those that differ.

        Args:
            found: the other side's outputs.
            expected: the reference's.
            sample: the inputs.
            tested: the other side; None where nothing of it can be looked into.
        """
        compared = compare(found, expected, self.tolerances)
        self.unexamined = None
        if compared.passed:
            return compared
        tolerances = self._with_floors(compared, sample)
        compared = compare(found, expected, tolerances)
        self.unexamined = "nothing inside of it is known" if tested is None else None
        if compared.passed or tested is None or _are_of_another_kind(found, expected):
            return compared
        try:
            given = self._given_choices(found, sample, tested, tolerances)
            if given.problem is None:
                return self._tied(compared, found, expected, given)
            why = self._chaos(compared, found, sample, expected, tested)
        except BridgeError as error:  # the reference need not take the inputs that it is given here
            self.unexamined, why = str(error), None
        return compared if why is None else _not_determined(compared, why)

    def moves(self, sample: Values, expected: Values) -> dict[str, OutputComparison]:
        """The outputs with inputs moved by one unit in the last place, against those without; none if it fails, or if
        no input is a float and none is a place in a table of floats.
        """
        if not _has_floats(sample) and not self._looked_up:
            return {}
        try:
            moved = self._run_moved(sample, 1)[0]
        except BridgeError:  # it need not take them
            return {}
        return {each.name: each for each in compare(moved, expected, Tolerances()).outputs}

    def _with_floors(self, compared: Comparison, sample: Values) -> Tolerances:
        names = [each.name for each in compared.outputs if not each.passed and each.dtype == "float32"]
        try:
            found = floors(self._inside, names, lambda wanted: self._values(sample, wanted)) if names else {}
        except BridgeError:
            return self.tolerances
        return replace(self.tolerances, floors={**self.tolerances.floors, **found})

    def _given_choices(self, found: Values, sample: Values, tested: Tested, tolerances: Tolerances) -> GivenChoices:
        """The reference's outputs given the other side's choices."""
        nodes = choices(self._inside, tested.names)
        if not nodes:
            return GivenChoices(problem="nothing in the model chooses")
        looked = Examination(self._inside, nodes)
        try:
            theirs = {**sample, **tested.values(sample, looked.names)}
            instrumented = compare({name: theirs[name] for name in found}, found, tolerances)
            if not instrumented.passed:
                return GivenChoices(problem="its outputs change when its choices are fetched")
            wanted = [*self._outputs, *(name for name in looked.operands if name not in looked.results)]
            ours = self._cut(looked.results, [*wanted, *looked.computed], theirs)
            made = self._cut(looked.names, looked.computed, theirs)
        except (BridgeError, KeyError) as error:
            return GivenChoices(problem=str(error))
        outputs = {name: ours[name] for name in self._outputs}
        comparison = compare(found, outputs, tolerances)
        problem = next((f"{each.name}: {each.reason}" for each in comparison.outputs if not each.passed), None)
        operands = [name for name in looked.operands if name in ours]
        problem = problem or looked.wrong_choice(theirs, made)
        problem = problem or self._disagreement(operands, theirs, ours, looked.results, sample)
        ties = looked.ties(theirs, {**ours, **{name: theirs[name] for name in looked.results}}, sample)
        return GivenChoices(comparison, ties, problem or (None if ties else "no choice differs"))

    def _disagreement(
        self, names: Sequence[str], theirs: Values, ours: Values, given: Sequence[str], sample: Values
    ) -> str | None:
        """The first operand of a choice that differs by more than it can be computed; None if there is none."""
        found, right = ({name: side[name] for name in names} for side in (theirs, ours))
        presets, _ = output_presets(self._precisions, names)
        tolerances = tolerances_of(replace(self.tolerances, inside={**presets, **self.tolerances.inside}), right)
        compared = compare(found, right, tolerances)
        differing = [each for each in compared.outputs if not each.passed]
        if not differing:
            return None
        wanted = [each.name for each in differing]
        right = {name: ours[name] for name in wanted}
        moved = [
            compare(
                self._cut([*given, *moved.keys() - sample.keys()], wanted, {**theirs, **moved}), right, Tolerances()
            )
            for moved in map(functools.partial(self._nudged, sample), SEEDS)
        ]
        for each in differing:
            if not explains(each, [one for run in moved for one in run.outputs if one.name == each.name]):
                return f"{each.name}, which a choice depends on, differs: {each.reason}"
        return None

    def _tied(self, compared: Comparison, found: Values, expected: Values, given: GivenChoices) -> Comparison:
        """The comparison of outputs whose differences are those of ties."""
        steps = compare(found, expected, replace(self.tolerances, preset=self.tolerances.preset or "int8"))
        by_name = {each.name: each for each in steps.outputs}
        first = given.ties[0]
        rounded = all(rounds(tie.operator) for tie in given.ties)
        errors = {} if given.comparison is None else {each.name: each.max_abs for each in given.comparison.outputs}
        outputs = []
        for each in compared.outputs:
            if not each.passed and rounded and by_name[each.name].passed:
                each = by_name[each.name]
            elif not each.passed:
                error = errors.get(each.name)
                agrees = "it agrees" if error is None else f"the largest error is {error:.2g}"
                more = f", and {len(given.ties) - 1} more" if len(given.ties) > 1 else ""
                right = "every node that chooses is right by itself"
                why = f"{first.sentence}{more}; {right}; given the same choices {agrees}"
                each = replace(each, undetermined=why, given_choices=error)
            outputs.append(each)
        return Comparison(tuple(outputs))

    def _chaos(
        self, compared: Comparison, found: Values, sample: Values, expected: Values, tested: Tested
    ) -> str | None:
        """Why outputs are not determined, where the reference moves as far by itself; None if it does not."""
        differing = [each for each in compared.outputs if not each.passed]
        moved = [compare(outputs, expected, Tolerances()) for outputs in self._run_moved(sample, len(SEEDS))]
        for output in differing:
            own = [each for comparison in moved for each in comparison.outputs if each.name == output.name]
            if not explains(output, own):
                return None
        if self._wrong_node(found, sample, tested) is not None:
            return None
        most = max((each.max_abs or 0.0 for comparison in moved for each in comparison.outputs), default=0.0)
        by = f"by {most:.2g}" if most else "to another shape"
        itself = f"the reference itself moves {by} when its inputs move by one unit in the last place"
        return f"{itself}, and every node is right by itself"

    def _wrong_node(self, found: Values, sample: Values, tested: Tested) -> str | None:
        """The first node that is wrong for the other side's own values; None if there is none.

        The other side must have the outputs that it was compared with, or the fault has disappeared with fetching.
        """
        graph = self._inside.graph
        fixed, alive = fixed_values(graph), needed(graph)
        nodes = [node for node in graph if node in alive and not fixed.issuperset(node.outputs)]
        names = [
            str(value.name)
            for node in nodes
            for value in node.outputs
            if value.name in tested.names and (value.uses() or value.is_graph_output())
        ]
        if _bytes(nodes, names) > _MOST_BYTES:
            self.unexamined = "all of its values together take too much memory"
            return self.unexamined
        try:
            theirs = {**sample, **tested.values(sample, names)}
            if not compare({name: theirs[name] for name in found}, found, self.tolerances).passed:
                self.unexamined = "its outputs change when its values are fetched"
                return self.unexamined
            made = self._cut(names, [name + COMPUTED for name in names], theirs)
        except (BridgeError, KeyError) as error:
            self.unexamined = str(error)
            return self.unexamined
        for node in nodes:
            for value in node.outputs:
                name = str(value.name)
                if name not in names:
                    continue
                got, right = theirs[name], made[name + COMPUTED]
                if chooses(node) and same_choice(node, got, right):
                    continue
                if not compare({name: got}, {name: right}, Tolerances()).passed:
                    return f"{node.op_type} {node.name}"
        return None

    def _run_moved(self, sample: Values, count: int) -> Sequence[Values]:
        known = next((outputs for one, outputs in self._moved if one is sample), ())
        if len(known) < count:
            seeds = SEEDS[len(known) : count]
            known = [*known, *(self._run_nudged(self._nudged(sample, seed), sample) for seed in seeds)]
            self._moved = [(sample, known)]
        return known[:count]

    def _run_nudged(self, moved: Values, sample: Values) -> Values:
        if moved.keys() <= sample.keys():
            return self._session.run(moved)
        return self._cut(list(moved), self._outputs, {**sample, **moved})

    def _nudged(self, sample: Values, seed: int) -> Values:
        """Inputs moved by one unit in the last place; if none is a float, the rows of tables that they look up."""
        if _has_floats(sample) or not self._looked_up:
            return nudged(sample, seed, self.epsilon)
        if not any(one is sample for one, _ in self._rows):
            self._rows = [(sample, self._values(sample, self._looked_up))]
        return nudged(self._rows[0][1], seed, self.epsilon)

    def _values(self, sample: Values, names: Sequence[str]) -> Values:
        return self._cut([], names, sample)

    def _cut(self, given: Sequence[str], outputs: Sequence[str], values: Values) -> Values:
        part = cut(self._inside, {name: values[name] for name in given}, outputs)
        inputs = [str(value.name) for value in part.graph.inputs if not value.is_initializer()]
        names = [str(value.name) for value in part.graph.outputs]
        return dict(zip(names, Reference(part).run({name: values[name] for name in inputs}).values(), strict=True))

    @cached_property
    def _inside(self) -> ir.Model:
        return unfolded(self.model)

    @cached_property
    def _precisions(self) -> Mapping[str, Inside]:
        return computed_precisions(self._inside)

    @cached_property
    def _session(self) -> Reference:
        return self.session or Reference(self.model)

    @cached_property
    def _looked_up(self) -> list[str]:
        """The floats that a model of tokens begins with: what it looks up in tables, by its inputs."""
        graph = self._inside.graph
        fixed, alive = fixed_values(graph), needed(graph)
        return [
            str(node.outputs[0].name)
            for node in graph
            if node.op_type == "Gather" and node in alive and node.outputs[0] not in fixed
            if (table := node.inputs[0]) is not None and _is_table(table) and (table.is_initializer() or table in fixed)
        ]

    @cached_property
    def _outputs(self) -> list[str]:
        return [str(value.name) for value in self.model.graph.outputs]


def _has_floats(sample: Values) -> bool:
    return any(is_float(each.dtype) for each in flat(sample).values())


def _is_table(value: ir.Value) -> bool:
    dtype = value.const_value.dtype if value.const_value is not None else value.dtype
    return dtype is not None and dtype.is_floating_point()


def _are_of_another_kind(found: Values, expected: Values) -> bool:
    """Whether an output is missing, extra, or of another dtype: no choice makes it so."""
    one, other = ({name: each.dtype for name, each in flat(values).items()} for values in (found, expected))
    return found.keys() != expected.keys() or any(other.get(name, dtype) != dtype for name, dtype in one.items())


def _bytes(nodes: Sequence[ir.Node], names: Sequence[str]) -> int:
    """The bytes of values, as far as their shapes are known."""
    wanted, total = set(names), 0
    for node in nodes:
        for value in node.outputs:
            if value.name in wanted and value.dtype is not None and value.shape is not None:
                sizes = [dim if isinstance(dim, int) else 1 for dim in value.shape]
                total += int(np.prod(sizes, dtype=np.int64)) * value.dtype.bitwidth // 8
    return total


def _not_determined(compared: Comparison, why: str) -> Comparison:
    return Comparison(tuple(each if each.passed else replace(each, undetermined=why) for each in compared.outputs))
