"""Cleaning compared with other tools: ``make bench``.

Every run is one process. The tools take turns, so that other load on the machine affects all of them. Printed are
medians, and their ratios to ONNX Runtime's basic optimizations. Memory is the peak of anonymous memory (RssAnon), since
the system can reclaim the pages of a file mapping. Our tool runs as the command ``onnx-bridge clean``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx

from benchmarks.models import MODELS, make
from benchmarks.tools import OURS, TOOLS, program

_LIMIT_SECONDS = 600
_LARGE = 1 << 31


@dataclass(frozen=True)
class Run:
    """One process: seconds, peak anonymous memory in MB, nodes left and the domains of other operators."""

    seconds: float
    anonymous_mb: float
    nodes: int
    domains: tuple[str, ...]


def measure(tool: str, source: Path) -> Run | str:
    """Run a tool once on a model; a text says how it failed."""
    size = sum(each.stat().st_size for each in source.parent.iterdir())
    with tempfile.TemporaryDirectory(prefix="bench-", dir=source.parent.parent) as folder:
        out = Path(folder) / source.name
        code = program(tool, str(source), str(out), size > _LARGE)
        os.sync()  # or this run would wait for the disk to take what another wrote
        started = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        peak = 0
        while process.poll() is None:
            peak = max(peak, _anonymous(process.pid))
            if time.perf_counter() - started > _LIMIT_SECONDS:
                process.kill()
                process.wait()
                return f"over {_LIMIT_SECONDS} s"
            time.sleep(0.005)
        seconds = time.perf_counter() - started
        assert process.stderr is not None
        errors = process.stderr.read().decode(errors="replace").strip().splitlines()
        process.stderr.close()
        if process.returncode != 0 or not out.exists():
            return (errors or [f"exit code {process.returncode}"])[-1][:100]
        graph = onnx.load(out, load_external_data=False).graph
        domains = {node.domain for node in graph.node} - {""}
        return Run(seconds, peak / 1e6, len(graph.node), tuple(sorted(domains)))


def _anonymous(pid: int) -> int:
    """RssAnon of a process and its children, bytes."""
    total = 0
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                total += int(line.split()[1]) * 1024
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            total += _anonymous(int(child))
    return total


def main() -> int:
    """Measure, print one table a model, and write the figures as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--tools", nargs="*", default=list(TOOLS), choices=list(TOOLS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("bench-models"), help="where the models are kept")
    parser.add_argument("--json", type=Path, help="also write every run to this file")
    options = parser.parse_args()
    results: dict[str, dict[str, list[Run | str]]] = {}
    for name in options.models:
        source = make(name, options.folder)
        before = len(onnx.load(source, load_external_data=False).graph.node)
        runs: dict[str, list[Run | str]] = defaultdict(list)
        measure("cp", source)  # brings the file into the page cache, for everyone
        for _ in range(options.rounds):
            for tool in options.tools:
                if not any(isinstance(each, str) for each in runs[tool]):  # a failure would only repeat
                    runs[tool].append(measure(tool, source))
        results[name] = dict(runs)
        _print(name, before, results[name])
        if options.json:
            values = {
                model: {
                    tool: [each if isinstance(each, str) else asdict(each) for each in all_]
                    for tool, all_ in by.items()
                }
                for model, by in results.items()
            }
            options.json.write_text(json.dumps(values, indent=1))
    return 0


def _print(name: str, before: int, runs: dict[str, list[Run | str]]) -> None:
    print(f"\n{name} ({before} nodes)")
    base = _median(runs.get("ort-basic", []), "seconds")
    for tool, all_ in runs.items():
        if isinstance(all_[-1], str):
            print(f"  {tool:14} failed: {all_[-1]}")
            continue
        seconds, memory = _median(all_, "seconds"), _median(all_, "anonymous_mb")
        ratio = f"{seconds / base:5.2f} × ort-basic" if base and seconds else ""
        foreign = f" with {', '.join(all_[-1].domains)}" if all_[-1].domains else ""
        mark = "→" if tool == OURS else " "
        print(
            f"{mark} {tool:14} {seconds:7.2f} s {ratio:18} {memory:7.0f} MB  {all_[-1].nodes:5} nodes{foreign}",
            flush=True,
        )


def _median(runs: list[Run | str], field: str) -> float:
    values = [getattr(each, field) for each in runs if isinstance(each, Run)]
    return statistics.median(values) if values else 0.0


if __name__ == "__main__":
    sys.exit(main())
