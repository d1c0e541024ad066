"""From a model that fails on MIGraphX to the few nodes of it that do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from onnx_bridge.halving import smallest
from onnx_bridge.parity.pieces import Pieces
from onnx_bridge.parity.trial import Device, Symptom


@dataclass
class Narrowing:
    """Tries pieces of a model for one symptom, each no more than once.

    Args:
        pieces: the model.
        device: where the pieces are tried.
        symptom: what is wrong with the whole.
    """

    pieces: Pieces
    device: Device
    symptom: Symptom
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
        units = self.pieces.units

        def nodes_of(start: int, stop: int) -> list[ir.Node]:
            return [node for unit in units[start:stop] for node in unit]

        def fails(start: int, stop: int) -> bool | None:
            found = self.shows(nodes_of(start, stop))
            return found if found is None or isinstance(found, bool) else True

        nodes = nodes_of(*smallest(len(units), fails)) if len(units) > 1 else nodes_of(0, len(units))
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
