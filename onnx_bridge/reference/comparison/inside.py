"""The values inside a model, which can be read and replaced: choices and nodes are examined by them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import onnx_ir as ir

from onnx_bridge.core.values import Value, as_array
from onnx_bridge.reference.reference import Reference
from onnx_bridge.reference.unfolded import unfolded
from passes.graphs.lineage import shift_of, unshifted
from passes.graphs.replacement import remove_nodes
from passes.graphs.traversal import with_nested
from passes.probing.partition import needed

Values = Mapping[str, Value]

COMPUTED = "/computed"
"""The end of the name of what a node computes, if a given value takes its place."""


class Tested(Protocol):
    """The side that is compared with the reference."""

    @property
    def names(self) -> Collection[str]:
        """The values inside that it can give; each means the same as the reference's value of that name."""

    def values(self, sample: Values, names: Sequence[str]) -> Values:
        """Return some values, and the outputs; raise BridgeError if it cannot give them."""


@dataclass
class OpenModel:
    """A model on ONNX Runtime, whose loops and branches are in its main graph to the extent possible.

    Args:
        model: the model, which is not changed.
        session: the model's session, if there is one.
    """

    model: ir.Model
    session: Reference | None = None

    @cached_property
    def unfolded(self) -> ir.Model:
        return unfolded(self.model)

    @property
    def graph(self) -> ir.Graph:
        return self.unfolded.graph

    @cached_property
    def outputs(self) -> list[str]:
        return [str(value.name) for value in self.model.graph.outputs]

    def run(self, sample: Values) -> Values:
        """Return the outputs of the model as it is; raises as `Reference.run`."""
        self.session = self.session or Reference(self.model)
        return self.session.run(sample)

    def values(self, names: Sequence[str], values: Values, replaced: Collection[str] = ()) -> dict[str, Value]:
        """Return some values by name; raises as `Reference.run`.

        Args:
            names: the values wanted, those that end in `COMPUTED` included.
            values: the inputs of the model, and the values that are replaced.
            replaced: the names of values that are given, and not computed.
        """
        part = cut(self.unfolded, {name: values[name] for name in replaced}, names)
        inputs = [str(value.name) for value in part.graph.inputs if not value.is_initializer()]
        results = Reference(part).run({name: values[name] for name in inputs}).values()
        return dict(zip((str(value.name) for value in part.graph.outputs), results, strict=True))


@dataclass(frozen=True)
class InsideModel:
    """A model on ONNX Runtime as the side that is tested.

    Integers that a pass shifted with their zero point have their earlier name and value.

    Attributes:
        sample: its inputs, if they differ from the reference's: frozen ones are no inputs.
    """

    model: ir.Model
    sample: Values | None = None

    @cached_property
    def _open(self) -> OpenModel:
        return OpenModel(self.model)

    @cached_property
    def names(self) -> Collection[str]:
        """The tensors of its main graph."""
        tensors = (value for value in self._computed if value.type is None or isinstance(value.type, ir.TensorType))
        return frozenset((*(str(value.name) for value in tensors), *self._shifted))

    @property
    def _computed(self) -> Iterator[ir.Value]:
        return (value for node in self._open.graph for value in node.outputs if value.name)

    @cached_property
    def _shifted(self) -> Mapping[str, tuple[str, int]]:
        """The names and offsets of the values that were shifted, by their earlier names."""
        shifts = ((value, shift_of(value)) for value in self._computed)
        return {shift[0]: (str(value.name), shift[1]) for value, shift in shifts if shift is not None}

    def values(self, sample: Values, names: Sequence[str]) -> Values:
        """Return some values, and the outputs; raises InputError."""
        outputs = [str(value.name) for value in self._open.graph.outputs]
        present = [self._shifted.get(name, (name, 0))[0] for name in names]
        values = self._open.values([*outputs, *present], sample if self.sample is None else self.sample)
        for name in self._shifted.keys() & set(names):
            now, offset = self._shifted[name]
            values[name] = unshifted(as_array(values[now]), offset)
        return values


def cut(model: ir.Model, given: Mapping[str, Value], outputs: Sequence[str]) -> ir.Model:
    """Return a model in which some values are inputs.

    Args:
        model: the model, which is not changed; the new one shares its tensors.
        given: values of the main graph, by name. What their nodes compute is called ``NAME/computed``.
        outputs: names of values, `COMPUTED` included.
    """
    other = model.clone()
    graph = other.graph
    by_name = {str(value.name): value for node in graph for value in node.outputs if value.name}
    graph.outputs.clear()
    for name, replacement in given.items():
        old = by_name[name]
        old.name = name + COMPUTED
        new = ir.Value(name=name, type=old.type, shape=old.shape)
        if isinstance(replacement, np.ndarray) and replacement.dtype.kind not in "OUST":
            new.type = ir.TensorType(ir.DataType.from_numpy(replacement.dtype))
            new.shape = ir.Shape(replacement.shape)
        old.replace_all_uses_with(new)
        graph.inputs.append(new)
        by_name[old.name], by_name[name] = old, new
    by_name |= {str(value.name): value for value in graph.inputs}
    graph.outputs.extend(by_name[name] for name in dict.fromkeys(outputs))
    alive = needed(graph)
    remove_nodes(graph, [node for node in reversed(graph) if node not in alive])
    used = {value for node in with_nested(graph) for value in node.inputs}
    for value in list(graph.inputs):
        if value not in used and not value.is_graph_output():
            graph.inputs.remove(value)
    return other
