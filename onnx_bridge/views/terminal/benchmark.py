"""The results of ``bench``."""

from __future__ import annotations

from rich.console import Group, RenderableType

from onnx_bridge.benchmark.outcome import BenchResult, Row
from onnx_bridge.views.terminal.tables import plain_table
from onnx_bridge.views.terminal.view import view
from passes.core.text import counted

_NUMBERS = ("p50 ms", "p90", "p99", "min", "mean ± std", "samples/s", "× first [98 %]", "load s", "first s", "MiB")
_IN_FULL = ("p90", "min", "mean ± std")
"""The columns that ``verbose`` adds: the others fit into eighty characters."""
_SLOWEST = 10
"""The number of operators that are shown."""


@view.register
def _bench(bench: BenchResult, verbose: bool) -> RenderableType:
    """Return a table of the rows, with all figures if ``verbose``, and sentences."""
    shown = [name for name in _NUMBERS if verbose or name not in _IN_FULL]
    table = plain_table("engine", *shown, numbers=shown)
    ratios = bench.ratios()
    for row in bench.rows:
        summary = row.summary
        figures = (
            *(f"{1e3 * time:.3g}" for time in (summary.p50, summary.p90, summary.p99, summary.min)),
            f"{1e3 * summary.mean:.3g} ± {1e3 * summary.std:.2g}",
            f"{row.throughput:.4g}",
            str(ratios.get(row, 1)),
            f"{row.load:.2f}",
            f"{row.first:.3f}",
            f"{row.memory / 2**20:.0f}",
        )
        values = dict(zip(_NUMBERS, figures, strict=True))
        table.add_row(row.name, *(values[name] for name in shown))
    caveat = [bench.caveat] if bench.caveat else []
    return Group(*caveat, table, *(_operators(row) for row in bench.rows if row.operators), *bench.sentences())


def _operators(row: Row) -> RenderableType:
    """Return a table of the slowest operators of a row."""
    shown, count = row.operators[:_SLOWEST], len(row.operators)
    title = (
        f"{row.name}: {'all' if count == len(shown) else f'the slowest {len(shown)} of'} {counted(count, 'operator')}"
    )
    numbers = ("times", "ms", "share", "slowest")
    table = plain_table("MIGraphX's operator", "of ONNX", *numbers, numbers=numbers, title=title, title_justify="left")
    for time in shown:
        slowest = f"{time.slowest} {1e3 * time.longest:.3g} ms"
        figures = str(time.count), f"{1e3 * time.seconds:.3g}", f"{time.share:.1%}", slowest
        table.add_row(time.operator, ", ".join(time.onnx), *figures)
    return table
