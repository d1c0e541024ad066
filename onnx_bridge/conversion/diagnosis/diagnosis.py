"""The result of the verb ``doctor``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from onnx_bridge.bundle.manifest.work_share import WorkShare
from onnx_bridge.core.console import plain_table
from onnx_bridge.verdicts.proof_counts import ProofCounts
from passes.rewriting.base import Proof, Status

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

UNKNOWN = "unknown"
"""The verdict on a node that cannot be probed."""


class PlannedAction(StrEnum):
    """What a conversion will do with a node."""

    UNCHANGED = "unchanged"
    REWRITTEN = "rewritten"
    REMOVED = "removed"
    HOST = "host partition"


@dataclass(frozen=True)
class NodeDiagnosis:
    """One node of the original model.

    Attributes:
        name: its name.
        operator: with its domain, unless that is ONNX's.
        module: the PyTorch module that it comes from, if the exporter recorded it.
        verdict: the runtime's on the unchanged node: a `passes.rewriting.base.Status`, or `UNKNOWN`.
        message: the runtime's, or why the node cannot be probed.
        proof: what the verdict on its numbers rests on.
        unproven: why they were not compared at real size; empty if they were, or if there are none.
        action: the planned action.
        by: the passes that rewrite or remove it, or why it is on the host.
    """

    name: str
    operator: str
    module: str
    verdict: str
    message: str
    proof: Proof
    unproven: str
    action: PlannedAction
    by: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """The result of `onnx_bridge.doctor`.

    Attributes:
        path: the model's file; None for a model in memory.
        runtime: the MIGraphX that gave the verdicts.
        facts: about the file: IR version, opsets, open sizes, subgraphs, other domains, shadowed names.
        nodes: every node except constants.
        partitions: the side and the number of nodes of each partition.
        share: the share of the estimated work on MIGraphX.
        proofs: how far the numbers of the rewritten model's nodes on MIGraphX are known.
        kernels: the number of convolutions and matrix products that the gpu target will run in int8, fp8, with int4
            weights, or in float.
        memory: the predicted peak memory of MIGraphX in bytes.
        parsed: whether MIGraphX has parsed all partitions.
        problem: why not, or why the model cannot run.
        notes: sentences for the user.
        path_fixed: the file that the rewritten model was written to, if any.
        comparable: whether the reference takes the original model: else nothing can be compared.
    """

    path: str | None
    runtime: str
    facts: dict[str, Any]
    nodes: list[NodeDiagnosis]
    partitions: list[dict[str, Any]]
    share: WorkShare
    proofs: ProofCounts
    kernels: dict[str, int]
    memory: int
    parsed: bool
    problem: str = ""
    notes: list[str] = field(default_factory=list)
    path_fixed: str | None = None
    comparable: bool = True

    @property
    def passed(self) -> bool:
        """Whether the model can run."""
        return self.parsed and not self.problem

    def to_json(self) -> dict[str, Any]:
        return {
            **{key: value for key, value in asdict(self).items() if key not in ("nodes", "proofs")},
            "share": self.share.to_json(),
            "proofs": self.proofs.to_json(),
            "passed": self.passed,
            "totals": self.totals(),
            "nodes": [{**asdict(each), "proof": each.proof.value} for each in self.nodes],
        }

    def totals(self) -> dict[str, int]:
        """The number of nodes by planned action."""
        counts = Counter(each.action for each in self.nodes)
        return {action.value: counts[action] for action in PlannedAction}

    def render(self, *, verbose: bool = False) -> RenderableType:
        """As tables: by operator, or by node if ``verbose``."""
        from rich.console import Group

        totals = ", ".join(f"{count} {action}" for action, count in self.totals().items())
        partitions = " → ".join(f"{each['side']} ({each['nodes']} nodes)" for each in self.partitions) or "none"
        lines: list[RenderableType] = [
            "",
            *(f"{name}: {value}" for name, value in self.facts.items()),
            f"nodes: {totals}",
            f"partitions: {partitions}; {self.share:.1%} of the work on MIGraphX",
            f"numbers: {self.proofs}",
            f"products: {', '.join(f'{count} in {kernel}' for kernel, count in self.kernels.items()) or 'none'}",
            f"memory: about {self.memory / 2**30:.1f} GiB while MIGraphX saves the program",
            *(f"note: {note}" for note in self.notes),
            self._conclusion(),
            *([f"written to {self.path_fixed}"] if self.path_fixed else []),
        ]
        return Group(self._by_node() if verbose else self._by_operator(), *lines)

    def _conclusion(self) -> Text:
        from rich.text import Text

        if not self.passed:
            return Text.assemble(("it cannot run", "red"), f": {self.problem}")
        host = ", with ONNX Runtime on the host" if any(each["side"] == "host" for each in self.partitions) else ""
        count = sum(self.proofs.unproven.values())
        unproven = Text(f", {count} node{'s'[: count > 1]} unproven" if count else "", style="yellow")
        parsed = f": {self.runtime} has parsed the whole of it"
        return Text.assemble(("everything will run", "green"), host, unproven, parsed)

    def _by_operator(self) -> RenderableType:
        headings = ("operator", "nodes", "verdict", "proof", "planned action", "MIGraphX says")
        table = plain_table(*headings, numbers=["nodes"])
        groups: dict[str, list[NodeDiagnosis]] = {}
        for each in self.nodes:
            groups.setdefault(each.operator, []).append(each)
        # obstacles first, then the most frequent operators
        for operator, group in sorted(groups.items(), key=lambda item: (_rank(item[1]), -len(item[1]))):
            verdicts = Counter(each.verdict for each in group)
            actions = Counter(
                f"{each.action}{f': {each.by}' if each.action is PlannedAction.REWRITTEN else ''}" for each in group
            )
            proofs = Counter(each.proof.value for each in group)
            messages = dict.fromkeys(each.message for each in group if each.message)
            cells = counted(verdicts), counted(proofs), counted(actions), next(iter(messages), "")
            table.add_row(operator, str(len(group)), *cells)
        return table

    def _by_node(self) -> RenderableType:
        table = plain_table("node", "operator", "module", "verdict", "proof", "planned action", "MIGraphX says")
        for each in self.nodes:
            action = f"{each.action}{f': {each.by}' if each.by else ''}"
            unproven = each.unproven if each.proof is Proof.NONE else ""
            cells = each.verdict, each.proof.value, action, each.message or unproven
            table.add_row(each.name, each.operator, each.module, *cells)
        return table


def _rank(group: Sequence[NodeDiagnosis]) -> int:
    order = (PlannedAction.HOST, PlannedAction.REWRITTEN, PlannedAction.REMOVED, PlannedAction.UNCHANGED)
    bad = any(each.verdict not in (Status.OK.value, UNKNOWN) for each in group)
    return min(order.index(each.action) for each in group) + (0 if bad else len(order))


def counted(counts: Counter[Any]) -> str:
    """Names with their numbers; a single name alone."""
    if len(counts) == 1:
        return str(next(iter(counts)))
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())
