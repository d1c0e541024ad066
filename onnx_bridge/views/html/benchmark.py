"""The page of `bench`: latency distributions, throughput over batch size, all figures, and time by operator."""

from __future__ import annotations

from onnx_bridge.benchmark.outcome import BenchResult
from onnx_bridge.benchmark.statistics import Change, Ratio
from onnx_bridge.views.html.charts import Chart, bands, lines
from onnx_bridge.views.html.colours import BAD, GOOD, WARN
from onnx_bridge.views.html.html import Column, Page, Row, Table, cell, facts_of

_BANDS = 16
"""The most distributions that are drawn; the table has all of them."""
_TIMES = (
    ("p50", "p50 ms", "median latency"),
    ("p90", "p90", "90th percentile"),
    ("p99", "p99", "99th percentile"),
    ("min", "min", "the shortest"),
    ("mean", "mean", "without outliers"),
    ("std", "std", "standard deviation, without outliers"),
)
"""The figures of a `Summary` that are shown, with their headings."""
_INTERVAL = Column("98 %", "code", "the confidence interval of that")
_COLOURS = {Change.SLOWER: BAD, Change.WITHIN: GOOD, Change.UNDECIDED: WARN}


def page_of(bench: BenchResult) -> Page:
    """Return the page of a benchmark."""
    tables = [_table(bench)]
    tables += [_gates(bench)] if bench.gates else []
    tables += [_operators(bench)] if any(row.operators for row in bench.rows) else []
    return Page(
        kind="benchmark",
        model=bench.model,
        passed=bench.passed,
        headline=_headline(bench),
        sentences=[*filter(None, [bench.caveat]), *bench.sentences()],
        facts=facts_of({"model": bench.model, **bench.versions}),
        tables=tables,
        charts=[_latencies(bench), *_throughputs(bench)],
    )


def _headline(bench: BenchResult) -> str:
    if not bench.passed:
        return "Slower than the baseline"
    if bench.gates:
        undecided = any(gate.change is Change.UNDECIDED for gate in bench.gates)
        return "Too noisy to compare with the baseline" if undecided else "Not slower than the baseline"
    if bench.caveat:
        return "Measured on ref, whose speed is no measure of a GPU's"
    fastest = max(bench.rows, key=lambda row: row.throughput)
    return f"Most samples a second: {fastest.name}" if len(bench.rows) > 1 else f"Measured: {fastest.name}"


def _latencies(bench: BenchResult) -> Chart:
    series = []
    for row in bench.rows[:_BANDS]:
        summary = row.summary
        marked = {"median": 1e3 * summary.p50, "p90": 1e3 * summary.p90, "p99": 1e3 * summary.p99}
        kind = " ".join(row.key[:3])
        series.append((row.name, kind, [1e3 * latency for latency in row.latencies], marked))
    left = len(bench.rows) - len(series)
    more = f" {left} more are in the table." if left else ""
    note = f"The axis is logarithmic. Below the bars, from left to right: median, p90 and p99.{more}"
    return bands("latencies", "Latency of a call", note, "milliseconds a call", series)


def _throughputs(bench: BenchResult) -> list[Chart]:
    """Return the throughput over batch size; nothing if there are fewer than two sizes."""
    series, sizes = [], bench.throughputs()
    for kind, (best, knee) in bench.knees().items():
        said = {best: "best throughput"}
        said[knee] = "best throughput and knee" if best == knee else "knee"
        series.append((f"{' '.join(filter(None, kind[:2]))}, {kind[2]}", sizes[kind], said))
    if not series:
        return []
    note = "Rings mark the best throughput, and the knee: the smallest batch with 90 % of it."
    return [lines("throughput", "Throughput over batch", note, "samples a call (batch)", "samples a second", series)]


def _table(bench: BenchResult) -> Table:
    columns = [
        Column("engine", "text"),
        Column("precision", "text"),
        Column("batch", "number"),
        *(Column(label, "number", hint) for _, label, hint in _TIMES),
        Column("samples/s", "number", "at the median latency"),
        Column("× first", "number", "latency as a multiple of that of the first engine at this batch size"),
        _INTERVAL,
        Column("load s", "number", "until the engine was ready"),
        Column("first s", "number", "the first call"),
        Column("MiB", "number", "peak memory of loading and the first call"),
        Column("readings", "number", "of the clock"),
        Column("calls each", "number", "calls per reading"),
        Column("outliers", "number", "readings beyond Q3 + 3·IQR"),
    ]
    ratios = bench.ratios()
    rows = []
    for row in bench.rows:
        summary = row.summary
        against = ratios.get(row)
        times = [1e3 * getattr(summary, name) for name, *_ in _TIMES]
        figures = [f"{row.engine} {row.target}".strip(), row.precision, row.batch, *times]
        figures += [row.throughput, against.value if against else 1.0, _interval(against) if against else ""]
        figures += [row.load, row.first, row.memory / 2**20, summary.calls, row.together, summary.outliers]
        rows.append(Row.of(*figures, choice=row.engine))
    return Table("rows", "All figures", columns, rows, "Times are milliseconds where nothing else is said.")


def _interval(ratio: Ratio) -> str:
    return f"{ratio.low:.3f} – {ratio.high:.3f}"


def _gates(bench: BenchResult) -> Table:
    columns = [
        Column("row", "text"),
        Column("verdict", "verdict"),
        Column("× baseline", "number", "latency as a multiple of the baseline's"),
        _INTERVAL,
    ]
    rows = [
        Row.of(gate.row, cell(gate.change.value, _COLOURS[gate.change]), gate.ratio.value, _interval(gate.ratio))
        for gate in bench.gates
    ]
    note = f"It may be slower by {bench.max_slowdown or 0:.1%}."
    return Table("gates", "Against the baseline", columns, rows, note)


def _operators(bench: BenchResult) -> Table:
    columns = [
        Column("operator", "name", "MIGraphX's"),
        Column("of ONNX", "text", "the model's operators that it may come from, by name"),
        Column("where", "text"),
        Column("times", "number", "in one call"),
        Column("ms", "number", "of all of them, in one call"),
        Column("share", "number", "per cent of the time of all operators"),
        Column("slowest", "code", "the instruction that takes longest"),
        Column("its ms", "number"),
    ]
    rows = [
        Row.of(
            operator.operator,
            ", ".join(operator.onnx),
            row.name,
            operator.count,
            1e3 * operator.seconds,
            100 * operator.share,
            operator.slowest,
            1e3 * operator.longest,
            choice=row.name,
        )
        for row in bench.rows
        for operator in row.operators
    ]
    note = "MIGraphX's own times, each instruction waited for: their sum is more than a call takes."
    return Table("operators", "Where MIGraphX's time goes", columns, rows, note, place="last")
