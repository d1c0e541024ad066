"""The result of the verb ``doctor``."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from onnx_bridge.bundle.manifest.work_share import WorkShare
from onnx_bridge.conversion.compiling.forecast import CompileForecast
from onnx_bridge.conversion.compiling.gpu_forecast import GpuForecast
from onnx_bridge.conversion.diagnosis.raw_session import RawSession
from onnx_bridge.core.errors import NOT_DETERMINED
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.verdicts.proof_counts import ProofCounts
from passes.rewriting.base import Obstacle, Proof, Status

UNKNOWN = "unknown"
"""The verdict on a node that cannot be probed."""
NOT_NEEDED = "not needed"
"""The verdict on a node that cleaning removes, so that no runtime gets it."""


MIGRAPHX = "MIGraphX"
"""The judge of most verdicts."""


class PlannedAction(StrEnum):
    """The action of a conversion on a node."""

    UNCHANGED = "unchanged"
    REWRITTEN = "rewritten"
    REMOVED = "removed"
    HOST = "host partition"


@dataclass(frozen=True)
class NodeDiagnosis:
    """One node of the original model.

    Attributes:
        operator: its operator, with the domain unless that is ONNX's.
        module: the PyTorch module that it comes from, if the exporter recorded it.
        verdict: the runtime's verdict on what cleaning makes of the node, before it is legalized: a
            `passes.rewriting.base.Status`, `UNKNOWN` or `NOT_NEEDED`.
        message: the runtime's message if it rejects the node; how numbers differ, or why the node cannot be probed.
        proof: what the verdict on its numbers rests on.
        unproven: why its numbers were not compared at real size; empty if they were, or if there are none.
        judge: the speaker of the message.
        by: the passes that rewrite or remove it, or why it is on the host.
    """

    name: str
    operator: str
    module: str
    verdict: str
    message: str
    proof: Proof
    unproven: str
    judge: str
    action: PlannedAction
    by: str = ""

    @property
    def passed(self) -> bool:
        """True if nothing is known against the node."""
        return self.verdict in (Status.OK.value, UNKNOWN, NOT_NEEDED)

    @property
    def reason(self) -> str:
        """The message, with its speaker if a runtime says it, or why numbers are not proven."""
        if self.verdict == Status.REJECTED.value or (self.message and self.judge != MIGRAPHX):
            return f"{self.judge}: {self.message}"
        return self.message or (self.unproven if self.proof is Proof.NONE else "")


@dataclass(frozen=True)
class Diagnosis(JsonRecord):
    """The result of `onnx_bridge.doctor`.

    Attributes:
        path: the model's file; None for a model in memory.
        runtime: the MIGraphX that gave the verdicts.
        facts: properties of the file: IR version, opsets, open sizes, subgraphs, other domains, shadowed names.
        nodes: every node except constants.
        partitions: the side and the number of nodes of each partition.
        share: the share of the estimated work on MIGraphX.
        proofs: the number of the rewritten model's nodes on MIGraphX that are proven, by level.
        kernels: the number of convolutions and matrix products that the gpu target will run in int8, fp8, with int4
            weights, or in float.
        compiling: the forecast of the time to compile all partitions for ``ref``.
        target: the target that was examined: ``ref``, ``gpu``, or an architecture, ``gpu:gfx942``.
        gpu: the kernels of the programs for the architecture, if they were counted.
        memory: the predicted peak memory of MIGraphX in bytes.
        parsed: whether MIGraphX has parsed all partitions.
        problem: why not, or why the model cannot run.
        notes: sentences for the user.
        path_fixed: the file that the rewritten model was written to, if any.
        comparable: whether the reference takes the original model; otherwise nothing can be compared.
        session: what ONNX Runtime's provider makes of the original model, if the model is for it.
    """

    in_json = ("passed", "totals")

    path: str | None
    runtime: str
    facts: dict[str, Any]
    nodes: list[NodeDiagnosis]
    partitions: list[dict[str, Any]]
    share: WorkShare
    proofs: ProofCounts
    kernels: dict[str, int]
    compiling: CompileForecast
    memory: int
    parsed: bool
    target: str = "ref"
    gpu: GpuForecast | None = None
    problem: str = ""
    notes: list[str] = field(default_factory=list)
    path_fixed: str | None = None
    comparable: bool = True
    session: RawSession | None = None

    @property
    def passed(self) -> bool:
        """True if the model can run."""
        return self.parsed and not self.problem

    @property
    def exit_code(self) -> int:
        """The exit code of the command line: 1 if the model cannot run, 4 if a node has no reference, else 0."""
        unproven = Obstacle.REFERENCE.value in self.proofs.unproven
        return 1 if not self.passed else NOT_DETERMINED if unproven else 0

    @property
    def compile_lines(self) -> list[str]:
        """The forecast of the time to compile, in sentences, each of which names its target."""
        if self.target == "ref":
            return [str(self.compiling)]
        counting = (
            f"; --compile-time counts the kernels of {self.target}" if self.gpu is None and ":" in self.target else ""
        )
        return [f"for ref, {self.compiling}{counting}", *(self.gpu.lines if self.gpu else [])]

    @property
    def totals(self) -> dict[str, int]:
        """Return the number of nodes by planned action."""
        counts = Counter(node.action for node in self.nodes)
        return {action.value: counts[action] for action in PlannedAction}


def tallied(counts: Counter[Any]) -> str:
    """Return names with their numbers; a single name alone."""
    if len(counts) == 1:
        return str(next(iter(counts)))
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())
