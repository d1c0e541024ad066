"""Chaos: the reference itself moves by as much as an output differs, and every node is right by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.errors import BridgeError
from onnx_bridge.core.values import Value, as_array, flat
from onnx_bridge.reference.comparison.choices import chooses, same_choice
from onnx_bridge.reference.comparison.compare import Comparison, OutputComparison, compare
from onnx_bridge.reference.comparison.conditioning import SEEDS, coordinate_error, nudged
from onnx_bridge.reference.comparison.inside import COMPUTED, OpenModel, Tested, Values, cut
from onnx_bridge.reference.comparison.rounding import is_rounding
from onnx_bridge.reference.comparison.tolerances import Tolerances, is_float
from passes.graphs.dependencies import fixed_values
from passes.graphs.matching import origin
from passes.graphs.scopes import Scope
from passes.graphs.traversal import is_used
from passes.probing.partition import needed

_MOST_BYTES = 4 << 30
"""The most bytes of all values of a model whose nodes are examined one by one."""


@dataclass
class MovedReference:
    """The reference on inputs that are moved by one unit in the last place; results for the last sample are kept.

    If no input is a float, the rows of tables that the inputs look up are moved. What Resize interpolates moves, too.
    """

    opened: OpenModel
    epsilon: float
    _sample: Values | None = field(default=None, init=False)
    _rows: Values | None = field(default=None, init=False)
    _resized: Values | None = field(default=None, init=False)
    _runs: list[Values] = field(default_factory=list, init=False)

    def can_move(self, sample: Values) -> bool:
        return _has_floats(sample) or bool(self._looked_up)

    def inputs(self, sample: Values, seed: int) -> dict[str, Value]:
        """Return what is moved, by name: inputs, or rows of tables."""
        self._begin(sample)
        if _has_floats(sample) or not self._looked_up:
            return nudged(sample, seed, self.epsilon)
        if self._rows is None:
            self._rows = self.opened.values(self._looked_up, sample)
        return nudged(self._rows, seed, self.epsilon)

    def against(self, expected: Values, sample: Values, count: int = len(SEEDS)) -> list[Comparison]:
        """Return the comparisons of moved outputs with those of inputs as they are."""
        self._begin(sample)
        for seed in SEEDS[len(self._runs) : count]:
            moved, reference = self.inputs(sample, seed), self.reference(sample, seed)
            if moved.keys() <= sample.keys():
                self._runs.append(reference.run(moved))
            else:
                self._runs.append(reference.values(self.opened.outputs, {**sample, **moved}, moved.keys()))
        return [compare(outputs, expected, Tolerances()) for outputs in self._runs[:count]]

    def reference(self, sample: Values, seed: int) -> OpenModel:
        """Return the reference with results of Resize that move as its coordinates do."""
        self._begin(sample)
        nodes = [node for node in self.opened.graph if _interpolates(node)]
        if not nodes:
            return self.opened
        if self._resized is None:
            known = [value for node in nodes for value in (node.inputs[0], node.outputs[0]) if value is not None]
            self._resized = self.opened.values([str(value.name) for value in known], sample)
        return OpenModel(_with_moved_coordinates(self.opened.unfolded, self._resized, seed))

    def _begin(self, sample: Values) -> None:
        if self._sample is not sample:
            self._sample, self._rows, self._resized, self._runs = sample, None, None, []

    @cached_property
    def _looked_up(self) -> list[str]:
        """The floats that a model of tokens begins with: what its inputs look up in tables."""
        graph = self.opened.graph
        fixed, alive = fixed_values(graph), needed(graph)
        rows = []
        for node in graph:
            table = node.inputs[0] if node.op_type == "Gather" and node in alive else None
            if table is None or node.outputs[0] in fixed or not _is_table(table):
                continue
            if table.is_initializer() or table in fixed:
                rows.append(str(node.outputs[0].name))
        return rows


def _interpolates(node: ir.Node) -> bool:
    """Return whether a node is a Resize that computes numbers between its input's, which is no constant."""
    is_resize = node.op_type in ("Resize", "Upsample") and node.attributes.get_string("mode", "nearest") != "nearest"
    return is_resize and node.inputs[0] is not None and not node.inputs[0].is_initializer()


def _with_moved_coordinates(model: ir.Model, values: Values, seed: int) -> ir.Model:
    """Return a model that adds to each result of Resize what a move of the coordinates makes of it.

    Args:
        model: the model, which is not changed.
        values: what Resize is given, and its results, by name.
        seed: the seed of the signs.
    """
    other = model.clone()
    scope = Scope(other, other.graph)
    for node in filter(_interpolates, list(other.graph)):
        assert node.inputs[0] is not None
        (result,) = node.outputs
        before, after = (as_array(values[str(value.name)]) for value in (node.inputs[0], result))
        if not is_float(after.dtype):
            continue
        error = ir.tensor(coordinate_error(after, before.shape, seed))
        add = ir.node("Add", [result, scope.new_constant(other.graph, error, f"{result.name}/error")])
        (moved,) = add.outputs
        moved.type, moved.shape = result.type, result.shape
        result.replace_all_uses_with(moved, replace_graph_outputs=True)
        add.replace_input_with(0, result)
        moved.name, result.name = result.name, f"{result.name}/resized"
        other.graph.insert_after(node, add)
    return other


def before_bounds(
    opened: OpenModel, epsilon: float, names: Sequence[str], tested: Tested, sample: Values
) -> tuple[list[OutputComparison], list[Comparison]] | None:
    """Return how the operands of outputs that are bounded differ, and how far they move by themselves.

    Softmax of numbers that are far apart is 1 and 0: it shows no move until the largest is another one.

    Args:
        names: outputs; the result is None unless all of them are of Softmax or the like, with known operands.
    """
    by_name = {str(value.name): value for value in opened.graph.outputs}
    operands = list(dict.fromkeys(_unbounded(by_name.get(name)) for name in names))
    if not all(operand in tested.names for operand in operands):
        return None
    before = OpenModel(cut(opened.unfolded, {}, operands))
    expected, found = before.run(sample), tested.values(sample, operands)
    compared = compare({name: found[name] for name in operands}, expected, Tolerances())
    differing = [output for output in compared.outputs if not output.passed]
    return differing, MovedReference(before, epsilon).against(expected, sample)


def _unbounded(output: ir.Value | None) -> str:
    """Return the operand of the bounded function that an output is computed by, perhaps cast or shaped since.

    Empty if there is none.
    """
    node = origin(output, lambda node: node.op_type in ("Cast", "Identity", "Reshape", "Squeeze", "Flatten"))
    operand = node.inputs[0] if node is not None and node.op_type in ("Softmax", "Sigmoid", "Tanh") else None
    return "" if operand is None else str(operand.name)


def wrong_node(
    opened: OpenModel, tested: Tested, sample: Values, actual: Values, tolerances: Tolerances
) -> tuple[str | None, str | None]:
    """Return the first node that is wrong for the other side's own values, and why none could be looked at.

    The other side must have the outputs that it was compared with, or the fault has disappeared with fetching.

    Args:
        opened: the reference.
        tested: the other side.
        sample: the inputs.
        actual: the other side's outputs.
        tolerances: the tolerances of the outputs.
    """
    graph = opened.graph
    fixed, alive = fixed_values(graph), needed(graph)
    results = [
        (node, value)
        for node in graph
        if node in alive and not fixed.issuperset(node.outputs)
        for value in node.outputs
        if value.name in tested.names and is_used(value)
    ]
    if sum(_bytes(value) for _, value in results) > _MOST_BYTES:
        return None, "all values together take too much memory"
    names = [str(value.name) for _, value in results]
    try:
        values = {**sample, **tested.values(sample, names)}
        if not compare({name: values[name] for name in actual}, actual, tolerances).passed:
            return None, "the outputs change when values inside are fetched"
        computed = opened.values([name + COMPUTED for name in names], values, names)
    except (BridgeError, KeyError) as error:
        return None, str(error)
    for (node, _), name in zip(results, names, strict=True):
        value, right = values[name], computed[name + COMPUTED]
        if chooses(node) and same_choice(node, value, right):
            continue
        if compare({name: value}, {name: right}, Tolerances()).passed:
            continue
        if not is_rounding(node, value, right, opened.unfolded, values):
            return f"{node.op_type} {node.name}", None
    return None, None


def _has_floats(sample: Values) -> bool:
    return any(is_float(array.dtype) for array in flat(sample).values())


def _is_table(value: ir.Value) -> bool:
    dtype = value.const_value.dtype if value.const_value is not None else value.dtype
    return dtype is not None and dtype.is_floating_point()


def _bytes(value: ir.Value) -> int:
    """Return the bytes of a value; 0 if its shape is not known, and unknown sizes count as 1."""
    if value.dtype is None or value.shape is None:
        return 0
    sizes = [dim if isinstance(dim, int) else 1 for dim in value.shape]
    return int(np.prod(sizes, dtype=np.int64)) * value.dtype.bitwidth // 8
