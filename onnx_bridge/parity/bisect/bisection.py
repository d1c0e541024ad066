"""The answer of `bisect`: which leg of a model's way broke, and what it was that broke it."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnx_bridge.model.provenance import module, operator
from onnx_bridge.parity.pieces import Runs
from onnx_bridge.parity.trial import Kind
from passes.core.graphs import ORIGIN, PASS

if TYPE_CHECKING:
    from rich.console import RenderableType

_LISTED = 4
"""How many nodes a sentence names."""


class Leg(enum.Enum):
    """A part of the way of a model, each compared with what comes before it."""

    EXPORT = "export"
    """From what was given as the right outputs to the model."""
    MODEL = "model"
    """From the model that was given as the reference to the model."""
    PASSES = "passes"
    """From the model to the cleaned one."""
    MIGRAPHX = "MIGraphX"
    """From the cleaned model to what MIGraphX computes."""
    PRECISION = "precision"
    """From that to what it computes in a lower precision."""


@dataclass(frozen=True)
class Culprit:
    """A node that is at fault.

    Attributes:
        name: its name.
        operator: its operator.
        module: the PyTorch module that it comes from; empty where the model does not say.
        made_by: the pass that made it; empty for a node of the original.
        origin: the nodes of the original that it stands for.
    """

    name: str
    operator: str
    module: str = ""
    made_by: str = ""
    origin: tuple[str, ...] = ()

    @classmethod
    def of(cls, node: ir.Node, original: ir.Model) -> Culprit:
        """Describe a node of a cleaned model."""
        origin = tuple(json.loads(node.metadata_props.get(ORIGIN, "[]")))
        sources = [each for each in original.graph.all_nodes() if each.name in {*origin, node.name}]
        modules = (module(each) for each in (node, *sources))
        made_by = node.metadata_props.get(PASS, "")
        return cls(str(node.name), operator(node), next(filter(None, modules), ""), made_by, origin)

    def __str__(self) -> str:
        return f"{self.operator} {self.name}" + (f" ({self.module})" if self.module else "")


@dataclass(frozen=True)
class Finding:
    """What is wrong, and where.

    Attributes:
        leg: which leg broke.
        kind: what is wrong.
        message: how outputs differ, or the words of MIGraphX or ONNX Runtime.
        step: MIGraphX's step, of parse, quantize, compile, run; empty elsewhere.
        precision: what MIGraphX was asked to compute in; empty for the model's own dtypes.
        nodes: the nodes at fault: one, or more that are wrong together alone; empty where no node is.
        alone: whether the nodes show it by themselves, fed with the reference's own values. If not, it takes all that
            lies between the first and the last of them.
        error: the largest absolute error of what differs: of the nodes at fault, where they show it by themselves.
        sample: the number of the sample that shows it; None where it shows before any is run.
        pass_name: the pass at fault, or that made the node.
        application: which application of the pass that was, from 1; 0 where its applications cannot be told apart.
        applications: of how many.
        before: the nodes that went with that application, or were changed.
        after: those that came.
    """

    leg: Leg
    kind: Kind
    message: str
    step: str = ""
    precision: str = ""
    nodes: tuple[Culprit, ...] = ()
    alone: bool = True
    error: float | None = None
    sample: int | None = None
    pass_name: str = ""
    application: int = 0
    applications: int = 0
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """What is wrong, and how it shows, in one sentence."""
        return f"{self._blame()}: {' '.join(self.message.split())}"

    def to_json(self) -> dict[str, Any]:
        """The attributes as JSON values."""
        values = dataclasses.asdict(self)
        error = None if self.error is None or math.isfinite(self.error) else str(self.error)
        return {**values, "leg": self.leg.value, "kind": self.kind.value, "error": error or self.error}

    def _blame(self) -> str:
        nodes = _listed([str(each) for each in self.nodes])
        if self.leg is Leg.EXPORT and self.kind is not Kind.WRONG:
            return "the export is at fault"
        if self.leg is Leg.EXPORT:
            return "the export is at fault: on ONNX Runtime the model does not give the outputs that were given for it"
        if self.leg is Leg.MODEL:
            at = nodes if nodes else "no node that the reference has as well"
            return f"the model is at fault before any pass, at {at}"
        if self.leg is Leg.PASSES:
            nth = f" in its application {self.application} of {self.applications}" if self.application else ""
            return f"the pass {self.pass_name} is at fault{nth}{f', at {nodes}' if nodes else ''}"
        together = " together" if len(self.nodes) > 1 and self.alone else ""
        says = {
            Kind.WRONG: f"computes {{}} wrongly{together}",
            Kind.REJECTED: "rejects {}",
            Kind.CRASHES: "crashes on {}",
            Kind.HANGS: "does not come to an end with {}",
            Kind.MEMORY: "runs out of memory with {}",
        }[self.kind]
        by = f", which the pass {self.pass_name} made," if self.pass_name else ""
        what = f"{nodes}{by}"
        if not self.alone:
            ends = f" (from {self.nodes[0]} to {self.nodes[-1]})" if len(self.nodes) > 1 else ""
            what = f"the model as a whole, and no part of it by itself{ends}"
        how = f"in {self.precision} " if self.precision else ""
        return f"{how}MIGraphX {says.format(what).rstrip(',')} ({self.step})"


@dataclass(frozen=True)
class Bisection:
    """What `onnx_bridge.bisect` found.

    Attributes:
        model: what was bisected, for people.
        finding: what is wrong; None where nothing diverges.
        runs: for each leg that was looked at how often ONNX Runtime and MIGraphX were run, whatever the samples.
        samples: how many there were.
        seed: of generated samples; None where samples were given.
        versions: by name, of what took part.
        notes: what people should know besides.
    """

    model: str
    finding: Finding | None
    runs: Mapping[Leg, Runs] = field(default_factory=dict)
    samples: int = 1
    seed: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing diverges."""
        return self.finding is None

    @property
    def summary(self) -> str:
        """One sentence."""
        if self.finding is not None:
            return f"{self.model}: {self.finding.sentence}"
        legs = ", ".join(leg.value for leg in self.runs)
        count = f"{self.samples} sample{'s' if self.samples != 1 else ''}"
        return f"{self.model}: nothing diverges in {count} ({legs})"

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "model": self.model,
            "passed": self.passed,
            "summary": self.summary,
            "finding": None if self.finding is None else self.finding.to_json(),
            "runs": {leg.value: dataclasses.asdict(runs) for leg, runs in self.runs.items()},
            "samples": self.samples,
            "seed": self.seed,
            "versions": dict(self.versions),
            "notes": list(self.notes),
        }

    def render(self) -> RenderableType:
        """The sentence, what is known of the nodes, and what it took."""
        from rich.console import Group
        from rich.text import Text

        lines = [Text(self.summary, style="bold green" if self.passed else "bold red")]
        lines += [Text(f"  {line}") for line in self._details()]
        lines += [Text(f"note: {note}", style="yellow") for note in self.notes]
        took = [f"{leg.value}: {_runs(runs)}" for leg, runs in self.runs.items()]
        about = [f"{name} {version}" for name, version in self.versions.items()]
        about += [] if self.seed is None else [f"seed {self.seed}"]
        lines += [Text(each, style="dim") for each in ("; ".join(took), ", ".join(about)) if each]
        return Group(*lines)

    def _details(self) -> Iterator[str]:
        if self.finding is None:
            return
        found = self.finding
        for node in found.nodes:
            origin = f", from {', '.join(node.origin)}" if node.origin else ""
            made = f", made by {node.made_by}" if node.made_by else ""
            module = f", in {node.module}" if node.module else ""
            yield f"node {node.name}: {node.operator}{module}{made}{origin}"
        if found.before or found.after:
            before, after = (_listed(names) or "nothing" for names in (found.before, found.after))
            yield f"that application: {before} → {after}"
        if found.error is not None:
            yield f"largest absolute error: {found.error:.6g}"
        if found.sample is not None and self.samples > 1:
            yield f"sample: {found.sample}"


def _listed(names: Sequence[str]) -> str:
    if len(names) > _LISTED:
        return f"{', '.join(names[:_LISTED])} and {len(names) - _LISTED} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _runs(runs: Runs) -> str:
    counts = ((runs.reference, "of ONNX Runtime"), (runs.migraphx, "of MIGraphX"))
    told = [f"{count} run{'s' if count > 1 else ''} {whose}" for count, whose in counts if count]
    return " and ".join(told) or "nothing to run"
