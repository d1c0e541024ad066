"""The result of a comparison by layer, and the layer at fault."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.reference.comparison.compare import OutputComparison


@dataclass(frozen=True)
class Layer(JsonRecord):
    """One value of the cleaned model.

    Attributes:
        node: the node whose output it is.
        operator: the operator, with its domain unless that is ONNX's own.
        module: the PyTorch module that the node comes from, if the exporter recorded it.
        inputs: the names of the node's inputs.
        runs_on: ``MIGraphX``, or ``ONNX Runtime`` for a host partition.
        cleaning: the cleaned model against the original, on ONNX Runtime; None if the original has no such value.
        accumulated: MIGraphX, from the model's inputs, against ONNX Runtime; None if it could not be computed.
        local: MIGraphX against ONNX Runtime, fed with the same values; None if it could not be computed.
        reason: why ``accumulated`` or ``local`` is missing.
        by: the pass that made the node; empty for a node of the original.
        origins: the nodes of the original that it was made from.
    """

    in_json = ("passed",)

    node: str
    operator: str
    module: str
    tensor: str
    inputs: tuple[str, ...]
    runs_on: str
    cleaning: OutputComparison | None
    accumulated: OutputComparison | None
    local: OutputComparison | None
    reason: str
    by: tuple[str, ...]
    origins: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Return whether each of its known errors is within the tolerance."""
        return all(error is None or error.passed for error in (self.cleaning, self.accumulated, self.local))

    @property
    def severity(self) -> float:
        """The largest of its errors, as a multiple of the tolerance."""
        errors = (error.severity for error in (self.cleaning, self.accumulated, self.local) if error is not None)
        return max(errors, default=0.0)

    @property
    def title(self) -> str:
        """The operator, the node, and its source."""
        said = [f"of {self.module}"] if self.module else []
        said += [f"made by {', '.join(self.by)} from {', '.join(self.origins)}"] if self.by else []
        return f"{self.operator} {self.node}" + (f" ({', '.join(said)})" if said else "")


@dataclass(frozen=True)
class LayerReport(JsonRecord):
    """All values of a cleaned model, in the order in which they are computed.

    Attributes:
        rows: one a value.
        segments: how many segments it was run in.
        together: the other nodes that make the first difference together with its own, if no single node does.
        undetermined: why outputs that differ are no fault (`onnx_bridge.reference.comparison.judge`); None if
            they are one.
    """

    in_json = ("passed", "sentence")

    rows: tuple[Layer, ...]
    segments: int = 1
    notes: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    sample: int = 0
    undetermined: str | None = None

    @property
    def passed(self) -> bool:
        """Return whether every value agrees; False without any value, since nothing was compared."""
        return bool(self.rows) and all(row.passed for row in self.rows)

    @property
    def first(self) -> Layer | None:
        """The first layer that differs on MIGraphX, or that cleaning changed, whichever comes first."""
        return next((row for row in self.rows if not row.passed), None)

    @property
    def culprit(self) -> Layer | None:
        """The first layer with a local error on MIGraphX; None if there is none."""
        return next((row for row in self.rows if row.local is not None and not row.local.passed), None)

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        first = self.first
        if first is None:
            unknown = sum(row.accumulated is None for row in self.rows)
            missing = f"; {unknown} could not be compared" if unknown else ""
            return f"no layer differs: {len(self.rows) - unknown} values agree{missing}"
        if first.cleaning is not None and not first.cleaning.passed:
            who = f"the pass {', '.join(first.by)}" if first.by else "cleaning"
            return f"{first.title} is the first that differs; {who} changed it: {_error(first.cleaning)}"
        if first.local is not None and not first.local.passed:
            return f"{first.title} is the first that differs, by its own error: {_error(first.local)}"
        assert first.accumulated is not None
        said = f"{first.title} is the first that differs: {_error(first.accumulated)}"
        if self.undetermined is not None:
            return f"{said}. It is no fault: {self.undetermined}"
        if self.together:
            others = ", ".join(self.together)
            return f"{said}. Fed with the reference's values it agrees alone, and differs together with {others}"
        if first.local is None:
            return f"{said}; its local error is not known: {first.reason}"
        most = max(self.rows, key=lambda row: row.local.severity if row.local is not None else 0.0)
        assert most.local is not None
        share = f"the largest local error is {most.local.severity:.2g} of the tolerance, of {most.title}"
        return f"{said}. Fed with the reference's values it agrees: the error has accumulated; {share}"

    def blaming(self, nodes: list[str]) -> LayerReport:
        """Return the same report, with the nodes that make the first difference together."""
        first = self.first
        others = tuple(node for node in nodes if first is None or node != first.node)
        return replace(self, together=others)

    def to_json(self) -> dict[str, Any]:
        names = {"first": self.first, "culprit": self.culprit}
        return super().to_json() | {key: row.tensor if row else None for key, row in names.items()}


def _error(output: OutputComparison) -> str:
    largest = "" if output.max_abs is None else f"largest error {output.max_abs:.3g}, "
    return f"{largest}{output.reason}"
