"""From a model that fails on MIGraphX to the few nodes of it that fail.

Not every node with wrong outputs matters: a mask of −3.4e38 may become −65504, and softmax makes 0 of both. So
MIGraphX's values of the nodes that were found are put into the model on ONNX Runtime. Where its outputs stay correct,
the nodes are excluded, and the search continues without them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from onnx_bridge.core.countdown import Countdown
from onnx_bridge.core.delta_debug import minimal_interval
from onnx_bridge.core.progress import Progress
from onnx_bridge.parity.submodels.submodels import Submodel, SubmodelExtractor
from onnx_bridge.parity.symptoms.symptom import Symptom, SymptomKind
from onnx_bridge.parity.symptoms.symptom_detector import SymptomDetector
from onnx_bridge.reference.comparison.compare import compare
from passes.core.doubts import Doubts
from passes.graphs.traversal import ancestors_of_last

_MAX_EXCLUDED = 8
"""The number of times that the search continues after nodes whose wrong outputs do not matter."""


@dataclass
class NodeLocalizer:
    """Tests submodels of a model for the symptom that the ``whole`` model shows, each at most once."""

    extractor: SubmodelExtractor
    detector: SymptomDetector
    symptom: Symptom
    whole: Sequence[Submodel]
    _known: dict[tuple[ir.Node, ...], Symptom | bool | None] = field(default_factory=dict, init=False)
    _countdown: Countdown | None = field(default=None, init=False)

    def shows(self, nodes: Sequence[ir.Node]) -> Symptom | bool | None:
        """Return the symptom of the submodel of these nodes; False without one, None if it differs or cannot be cut."""
        key = tuple(nodes)
        if key in self._known:
            return self._known[key]
        doubts, submodels = Doubts(), self.extractor.extract(key)
        symptom = self.detector.detect(submodels)
        if self._countdown is not None:
            self._countdown.step()
        shown: Symptom | bool | None = False if submodels and symptom is None else None
        if symptom is not None and symptom.matches(self.symptom):
            shown = symptom
        if not doubts or shown:
            self._known[key] = shown
        return shown

    def localize(self, tell: Progress) -> tuple[list[ir.Node], Symptom | None]:
        """Return the shortest run of nodes that shows the symptom, and its symptom; all nodes and None if none does.

        Nodes that nothing in the run depends on are left out; ``tell`` gets the time that is left for a single node.
        """
        steps = (len(self.extractor.groups) - 1).bit_length() + 1
        self._countdown = Countdown(tell, "which nodes", steps, step_name="submodel")
        nodes, symptom = first = self._search(frozenset())
        excluded: set[ir.Node] = set()
        for _ in range(_MAX_EXCLUDED):
            if symptom is None or self.matters(symptom):
                return nodes, symptom
            excluded |= set(nodes)
            rest = [node for node in self.extractor.order if node not in excluded]
            if not rest or not isinstance(self.shows(rest), Symptom):
                break
            nodes, symptom = self._search(excluded)
        return first

    def matters(self, symptom: Symptom) -> bool:
        """Return whether the wrong outputs of a submodel make the outputs of the model wrong."""
        if symptom.kind is not SymptomKind.WRONG or symptom.outputs is None or symptom.sample is None:
            return True
        outputs = self.extractor.outputs_with(symptom.outputs, symptom.sample)
        names = [str(value.name) for value in self.extractor.model.graph.outputs]
        right = self.extractor.values(names)[symptom.sample]
        return outputs is None or not compare(outputs, right, self.detector.tolerances).passed

    def _search(self, excluded: Collection[ir.Node]) -> tuple[list[ir.Node], Symptom | None]:
        groups = self.extractor.groups

        def nodes_of(start: int, stop: int) -> list[ir.Node]:
            return [node for group in groups[start:stop] for node in group if node not in excluded]

        def fails(start: int, stop: int) -> bool | None:
            nodes = nodes_of(start, stop)
            symptom = self.shows(nodes) if nodes else False
            return symptom if symptom is None or isinstance(symptom, bool) else True

        nodes = nodes_of(*minimal_interval(len(groups), fails)) if len(groups) > 1 else nodes_of(0, len(groups))
        related = ancestors_of_last(nodes)
        if len(related) < len(nodes) and isinstance(self.shows(related), Symptom):
            nodes = related
        symptom = self.shows(nodes)
        return nodes, symptom if isinstance(symptom, Symptom) else None
