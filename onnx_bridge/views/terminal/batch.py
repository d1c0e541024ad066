"""The result of ``convert`` on many models."""

from __future__ import annotations

from collections import Counter

from rich.console import Group, RenderableType

from onnx_bridge.batch.outcome import Outcome
from onnx_bridge.views.terminal.tables import judged, notes_of, plain_table, sizes_text
from onnx_bridge.views.terminal.view import view
from passes.core.text import counted

_MOST = 4
"""The most kinds of sizes that nobody chose in a summary."""


@view.register
def _outcome(outcome: Outcome, verbose: bool) -> RenderableType:
    """Return a table of the failures with reasons and logs, or of all jobs if ``verbose``, and a summary."""
    listed = [job for job in outcome.jobs if verbose or job.failed or job.status == "planned"]
    chosen = ["sizes chosen for you"] if any(job.chosen for job in listed) else []
    table = plain_table("job", "status", "proven", *chosen, "reason", "log")
    for job in listed:
        stage = f" in {job.error.stage}" if job.error else ""
        why = job.reason or job.check or "; ".join(job.notes)
        level = job.proof.level.value if job.proof else "–"
        sizes = [sizes_text(job.chosen) or "–"] if chosen else []
        status = judged(f"{job.status}{stage}", not job.failed)
        table.add_row(job.name, status, level, *sizes, why, str(job.log or "–"))
    summary = ", ".join(f"{count} {status}" for status, count in outcome.counts.items())
    if outcome.counts["skipped"]:
        summary += " (failed in an earlier run; --retry tries again)"
    proven = Counter(job.proof.level.value for job in outcome.jobs if job.proof)
    if proven:
        summary += f"; proven: {', '.join(f'{count} {level}' for level, count in proven.items())}"
    took = f"{counted(len(outcome.jobs), 'job')} in {outcome.seconds:.3g} s"
    kinds = Counter(sizes_text(job.chosen) for job in outcome.jobs if job.chosen)
    notes = [f"sizes chosen for you: {text} in {counted(count, 'job')}" for text, count in kinds.most_common(_MOST)]
    notes += [f"… and others in {len(kinds) - _MOST} ways; -v lists them"] if len(kinds) > _MOST else []
    tables = [table] if table.row_count else []
    return Group(*tables, *notes_of([*notes, *outcome.notes]), f"{took}: {summary}; bundles in {outcome.out}")
