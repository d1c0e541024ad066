"""Cleaning compared with other tools: ``make bench``.

Every run is one process. The tools take turns, so that other load on the machine affects all of them. Printed are
medians, their ratios to ONNX Runtime's basic optimizations, and which bounds are kept: those of time and of memory, and
that of nodes, which are at most OnnxSlim's. Our tool runs as the command ``onnx-bridge clean``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx

from benchmarks import processes
from benchmarks.bounds import Bound, report
from benchmarks.models import MODELS, make
from benchmarks.tools import OURS, TOOLS, program

_LARGE = 1 << 31
_BEYOND_ORT, _BEYOND_COPY, _COPIES = 0.25, 1.0, 1.2
_MEMORY = 100.0
_MANY, _A_NODE, _MEMORY_A_NODE = 8000, 100e-6, 4e-3
"""Beyond so many nodes, seconds and MB for each are added to both bounds."""
_ONCE = 60.0
"""The seconds beyond which a tool runs once; one that fails runs once, too."""
_SAME_GROWTH = 1.1
_GROWTH = ("swin-deep-torchscript", "swin-deeper-torchscript")
"""Models of about 8,000 and 20,000 nodes, each of which should take the same time."""
_START = "one node"


@dataclass(frozen=True)
class Run:
    """One process: seconds, peak anonymous memory in MB, nodes left and the domains of other operators."""

    seconds: float
    anonymous_mb: float
    nodes: int
    domains: tuple[str, ...]


Runs = dict[str, list[Run | str]]
"""By tool; a text says how it failed."""


def measure(tool: str, source: Path) -> Run | str:
    """Run a tool once on a model; a text says how it failed."""
    size = sum(file.stat().st_size for file in source.parent.iterdir())
    with tempfile.TemporaryDirectory(prefix="bench-", dir=source.parent.parent) as folder:
        out = Path(folder) / source.name
        used = processes.measure([sys.executable, "-c", program(tool, str(source), str(out), size > _LARGE)])
        if used.error is not None or not out.exists():
            return used.error or "it wrote nothing"
        graph = onnx.load(out, load_external_data=False).graph
        domains = {node.domain for node in graph.node} - {""}
        return Run(used.seconds, used.together, len(graph.node), tuple(sorted(domains)))


def main() -> int:
    """Measure, print one table a model with its bounds, and write the figures as JSON where asked.

    Exit code 1 if a bound is missed.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--tools", nargs="*", default=list(TOOLS), choices=list(TOOLS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("bench-models"), help="where the models are kept")
    parser.add_argument("--json", type=Path, help="also write every run to this file")
    options = parser.parse_args()
    results: dict[str, Runs] = {}
    before: dict[str, int] = {}
    missed = 0
    for name in options.models:
        source = make(name, options.folder)
        before[name] = len(onnx.load(source, load_external_data=False).graph.node)
        runs: Runs = defaultdict(list)
        measure("cp", source)  # brings the file into the page cache, for everyone
        for _ in range(options.rounds):
            for tool in options.tools:
                if not any(isinstance(measured, str) or measured.seconds > _ONCE for measured in runs[tool]):
                    runs[tool].append(measure(tool, source))
        results[name] = dict(runs)
        _print(name, before[name], results[name])
        missed += report(_bounds(results[name], source, name, before[name]))
        if options.json:
            values = {
                model: {
                    tool: [each if isinstance(each, str) else asdict(each) for each in all_]
                    for tool, all_ in by.items()
                }
                for model, by in results.items()
            }
            options.json.write_text(json.dumps(values, indent=1))
    missed += report(_growth(results, before, options.folder, options.rounds))
    return 1 if missed else 0


def _print(name: str, before: int, runs: Runs) -> None:
    print(f"\n{name} ({before} nodes)")
    base = _median(runs.get("ort-basic", []), "seconds")
    for tool, all_ in runs.items():
        last = all_[-1]
        if isinstance(last, str):
            print(f"  {tool:14} failed: {last}")
            continue
        seconds, memory = _median(all_, "seconds"), _median(all_, "anonymous_mb")
        ratio = f"{seconds / base:5.2f} × ort-basic" if base and seconds else ""
        foreign = f" with {', '.join(last.domains)}" if last.domains else ""
        mark = "→" if tool == OURS else " "
        print(
            f"{mark} {tool:14} {seconds:7.2f} s {ratio:18} {memory:7.0f} MB  {last.nodes:5} nodes{foreign}",
            flush=True,
        )


def _bounds(runs: Runs, source: Path, name: str, before: int) -> Iterator[Bound]:
    """The bounds of one model that can be told from what was measured."""
    nodes, each = (before, " + {} a node") if before >= _MANY else (0, "")
    ours = runs.get(OURS, [])
    seconds = _median(ours, "seconds")
    if not seconds:
        return
    large = sum(file.stat().st_size for file in source.parent.iterdir()) > _LARGE
    copied, base = _median(runs.get("cp", []), "seconds"), _median(runs.get("ort-basic", []), "seconds")
    if large and copied:
        rule = f"{_COPIES} × cp + {_BEYOND_COPY:g} s"
        yield Bound(f"time of {name}", seconds, _COPIES * copied + _BEYOND_COPY, "s", rule)
    elif base and not large:
        rule = f"ort-basic + {_BEYOND_ORT} s{each.format('100 µs')}"
        yield Bound(f"time of {name}", seconds, base + _BEYOND_ORT + nodes * _A_NODE, "s", rule)
    rule = f"{_MEMORY:g} MB{each.format('4 KB')}"
    yield Bound(f"memory of {name}", _median(ours, "anonymous_mb"), _MEMORY + nodes * _MEMORY_A_NODE, "MB", rule)
    slim = [each for each in runs.get("onnxslim", []) if isinstance(each, Run)]
    if slim:
        yield Bound(f"nodes of {name}", _median(ours, "nodes"), slim[-1].nodes, "nodes", "OnnxSlim's")


def _growth(results: dict[str, Runs], before: dict[str, int], folder: Path, rounds: int) -> Iterator[Bound]:
    """The time a node, without that of starting, of a model and of a larger one."""
    if not all(OURS in results.get(name, {}) for name in _GROWTH):
        return
    path = folder / _START / "one.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = '<ir_version: 9, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Abs(x) }'
    onnx.save(onnx.parser.parse_model(text), path)
    start = _median([measure(OURS, path) for _ in range(rounds)], "seconds")
    small, large = ((_median(results[name][OURS], "seconds") - start) / before[name] * 1e6 for name in _GROWTH)
    few, many = (before[name] for name in _GROWTH)
    rule = f"{_SAME_GROWTH} × that of {few:,} nodes"
    yield Bound(f"time a node, of {many:,} nodes", large, small * _SAME_GROWTH, "µs", rule)


def _median(runs: list[Run | str], field: str) -> float:
    values = [getattr(run, field) for run in runs if isinstance(run, Run)]
    return statistics.median(values) if values else 0.0


if __name__ == "__main__":
    sys.exit(main())
