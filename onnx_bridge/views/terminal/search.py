"""The results of ``tune`` and ``mixed-precision``."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from onnx_bridge.search.mixed_precision import MixedPrecision
from onnx_bridge.search.pareto import explain, pareto_front
from onnx_bridge.search.tuning import Tuning
from onnx_bridge.views.terminal.placement import again, trials_table
from onnx_bridge.views.terminal.tables import plain_table
from onnx_bridge.views.terminal.view import view
from passes.core.text import counted


@view.register
def _tuning(tuning: Tuning, verbose: bool) -> RenderableType:
    """Return a table of the Pareto front, and a sentence for each trial."""
    numbers = ("p50 ms", "× first [98 %]", "MiB", "error")
    table = plain_table("candidate", *numbers, numbers=numbers, title="Pareto front", title_justify="left")
    for trial in pareto_front(tuning.trials):
        name = Text(trial.candidate.name, style="bold" if trial is tuning.winner else "")
        size, error = f"{trial.memory / 2**20:.3g}", f"{trial.error:.2g}"
        table.add_row(name, f"{1e3 * trial.latency:.3g}", str(trial.ratio), size, error)
    lines = [explain(trial, tuning.trials) for trial in tuning.trials]
    if tuning.sizes:
        sizes = "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in tuning.sizes.items())
        lines.append(f"latencies are those of one input of each size ({sizes})")
    if tuning.resumed:
        lines.append(f"{tuning.resumed} of {counted(len(tuning.trials), 'trial')} are from the journal")
    if tuning.left:
        lines.append(f"not tried within the budget: {'; '.join(candidate.name for candidate in tuning.left)}")
    if tuning.job is not None:
        lines.append(f"written: {tuning.job}; `onnx-bridge convert {tuning.job} -o OUT` makes the bundle")
    return Group(table, *lines)


@view.register
def _mixed_precision(mixed: MixedPrecision, verbose: bool) -> RenderableType:
    lines = [
        f"{name}: values up to {size:.3g}, out of range of {mixed.precision}"
        for name, size in mixed.out_of_range.items()
    ]
    if not mixed.nodes:
        return Group(*lines, f"{mixed.precision} agrees with the reference; no node has to stay in float32")
    count = f"{len(mixed.nodes)} of {counted(mixed.candidates, 'node')}"
    kept = f"{count} must stay in float32 ({counted(mixed.trials, 'trial')}): {mixed.option}"
    return Group(*lines, trials_table(mixed), kept, *again(mixed))
