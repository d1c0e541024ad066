"""The ONNX standard's backend tests by the public API, beside stock MIGraphX and ONNX Runtime: ``make conformance``.

A test counts as *wholly* right when every node of it ran on MIGraphX, *frozen* when that needed structural inputs made
constant at the test's values, and *host* when a part ran on ONNX Runtime. What is not right is *wrong* (numbers, types
or shapes), *refused* (an error that says why), or *crashed* (anything else).
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import onnx_bridge
from onnx_bridge.core.errors import BridgeError, WorkerCrashed
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.program import OnnxOptions, Tensor
from onnx_bridge.model import io as models
from onnx_bridge.reference.reference import Reference
from onnx_bridge.verdicts.proof_counts import ProofCounts
from passes.graphs.structural_inputs import structural_inputs
from tests.conformance import suite

OUTCOMES = ("wholly", "frozen", "host", "wrong", "refused", "crashed")
RESULTS = suite.ROOT.parent
"""Where the results of whole runs are written, by runtime."""
TIMEOUT = 60.0
"""Seconds that MIGraphX may take for one step of one test."""


@dataclass(frozen=True)
class Outcome:
    """What became of one test.

    Attributes:
        outcome: one of `OUTCOMES`.
        why: why it is not right wholly.
        nodes: what was known of its nodes.
        rules: how often each rule of legalization was applied.
    """

    outcome: str
    why: str = ""
    nodes: ProofCounts = field(default_factory=ProofCounts)
    rules: Mapping[str, int] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Whether the numbers are as expected."""
        return self.outcome in OUTCOMES[:3]


@dataclass(frozen=True)
class Row:
    """One test by this project, by stock MIGraphX, and by ONNX Runtime."""

    name: str
    kind: str
    ours: Outcome
    stock: Outcome
    reference: Outcome
    seconds: float


def test(case: suite.Case) -> Row:
    """Run one test by all three."""
    started = time.perf_counter()
    samples = case.samples()
    ours = attempt(lambda: convert_and_run(case, samples))
    seconds = round(time.perf_counter() - started, 3)
    return Row(
        case.name,
        case.kind,
        ours,
        attempt(lambda: stock(case, samples)),
        attempt(lambda: reference(case, samples)),
        seconds,
    )


def attempt(run: Any) -> Outcome:
    """What a run comes to, whatever it raises."""
    try:
        return run()
    except WorkerCrashed as error:
        return Outcome("crashed", str(error))
    except BridgeError as error:
        return Outcome("refused", str(error))
    except Exception as error:
        return Outcome("crashed", f"{type(error).__name__}: {error}")


def convert_and_run(case: suite.Case, samples: list[tuple[dict[str, Any], list[Any]]]) -> Outcome:
    """By this project: as it is, and with structural inputs frozen where that takes it off the host."""
    first = attempt(lambda: converted(case, samples, {}))
    if first.outcome == "wholly":
        return first
    given = samples[0][0]
    names = [name for name in structural_inputs(models.load(case.model)) if isinstance(given.get(name), np.ndarray)]
    if names:
        second = attempt(lambda: converted(case, samples, {name: given[name] for name in names}))
        if second.outcome == "wholly":
            return replace(second, outcome="frozen", why=", ".join(names))
        if not first.right and second.right:
            return replace(second, why=f"frozen {', '.join(names)}: {second.why}")
    return first


def converted(case: suite.Case, samples: list[tuple[dict[str, Any], list[Any]]], freeze: Mapping[str, Any]) -> Outcome:
    """Convert, load and run; `freeze` by input."""
    with tempfile.TemporaryDirectory() as folder:
        shapes = {name: shape for name, shape in open_shapes(case, samples[0][0]).items() if name not in freeze}
        bundle = onnx_bridge.convert(
            case.model, Path(folder) / "bundle", target="ref", shapes=shapes, freeze=freeze, timeout=TIMEOUT
        )
        bundle = onnx_bridge.load(bundle.path, timeout=TIMEOUT)
        for inputs, expected in samples:
            actual = list(bundle({name: each for name, each in inputs.items() if name not in freeze}).values())
            why = case.difference(inputs, actual, expected)
            if why:
                return Outcome("wrong", why)
        manifest = bundle.manifest
        rules = dict(sum((collections.Counter(step["rules"]) for step in manifest.passes), collections.Counter[str]()))
        if bundle.wholly_on_migraphx:
            return Outcome("wholly", "", manifest.proof.nodes, rules)
        return Outcome("host", manifest.host_reasons(), manifest.proof.nodes, rules)


def open_shapes(case: suite.Case, sample: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of those inputs whose model leaves a size open."""
    graph = models.load(case.model).graph
    return {
        name: shape
        for name, shape in suite.shapes(sample).items()
        for value in graph.inputs
        if value.name == name and (value.shape is None or not value.shape.is_static())
    }


def stock(case: suite.Case, samples: list[tuple[dict[str, Any], list[Any]]]) -> Outcome:
    """By MIGraphX alone: parse, compile, run."""
    worker = workers.shared(runtimes.find())
    # a size of 0 reads as unknown to MIGraphX, unless it is given
    empty = {name: shape for name, shape in suite.shapes(samples[0][0]).items() if 0 in shape}
    options = OnnxOptions(map_input_dims=empty | open_shapes(case, samples[0][0]))
    program = worker.parse_onnx(case.model, options)
    program.compile("ref")
    wanted = program.get_parameter_shapes()
    for inputs, expected in samples:
        tensors = {name: tensor(each) for name, each in inputs.items() if name in wanted}
        if None in tensors.values():
            return Outcome("refused", "MIGraphX takes no such input")
        results = program.run({name: each for name, each in tensors.items() if each is not None})
        declared = [out.type.tensor_type for out in onnx.load(case.model).graph.output]
        actual = []
        for result, kind in zip(results, declared, strict=False):
            array = result.numpy()
            scalar = kind.HasField("shape") and not kind.shape.dim
            actual.append(array.reshape(()) if scalar and array.shape == (1,) else array)
        why = case.difference(inputs, actual, expected)
        if why:
            return Outcome("wrong", why)
    return Outcome("wholly")


def tensor(array: Any) -> Tensor | None:
    """An input as MIGraphX takes it; None where it has no such type."""
    try:
        return Tensor.of(np.asarray(array))
    except TypeError:
        return None


def reference(case: suite.Case, samples: list[tuple[dict[str, Any], list[Any]]]) -> Outcome:
    """By ONNX Runtime alone."""
    session = Reference(case.model)
    for inputs, expected in samples:
        why = case.difference(inputs, list(session.run(inputs).values()), expected)
        if why:
            return Outcome("wrong", why)
    return Outcome("wholly")


def summary(label: str, outcomes: Iterable[Outcome]) -> str:
    """One line of counts."""
    counts = collections.Counter(each.outcome for each in outcomes)
    wholly = counts["wholly"] + counts["frozen"]
    rest = ", ".join(f"{name} {counts[name]}" for name in OUTCOMES[3:])
    return (
        f"{label}: wholly {wholly} (frozen {counts['frozen']}), with host {counts['host']}, {rest}, of {counts.total()}"
    )


def main() -> int:
    """Run, print, write JSON; exit code 1 where a test that ONNX Runtime gets right is not right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", default="", help="only tests whose name matches this regular expression")
    parser.add_argument("--json", type=Path, help="where to write; default: of a whole run, build/conformance-….json")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    options = parser.parse_args()
    chosen = [case for case in suite.cases() if re.search(options.k, case.name)]
    rows: list[Row] = []
    with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool:
        for row in pool.map(test, chosen, chunksize=4):
            rows.append(row)
            if sys.stderr.isatty():
                print(f"\r{len(rows)} of {len(chosen)}  {row.name[:60]:60}", end="", file=sys.stderr)
            if not row.ours.right:
                print(f"{row.ours.outcome:8} {row.name}: {row.ours.why}")
    runtime = runtimes.find()
    file = options.json or (None if options.k else RESULTS / f"conformance-{runtime.version}-{runtime.kind}.json")
    if file is not None:
        file.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    lost = [row.name for row in rows if row.reference.right and not row.ours.right]
    print(f"right by ONNX Runtime and not here: {', '.join(lost) or 'none'}")
    print(f"nodes: {sum((row.ours.nodes for row in rows), ProofCounts())}")
    print(summary("stock MIGraphX", (row.stock for row in rows)))
    print(summary(f"conformance on MIGraphX {runtime.version} ({runtime.kind})", (row.ours for row in rows)))
    return 1 if lost or any(row.ours.outcome == "crashed" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
