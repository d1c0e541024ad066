"""The page of a diagnosis: every node, what the runtime says of it, and what becomes of it."""

from __future__ import annotations

import os

from onnx_bridge.conversion.doctor import AS_IS, HOST, REMOVED, REWRITTEN, Diagnosis, NodeFinding
from onnx_bridge.report.colours import BAD, FIRST, GOOD, PLAIN, WARN
from onnx_bridge.report.html import Cell, Column, Page, Row, Share, Table, shown, text

_TONES = {AS_IS: GOOD, REWRITTEN: FIRST, REMOVED: PLAIN, HOST: WARN}


def write_diagnosis(path: str | os.PathLike[str], diagnosis: Diagnosis) -> None:
    """Write the page of a diagnosis.

    Raises:
        InputError: the file cannot be written.
    """
    diagnosis_page(diagnosis).write(path)


def diagnosis_page(diagnosis: Diagnosis) -> Page:
    """What `write_diagnosis` writes."""
    host = any(each["side"] == "host" for each in diagnosis.stages)
    sentences = [f"{diagnosis.share:.1%} of the estimated work runs on MIGraphX."]
    sentences += [diagnosis.problem] if diagnosis.problem else []
    if diagnosis.passed:
        sentences.insert(0, f"{diagnosis.runtime} has parsed the whole of it.")
    facts = {"runtime": diagnosis.runtime, **diagnosis.facts}
    facts["memory"] = f"about {diagnosis.memory / 2**30:.1f} GiB while MIGraphX saves the program"
    facts |= {"rewritten model": diagnosis.path_fixed} if diagnosis.path_fixed else {}
    columns = (
        Column("#", "number"),
        Column("node", "name"),
        Column("operator", "code"),
        Column("module", "text", "the PyTorch module that it comes from"),
        Column("verdict", "verdict", "what the runtime makes of it as it is"),
        Column("what becomes of it", "text"),
        Column("by", "text", "the passes that do it, or why it is on the host"),
        Column("MIGraphX says", "text"),
    )
    rows = [_finding(index, each) for index, each in enumerate(diagnosis.nodes)]
    headline = "Everything will run" if diagnosis.passed else "It will not run"
    return Page(
        kind="doctor",
        model=diagnosis.path or "a model in memory",
        passed=diagnosis.passed,
        headline=f"{headline}, with ONNX Runtime on the host" if diagnosis.passed and host else headline,
        sentences=sentences,
        facts=shown({"model": diagnosis.path or "in memory", **facts}),
        notes=diagnosis.notes,
        tables=[Table("nodes", "Every node", columns, rows)],
        shares=[Share(plan, count, _TONES[plan]) for plan, count in diagnosis.totals().items()],
        stages=[
            Share(
                f"{'ONNX Runtime' if each['side'] == 'host' else 'MIGraphX'}: {each['nodes']} nodes",
                each["nodes"],
                WARN if each["side"] == "host" else GOOD,
            )
            for each in diagnosis.stages
        ],
    )


def _finding(index: int, node: NodeFinding) -> Row:
    verdict = {"ok": GOOD, "unknown": PLAIN}.get(node.verdict, BAD)
    cells = [
        Cell(str(index), index),
        text(node.name),
        text(node.operator),
        text(node.module),
        Cell(node.verdict, tone=verdict),
        text(node.plan, WARN if node.plan == HOST else ""),
        text(node.by),
        text(node.message),
    ]
    return Row(cells, choice=node.plan)
