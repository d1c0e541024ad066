"""The result of `bisect`: the first component between the model and MIGraphX that is at fault, and the nodes in it."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from onnx_bridge.core.errors import NOT_DETERMINED, Step
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.model.provenance import module, operator
from onnx_bridge.parity.bisect.kernel_fault import KernelFault
from onnx_bridge.parity.submodels.submodels import RunCounts
from onnx_bridge.parity.symptoms.symptom import SymptomKind
from onnx_bridge.requests.parity import LowPrecision
from passes.graphs import lineage

_LISTED = 4
"""The number of nodes that a sentence names."""


class Component(enum.Enum):
    """A component that can be at fault, in order; its results are compared with those of the one before it."""

    EXPORT = "export"
    """The exporter: the model does not compute the expected outputs that were given."""
    MODEL = "model"
    """The model: it differs from the reference model that was given."""
    PASSES = "passes"
    """The passes: the cleaned model differs from the model."""
    MIGRAPHX = "MIGraphX"
    """MIGraphX: its outputs differ from those of the cleaned model on ONNX Runtime."""
    REHEARSAL = "rehearsal"
    """The gpu target's passes, rehearsed on ref: MIGraphX's outputs after them differ."""
    PROVIDER = "ONNX Runtime's provider"
    """ONNX Runtime's MIGraphX provider: the outputs of its sessions differ from those of the CPU."""
    PRECISION = "precision"
    """MIGraphX in a lower precision: it differs from the cleaned model by more than that precision allows."""


@dataclass(frozen=True)
class Culprit:
    """A node that is at fault.

    Attributes:
        module: the PyTorch module that it comes from; empty if the model does not record it.
        made_by: the pass that made it; empty for a node of the original.
        origin: the nodes of the original that it was made from.
    """

    name: str
    operator: str
    module: str = ""
    made_by: str = ""
    origin: tuple[str, ...] = ()

    @classmethod
    def of(cls, node: ir.Node, original: ir.Model) -> Culprit:
        """Describe a node of a cleaned model."""
        origin = tuple(lineage.replaced(node) or ())
        sources = [source for source in original.graph.all_nodes() if source.name in {*origin, node.name}]
        modules = (module(source) for source in (node, *sources))
        made_by = node.metadata_props.get(lineage.PASS, "")
        return cls(str(node.name), operator(node), next(filter(None, modules), ""), made_by, origin)

    def __str__(self) -> str:
        return f"{self.operator} {self.name}" + (f" ({self.module})" if self.module else "")


@dataclass(frozen=True)
class Fault(JsonRecord):
    """A fault and its place.

    Attributes:
        component: what is at fault.
        kind: what is wrong.
        message: how outputs differ, or the message of MIGraphX or ONNX Runtime.
        step: the step of MIGraphX; None elsewhere.
        precision: what MIGraphX computes in; None is the model's own dtypes.
        nodes: the nodes at fault: one, or several that are wrong only together; empty if no node is.
        isolated: whether the nodes show it by themselves, fed with the reference's values. If not, it takes everything
            between the first and the last of them.
        error: the largest absolute error: of the nodes at fault, if they show it by themselves.
        sample: the number of the sample that shows it; None if it shows before any is run.
        pass_name: the pass at fault, or that made the node.
        application: the number of the application of the pass, from 1; 0 if its applications cannot be separated.
        applications: how many there are.
        before: the nodes that this application removed or changed.
        after: the nodes that it added.
        group: the first group of the gpu target's passes after which it shows, in a rehearsal.
        kernel: the kernel at fault, if programs are emulated and it is one.
    """

    component: Component
    kind: SymptomKind
    message: str
    step: Step | None = None
    precision: LowPrecision | None = None
    nodes: tuple[Culprit, ...] = ()
    isolated: bool = True
    error: float | None = None
    sample: int | None = None
    pass_name: str = ""
    application: int = 0
    applications: int = 0
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    group: str = ""
    kernel: KernelFault | None = None

    @property
    def sentence(self) -> str:
        """The component and nodes at fault, and the message, in one sentence."""
        kernel = "" if self.kernel is None else f"; {self.kernel}"
        return f"{self._blame()}: {' '.join(self.message.split())}{kernel}"

    def _blame(self) -> str:
        nodes = listed([str(node) for node in self.nodes])
        if self.component is Component.EXPORT and self.kind is not SymptomKind.WRONG:
            return "the export is at fault"
        if self.component is Component.EXPORT:
            return "the export is at fault: on ONNX Runtime the model does not give the expected outputs"
        if self.component is Component.MODEL:
            at = nodes or "no node that the reference has as well"
            return f"the model is at fault before any pass, at {at}"
        if self.component is Component.PASSES:
            nth = f" in its application {self.application} of {self.applications}" if self.application else ""
            return f"the pass {self.pass_name} is at fault{nth}{f', at {nodes}' if nodes else ''}"
        together = self.kind is SymptomKind.WRONG and len(self.nodes) > 1 and self.isolated
        says = self.kind.phrase + " together" * together
        by = f", which the pass {self.pass_name} made," if self.pass_name else ""
        what = f"{nodes}{by}"
        if not self.isolated:
            ends = f" (from {self.nodes[0]} to {self.nodes[-1]})" if len(self.nodes) > 1 else ""
            what = f"the model as a whole, and no submodel of it{ends}"
        how = f"in {self.precision} " if self.precision else ""
        if self.group:
            how = f"rehearsed as gpu, after {self.group}, "
        runtime = Component.PROVIDER.value if self.component is Component.PROVIDER else "MIGraphX"
        return f"{how}{runtime} {says.format(what).rstrip(',')} ({self.step})"


@dataclass(frozen=True)
class Bisection(JsonRecord):
    """The result of `onnx_bridge.bisect`.

    Attributes:
        model: the name of the model.
        fault: what is wrong; None if nothing diverges.
        runs: for each component that was examined, how often ONNX Runtime and MIGraphX were run.
        samples: how many there were.
        seed: the seed of generated samples; None if samples were given.
        versions: the versions of ONNX Runtime and MIGraphX, by name.
        notes: sentences for the user.
        undetermined: why outputs that differ are no fault (`onnx_bridge.reference.comparison.judge`); None if no output
            differs.
    """

    in_json = ("passed", "summary")

    model: str
    fault: Fault | None
    runs: Mapping[Component, RunCounts] = field(default_factory=dict)
    samples: int = 1
    seed: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    undetermined: str | None = None

    @property
    def passed(self) -> bool:
        """Return whether nothing is at fault, and every output is determined."""
        return self.fault is None and self.undetermined is None

    @property
    def exit_code(self) -> int:
        """The exit code of the command line: 0 if it passed, 1 with a fault, 4 if outputs are not determined."""
        return 1 if self.fault is not None else 0 if self.passed else NOT_DETERMINED

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        if self.fault is not None:
            return f"{self.model}: {self.fault.sentence}"
        examined = ", ".join(run.value for run in self.runs)
        count = f"{self.samples} sample{'s' if self.samples != 1 else ''}"
        if self.undetermined is not None:
            return f"{self.model}: nothing is at fault, outputs that differ are not determined: {self.undetermined}"
        return f"{self.model}: nothing diverges in {count} ({examined})"


def listed(names: Sequence[str]) -> str:
    """Return names as part of a sentence, which leaves out those that are too many."""
    if len(names) > _LISTED:
        return f"{', '.join(names[:_LISTED])} and {len(names) - _LISTED} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
