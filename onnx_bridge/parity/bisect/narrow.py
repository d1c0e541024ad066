"""From a model that fails on MIGraphX to the few nodes of it that do.

Not every node that computes something else matters: a mask of −3.4e38 may become −65504, and softmax makes 0 of both.
So what MIGraphX makes of nodes that were found is put into the model on ONNX Runtime. Where the outputs stay right, the
nodes are innocent, and the search goes on without them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from onnx_bridge.core.delta_debug import minimal_interval
from onnx_bridge.parity.pieces import Piece, Pieces
from onnx_bridge.parity.trial import Device, Kind, Symptom
from onnx_bridge.reference.compare import compare

_INNOCENTS = 8
"""How often the search goes on after nodes that are wrong, but do not matter."""


@dataclass
class Narrowing:
    """Tries pieces of a model for one symptom, each no more than once.

    Args:
        pieces: the model.
        device: where the pieces are tried.
        symptom: what is wrong with the whole.
        whole: what it was given.
    """

    pieces: Pieces
    device: Device
    symptom: Symptom
    whole: Sequence[Piece]
    _known: dict[tuple[ir.Node, ...], Symptom | bool | None] = field(default_factory=dict, init=False)

    def shows(self, nodes: Sequence[ir.Node]) -> Symptom | bool | None:
        """The symptom of the piece that these nodes are.

        Returns:
            False where nothing is wrong with it; None where something else is, or where it cannot be cut out.
        """
        key = tuple(nodes)
        if key not in self._known:
            pieces = self.pieces.of(key)
            found = self.device.symptom(pieces)
            alike = found is not None and found.is_like(self.symptom)
            self._known[key] = found if alike else False if pieces and found is None else None
        return self._known[key]

    def narrow(self) -> tuple[list[ir.Node], Symptom | None]:
        """The smallest row of nodes that shows the symptom, without those that nothing in it depends on.

        Returns:
            The nodes, in order, and what is wrong with them alone; all, and None, where no piece shows it.
        """
        nodes, found = harmless = self._search(frozenset())
        innocent: set[ir.Node] = set()
        for _ in range(_INNOCENTS):
            if found is None or self.matters(found):
                return nodes, found
            innocent |= set(nodes)
            rest = [node for node in self.pieces.order if node not in innocent]
            if not rest or not isinstance(self.shows(rest), Symptom):
                break
            nodes, found = self._search(innocent)
        return harmless

    def matters(self, found: Symptom) -> bool:
        """Whether the outputs of the model are wrong because of a piece of it that is."""
        if found.kind is not Kind.WRONG or found.outputs is None or found.sample is None:
            return True
        outputs = self.pieces.consequence(found.outputs, found.sample)
        names = [str(value.name) for value in self.pieces.model.graph.outputs]
        right = self.pieces.values(names)[found.sample]
        return outputs is None or not compare(outputs, right, self.device.tolerances).passed

    def _search(self, innocent: Collection[ir.Node]) -> tuple[list[ir.Node], Symptom | None]:
        units = self.pieces.units

        def nodes_of(start: int, stop: int) -> list[ir.Node]:
            return [node for unit in units[start:stop] for node in unit if node not in innocent]

        def fails(start: int, stop: int) -> bool | None:
            nodes = nodes_of(start, stop)
            found = self.shows(nodes) if nodes else False
            return found if found is None or isinstance(found, bool) else True

        nodes = nodes_of(*minimal_interval(len(units), fails)) if len(units) > 1 else nodes_of(0, len(units))
        related = _leading_to(nodes)
        if len(related) < len(nodes) and isinstance(self.shows(related), Symptom):
            nodes = related
        found = self.shows(nodes)
        return nodes, found if isinstance(found, Symptom) else None


def _leading_to(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Of some nodes the last, and those that it depends on."""
    inside, found, pending = set(nodes), set(), list(nodes[-1:])
    while pending:
        node = pending.pop()
        found.add(node)
        pending += [each for each in node.predecessors() if each in inside and each not in found]
    return [node for node in nodes if node in found]
