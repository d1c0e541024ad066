"""The page of `doctor`: every node with its verdict and the planned action."""

from __future__ import annotations

from onnx_bridge.conversion.diagnosis.diagnosis import Diagnosis, NodeDiagnosis, PlannedAction
from onnx_bridge.views.html.colours import BAD, FIRST, GOOD, PLAIN, WARN
from onnx_bridge.views.html.html import Column, Page, Row, Share, Table, cell, facts_of
from passes.core.text import counted
from passes.rewriting.base import Proof

_COLOURS = {
    PlannedAction.UNCHANGED: GOOD,
    PlannedAction.REWRITTEN: FIRST,
    PlannedAction.REMOVED: PLAIN,
    PlannedAction.HOST: WARN,
}
_RANK = {PlannedAction.HOST: 2, PlannedAction.REWRITTEN: 1}
"""The actions on obstacles, which are listed first."""


def page_of(diagnosis: Diagnosis) -> Page:
    """Return the page of a diagnosis."""
    host = any(partition["side"] == "host" for partition in diagnosis.partitions)
    sentences = [f"On MIGraphX runs {diagnosis.share:.1%} of the estimated work. Nodes: {diagnosis.proofs}."]
    sentences += [diagnosis.problem] if diagnosis.problem else []
    if diagnosis.passed:
        sentences.insert(0, f"{diagnosis.runtime} has parsed the whole model.")
    facts = {"runtime": diagnosis.runtime, **diagnosis.facts}
    facts["compiling"] = "; ".join(diagnosis.compile_lines)
    facts["memory"] = f"about {diagnosis.memory / 2**30:.1f} GiB while MIGraphX saves the program"
    facts |= {"rewritten model": diagnosis.path_fixed} if diagnosis.path_fixed else {}
    columns = (
        Column("#", "number"),
        Column("node", "name"),
        Column("operator", "code"),
        Column("module", "text", "the PyTorch module that it comes from"),
        Column("verdict", "verdict", "the verdict on the node once the model is clean"),
        Column("proof", "text", "what the verdict on its numbers rests on"),
        Column("planned action", "text"),
        Column("by", "text", "the passes that rewrite it"),
        Column("reason", "text", "what MIGraphX says, or why it runs on the host"),
    )
    order = sorted(enumerate(diagnosis.nodes), key=lambda item: (item[1].passed, -_RANK.get(item[1].action, 0)))
    rows = [_finding(index, node) for index, node in order]
    headline = "Everything will run" if diagnosis.passed else "It will not run"
    return Page(
        kind="doctor",
        model=diagnosis.path or "a model in memory",
        passed=diagnosis.passed,
        headline=f"{headline}, with ONNX Runtime on the host" if diagnosis.passed and host else headline,
        sentences=sentences,
        facts=facts_of({"model": diagnosis.path or "in memory", **facts}),
        notes=diagnosis.notes,
        tables=[Table("nodes", "Every node", columns, rows)],
        shares=[Share(action, count, _COLOURS[PlannedAction(action)]) for action, count in diagnosis.totals.items()],
        partitions=[
            Share(
                f"{'ONNX Runtime' if partition['side'] == 'host' else 'MIGraphX'}: "
                f"{counted(partition['nodes'], 'node')}",
                partition["nodes"],
                WARN if partition["side"] == "host" else GOOD,
            )
            for partition in diagnosis.partitions
        ],
    )


def _finding(index: int, node: NodeDiagnosis) -> Row:
    verdict = GOOD if node.verdict == "ok" else PLAIN if node.passed else BAD
    unproven = node.proof is Proof.NONE
    proof = cell(node.proof.value, WARN if node.verdict == "ok" and unproven else "")
    action = cell(node.action, WARN if node.action is PlannedAction.HOST else "")
    host = node.action is PlannedAction.HOST
    by, reason = ("", node.by or node.reason) if host else (node.by, node.reason)
    about = (index, node.name, node.operator, node.module)
    return Row.of(*about, cell(node.verdict, verdict), proof, action, by, reason, choice=node.action)
