"""Batches beside themselves: two jobs at a time against one, and against a command for each model; what a job costs
beyond its conversion; going on again when all is done, and again with another tolerance, which is to be compared anew
and not compiled.

Throughput is that of small networks from PyTorch, whose conversion takes a tenth of a second; all else is measured on
models of a few nodes, where what a job costs beyond its conversion shows most.

python -m benchmarks.batch --models 200
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import itertools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper

from benchmarks.bounds import Bound, report
from fixtures.models import networks
from fixtures.suites.chaos import make
from onnx_bridge.batch import journal as journals
from onnx_bridge.batch.convert_all import convert_all

_FASTER, _BEYOND, _IDLE = 1.8, 5.0, 0.1
_TURNS = 3
"""Of one job at a time and two, of which the medians are told."""
_SMALL = 4
"""The number of small models for each network."""
_SETTLED = 0.5
"""The seconds after which no process ends any more that a batch has left."""
_PR_SET_CHILD_SUBREAPER = 36


def _timed(source: Path, out: Path, jobs: int, **options: Any) -> float:
    return _measured(source, out, jobs, **options)[0]


def _measured(source: Path, out: Path, jobs: int, **options: Any) -> tuple[float, float]:
    """Return the seconds of a batch, and those that processors worked for it."""
    before, started = _processor_seconds(), time.perf_counter()
    outcome = convert_all([source], out, jobs=jobs, **options)
    taken = time.perf_counter() - started
    assert outcome.passed, outcome.to_json()
    return taken, _processor_seconds() - before


def _processor_seconds() -> float:
    """Return what this process has used, and all that it started, once those have ended whose parents were killed."""
    with contextlib.suppress(ChildProcessError):
        ended = time.perf_counter()
        while time.perf_counter() - ended < _SETTLED:
            if os.waitpid(-1, os.WNOHANG)[0]:
                ended = time.perf_counter()
            else:
                time.sleep(_SETTLED / 10)
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _by_commands(source: Path, out: Path) -> float:
    """The seconds for a folder of models, each by ``onnx-bridge convert``, one after the other."""
    out.mkdir()
    command = [sys.executable, "-m", "onnx_bridge", "convert"]
    started = time.perf_counter()
    for model in sorted(source.iterdir()):
        subprocess.run([*command, str(model), "-o", str(out / model.stem)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def _events(out: Path) -> Counter[str]:
    """The number of journal events by kind."""
    records, _, _ = journals.read(out / journals.STATE_FOLDER)
    return Counter(record["event"] for record in records)


def _beyond(records: Sequence[Mapping[str, Any]]) -> float:
    """Return the median of the seconds from one end of a job to the next, without those of its conversion."""
    done = [
        (datetime.datetime.fromisoformat(record["at"]).timestamp(), record["seconds"])
        for record in records
        if record["event"] == "done"
    ]
    return float(statistics.median(end - before - seconds for (before, _), (end, seconds) in itertools.pairwise(done)))


def _networks(folder: Path, count: int) -> Path:
    """A folder of ResNets and BERTs, half and half, each with different weights."""
    folder.mkdir()
    for name in ("resnet", "bert"):
        proto = onnx.load(networks.export(name, folder / "first.onnx"))
        weight = next(each for each in proto.graph.initializer if len(each.dims) > 1 and each.data_type == 1)
        array = numpy_helper.to_array(weight).copy()
        for number in range(count // 2):
            weight.CopyFrom(numpy_helper.from_array(array * (1 + number / count), weight.name))
            onnx.save(proto, folder / f"{name}{number}.onnx")
        (folder / "first.onnx").unlink()
    return folder


def main() -> int:
    """Run the benchmark; exit code 1 if a bound is missed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--models", type=int, default=200)
    count = options.parse_args().models
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="batch-") as name:
        folder = Path(name)
        networks = _networks(folder / "networks", count)
        _timed(networks, folder / "warm networks", 2)  # MIGraphX's verdicts on the nodes are known from here on
        turns = [[_timed(networks, folder / f"{jobs} at a time, {n}", jobs) for jobs in (1, 2)] for n in range(_TURNS)]
        one, two = map(statistics.median, zip(*turns, strict=True))
        taken, worked = _measured(networks, folder / "busy", 2)
        commands = _by_commands(networks, folder / "by commands")
        count_small = _SMALL * count
        make(folder, count_small, 0)
        small = folder / "jobs.toml"
        _timed(small, folder / "warm", 2)
        alone = _timed(small, folder / "one", 1)
        again = _timed(small, folder / "one", 2)
        records, _, _ = journals.read(folder / "one" / journals.STATE_FOLDER)
        _timed(small, folder / "one", 2, check=True)
        before = _events(folder / "one")
        checking = _timed(small, folder / "one", 2, check=True, atol=1e-3, rtol=1e-3)
        did = _events(folder / "one") - before
    print(f"{count} networks, one at a time: {one:.1f} s; two at a time: {two:.1f} s: {one / two:.2f} ×")
    print(f"{count} networks, a command for each: {commands:.1f} s: {commands / two:.2f} ×")
    print(f"turn by turn: {', '.join(f'{each[0] / each[1]:.2f} ×' for each in turns)}")
    print(f"{count_small} small models, one at a time: {alone:.1f} s; again: {again:.2f} s")
    print(f"going on when all are done takes {again / alone:.4f} of doing them: {again:.2f} s (wanted: less than 3 s)")
    print(
        f"with another tolerance {did['checked']} of {count_small} are compared again and {did['done']} compiled "
        f"(wanted: {count_small} and 0), in {checking:.1f} s"
    )
    bounds = [
        Bound(f"{count} networks, two at a time", two, one / _FASTER, "s", f"one at a time / {_FASTER}"),
        Bound("the share of two cores that is idle", 1 - worked / taken / 2, _IDLE, "", "two at a time"),
        Bound("a job beyond its conversion", 1e3 * _beyond(records), _BEYOND, "ms", "on small models"),
    ]
    return 1 if report(bounds) else 0


if __name__ == "__main__":
    sys.exit(main())
