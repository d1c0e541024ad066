"""The verb ``tune``: tries precisions, compile options and pipelines within a budget of time, and chooses.

Each trial converts the model, compares it with the reference in that precision's tolerances, and measures it in turns
with the first trial, so that its latency is a ratio that the machine's moods do not move. A precision that does not
agree gets another trial with the nodes kept in float32 that it needs. What a trial found goes into a journal beside the
job file as soon as it is there: a search that was interrupted, or given a larger budget, goes on from that.

Where inputs come in several sizes, buckets are searched too: one for each size, which wastes nothing; one for the
largest alone, which needs the least memory and pads the rest; and, of three sizes or more, one for either end. What is
compared is then the time for one input of each size.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_bridge.benchmark.engines import Call
from onnx_bridge.benchmark.measure import Plan, measure
from onnx_bridge.benchmark.mixed_precision import mixed_precision
from onnx_bridge.benchmark.pareto import Candidate, Trial, explain, front, winner
from onnx_bridge.benchmark.statistics import Ratio, Summary, ratio
from onnx_bridge.benchmark.tuning_journal import Journal
from onnx_bridge.bundle.buckets import Buckets
from onnx_bridge.bundle.bundle import Bundle, manifest_path
from onnx_bridge.conversion.buckets import convert_buckets
from onnx_bridge.conversion.convert import convert
from onnx_bridge.conversion.keys import key_of
from onnx_bridge.conversion.precision import BY_CALIBRATION, PRECISIONS, Precision
from onnx_bridge.core.errors import BridgeError, InputError, RuntimeFailure
from onnx_bridge.core.values import Value
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.compile_options import TUNING
from onnx_bridge.migraphx.machine import compile_environment
from onnx_bridge.migraphx.targets import resolve_target
from onnx_bridge.model import io as models
from onnx_bridge.parity.check import check
from onnx_bridge.parity.report import CheckReport
from onnx_bridge.samples import files
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.inputs import Sample

if TYPE_CHECKING:
    from rich.console import RenderableType

Options = Mapping[str, bool | str]

_OPTIONS: Mapping[str, tuple[Options, ...]] = {
    "ref": ({}, {"fast_math": False}),
    "gpu": ({}, {"fast_math": False}, {"exhaustive_tune": True, TUNING: "keep"}),
}
"""The compile options that are tried for each target."""


@dataclass(frozen=True)
class Tuning:
    """What `tune` found.

    Attributes:
        model: its file.
        target: what was compiled for.
        trials: in the order in which they were made.
        resumed: how many of them were made before.
        left: candidates for which the budget was not enough.
        job: the job file of the winner; None where no trial passed.
        sizes: that inputs come in, by dimension; empty where they have one.
    """

    model: Path
    target: str
    trials: tuple[Trial, ...]
    resumed: int
    left: tuple[Candidate, ...]
    job: Path | None
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def winner(self) -> Trial | None:
        """The one that was chosen."""
        return winner(self.trials)

    @property
    def passed(self) -> bool:
        """Whether there is one."""
        return self.winner is not None

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        chosen, best = self.winner, front(self.trials)
        return {
            "model": str(self.model),
            "target": self.target,
            "trials": [
                {**trial.to_json(), "front": trial in best, "why": explain(trial, self.trials)} for trial in self.trials
            ],
            "winner": chosen.to_json() if chosen else None,
            "resumed": self.resumed,
            "left": [each.to_json() for each in self.left],
            "job": str(self.job) if self.job else None,
            "sizes": {name: list(each) for name, each in self.sizes.items()},
            "passed": self.passed,
        }

    def render(self) -> RenderableType:
        """As a table of the front, and a sentence a trial."""
        from rich.console import Group
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title="the front", title_justify="left")
        table.add_column("candidate")
        for name in ("p50 ms", "× first [98 %]", "MiB", "error"):
            table.add_column(name, justify="right")
        for trial in front(self.trials):
            mark = "[bold]" if trial is self.winner else ""
            numbers = (
                f"{1e3 * trial.latency:.3g}",
                str(trial.ratio),
                f"{trial.memory / 2**20:.3g}",
                f"{trial.error:.2g}",
            )
            table.add_row(f"{mark}{trial.candidate.name}", *numbers)
        lines = [explain(trial, self.trials) for trial in self.trials]
        if self.sizes:
            sizes = "; ".join(f"{name} {', '.join(map(str, each))}" for name, each in self.sizes.items())
            lines.append(f"latencies are those of one input of each size ({sizes})")
        if self.resumed:
            lines.append(f"{self.resumed} of {len(self.trials)} trials were made before")
        if self.left:
            lines.append(f"not tried for want of time: {'; '.join(each.name for each in self.left)}")
        if self.job is not None:
            lines.append(f"written: {self.job}; `onnx-bridge convert {self.job} -o OUT` makes the bundle")
        return Group(table, *lines)


def tune(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    budget: float = 600.0,
    precisions: Sequence[str] = PRECISIONS,
    options: Sequence[Options] | None = None,
    pipelines: Sequence[str] = ("default",),
    target: str = "auto",
    dims: Mapping[str, int] | None = None,
    buckets: Mapping[str, Sequence[int]] | None = None,
    pad: Mapping[str, str] | None = None,
    inputs: files.SampleSource | None = None,
    calibration: str | os.PathLike[str] | None = None,
    host: bool = True,
    iterations: int = 20,
    seed: int = 0,
    resume: bool = True,
    timeout: float | None = None,
    memory: float | None = None,
    progress: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Tuning:
    """Find the fastest way to convert a model that agrees with its reference.

    Args:
        model: an ONNX file.
        out: the job file for `convert` to write (``.toml``); the journal goes beside it.
        budget: seconds. No trial begins that, by the longest one so far, would not end in time.
        precisions: to try; the first one is what others are compared with.
        options: sets of compile options to try; default: those that matter on the target.
        pipelines: to try.
        target: as for `convert`.
        dims: likewise.
        buckets: the sizes that inputs come in, by symbolic dimension: which of them get a bucket is searched.
        pad: as for `onnx_bridge.conversion.buckets.convert_buckets`.
        inputs: the samples to compare and measure on; default: a seeded one, or one of each size.
        calibration: a file or folder, as for `convert`.
        host: as for `convert`.
        iterations: rounds in which a trial is measured.
        seed: of samples and orders.
        resume: whether to go on from the journal.
        timeout: as for `convert`.
        memory: likewise.
        progress: told each trial as it begins.
        clock: the time in seconds.

    Raises:
        InputError: the model or an argument is wrong, or the budget is too short for one trial.
        RuntimeFailure: there is no MIGraphX.
    """
    model, out = Path(model), Path(out)
    if out.suffix != ".toml":
        raise InputError("the job file is a .toml", where=str(out), hint="for example -o tuned.toml")
    if budget <= 0 or iterations < 1:
        raise InputError("it must be more than 0", where="budget" if budget <= 0 else "iterations")
    for each in precisions:
        Precision(each)
    runtime = runtimes.find()
    target = resolve_target(target, runtime)
    tried = tuple(options) if options is not None else _OPTIONS[target]
    sizes = {name: tuple(sorted(set(each))) for name, each in (buckets or {}).items()}
    if sizes and inputs is not None:
        what = "with buckets, inputs are made up for each size"
        raise InputError(what, where="inputs", hint="leave out either of both")
    candidates = [
        Candidate(precision, option, pipeline, buckets=kept)
        for precision, option, pipeline, kept in itertools.product(precisions, tried, pipelines, _bucketings(sizes))
    ]
    if not candidates:
        raise InputError("there is nothing to try", where="precisions, options and pipelines")
    question = {
        "model": models.digest(model),
        "runtime": runtime.identity,
        "environment": compile_environment(os.environ),
        "target": target,
        "dims": dict(dims or {}),
        "host": host,
        "inputs": str(inputs) if inputs is not None else None,
        "calibration": Precision("int8", (), calibration).to_key(),
        "iterations": iterations,
        "seed": seed,
        "first": candidates[0].to_json(),
        "sizes": {name: list(each) for name, each in sizes.items()},
        "pad": dict(pad or {}),
    }
    place = out.with_suffix(".tuning")
    journal = Journal(place / "journal.jsonl", key_of(question), resume)
    common: dict[str, Any] = {"target": target, "dims": dims, "host": host, "timeout": timeout, "memory": memory}
    tell = progress or (lambda _said: None)
    search = _Search(model, place, common, inputs, calibration, iterations, seed, candidates[0], tell, sizes, pad)
    trials: list[Trial] = []
    queue = list(candidates)
    started, longest, resumed = clock(), 0.0, 0
    with contextlib.closing(search):
        while queue:
            candidate = queue[0]
            trial = journal.found(candidate)
            if trial is None:
                left = budget - (clock() - started)
                if trials and longest > left:
                    break
                search.tell(f"trial {len(trials) + 1}: {candidate.name}")
                trial = search.attempt(candidate)
                journal.add(trial)
                if not trials and clock() - started > budget:
                    what = f"the budget of {budget:g} s is too short for one trial, which took {trial.seconds:.3g} s"
                    raise InputError(what, where="budget", hint="give it more; what was found is kept")
            else:
                resumed += 1
            longest = max(longest, trial.seconds)
            trials.append(trial)
            queue.pop(0)
            if trial.failure is not None and trial.failure.startswith(_DIFFERS) and candidate.precision != "fp32":
                found = journal.kept(candidate)
                if found is None and not candidate.keep_fp32 and longest * 2 <= budget - (clock() - started):
                    found = search.mixed_precision(candidate)
                    journal.add_kept(candidate, found)
                if found and not candidate.keep_fp32:
                    queue.insert(0, replace(candidate, keep_fp32=found))
    chosen = winner(trials)
    job = None
    if chosen is not None:
        job = out
        out.write_text(_job(model.absolute(), chosen.candidate, common, calibration, pad or {}))
    return Tuning(model, target, tuple(trials), resumed, tuple(queue), job, sizes)


def _bucketings(sizes: Mapping[str, tuple[int, ...]]) -> list[dict[str, tuple[int, ...]]]:
    """Which of some sizes may get a bucket: all, the largest, or, of three or more, either end; no two alike."""
    ways: list[dict[str, tuple[int, ...]]] = [
        dict(sizes),
        {name: each[-1:] for name, each in sizes.items()},
        {name: (each[0], each[-1]) if len(each) > 2 else each for name, each in sizes.items()},
    ]
    return [way for index, way in enumerate(ways) if way not in ways[:index]]


_DIFFERS = "it differs from the reference"


class _Search:
    """Makes trials of one model.

    Attributes:
        tell: told what is being done.
    """

    def __init__(
        self,
        model: Path,
        place: Path,
        common: Mapping[str, Any],
        inputs: files.SampleSource | None,
        calibration: str | os.PathLike[str] | None,
        iterations: int,
        seed: int,
        first: Candidate,
        tell: Callable[[str], None],
        sizes: Mapping[str, tuple[int, ...]],
        pad: Mapping[str, str] | None,
    ) -> None:
        self._model, self._place, self._common = model, place, common
        self._inputs, self._calibration = inputs, calibration
        self._plan = Plan(iterations, seed=seed)
        self._first = first
        self._base: Bundle | Buckets | None = None
        self._sizes, self._pad = sizes, pad
        self.tell = tell

    def attempt(self, candidate: Candidate) -> Trial:
        """Convert, compare and measure.

        Raises:
            InputError, RuntimeFailure: the first candidate does not convert.
        """
        started = time.perf_counter()

        def out(why: str) -> Trial:
            return Trial(candidate, time.perf_counter() - started, why)

        if self._base is None:
            self._base = self._convert(self._first, self._place / "first")
        try:
            bundle = self._base if candidate == self._first else self._convert(candidate, self._place / "trial")
            report = check(bundle, reference=self._model, inputs=self._inputs, seed=self._plan.seed)
            report.raise_failure()
        except (InputError, RuntimeFailure) as error:
            return out(f"it does not convert: {error.what}")
        if not report.passed:
            return out(f"{_DIFFERS}: {report.summary}")
        samples = self._workload(bundle) if isinstance(bundle, Buckets) else report.samples[:1]

        def run_by(bundle: Bundle | Buckets) -> tuple[Call, Mapping[str, Value]]:
            if len(samples) == 1:
                return bundle, samples[0]
            return lambda _sample: [bundle(each) for each in samples], {}

        if bundle is self._base:
            (measured,) = measure([run_by(bundle)], self._plan)
            series, found = measured.latencies, Ratio(1.0, 1.0, 1.0)
        else:
            mine, base = measure([run_by(bundle), run_by(self._base)], self._plan)
            series, found = mine.latencies, ratio(mine.latencies, base.latencies, paired=True)
        parts = bundle.bundles if isinstance(bundle, Buckets) else [bundle]
        memory = sum(path.stat().st_size for part in parts for path in part.program_paths)
        latency, seconds = Summary.of(series).p50, time.perf_counter() - started
        return Trial(candidate, seconds, None, latency, found, memory, _error(report))

    def mixed_precision(self, candidate: Candidate) -> tuple[str, ...]:
        """What a candidate must keep in float32 (of several sizes at the largest); nothing where that does not help."""
        self.tell(f"{candidate.precision}: which nodes must stay in float32")
        largest = {name: each[-1] for name, each in self._sizes.items()}
        try:
            found = mixed_precision(
                self._model,
                candidate.precision,
                calibration=self._calibration if candidate.precision in BY_CALIBRATION else None,
                inputs=self._inputs,
                seed=self._plan.seed,
                pipeline=candidate.pipeline,
                **{**self._common, "dims": {**(self._common["dims"] or {}), **largest}},
            )
        except BridgeError:
            return ()
        return found.nodes

    def close(self) -> None:
        """Let go of bundles."""
        for name in ("first", "trial"):
            shutil.rmtree(self._place / name, ignore_errors=True)

    def _convert(self, candidate: Candidate, folder: Path) -> Bundle | Buckets:
        if not manifest_path(folder).exists() or candidate.buckets:
            shutil.rmtree(folder, ignore_errors=True)
        how: dict[str, Any] = {
            "pipeline": candidate.pipeline,
            "precision": candidate.precision,
            "calibration": self._calibration if candidate.precision in BY_CALIBRATION else None,
            "keep_fp32": candidate.keep_fp32,
            "options": candidate.options,
            **self._common,
        }
        if candidate.buckets:
            return convert_buckets(self._model, folder, candidate.buckets, pad=self._pad, **how)
        return convert(self._model, folder, **how)

    def _workload(self, bundle: Buckets) -> list[Sample]:
        """One input of each size."""
        combined = itertools.product(*self._sizes.values())
        dims = [dict(zip(self._sizes, each, strict=True)) for each in combined]
        return [samplers.generate(bundle.specs, seed=self._plan.seed, dims=each)[0] for each in dims]


def _error(report: CheckReport) -> float:
    """The worst output's: root of the mean squared error, as a share of the values' own; infinite if different in kind.

    That is 10^(−SQNR/20), which no precision's tolerance is part of.
    """
    found = 0.0
    legs = report.legs if any(leg.name.startswith("bucket ") for leg in report.legs) else report.legs[-1:]
    for comparison in (each for leg in legs for each in leg.comparisons):
        for output in comparison.outputs:
            if output.sqnr_db is None:
                found = max(found, 0.0 if output.passed else math.inf)
            else:
                found = max(found, 10 ** (-output.sqnr_db / 20))
    return found


def _job(
    model: Path, candidate: Candidate, common: Mapping[str, Any], calibration: object, pad: Mapping[str, str]
) -> str:
    """The job file that makes the bundle again."""
    lines = ["[[jobs]]", f"model = {json.dumps(str(model))}", f"target = {json.dumps(common['target'])}"]
    lines.append(f"pipeline = {json.dumps(candidate.pipeline)}")
    lines.append(f"precision = {json.dumps(candidate.precision)}")
    if candidate.keep_fp32:
        lines.append(f"keep_fp32 = {json.dumps(list(candidate.keep_fp32), ensure_ascii=False)}")
    if calibration is not None and candidate.precision in BY_CALIBRATION:
        lines.append(f"calibration = {json.dumps(str(Path(str(calibration)).absolute()))}")
    for name in ("host", "timeout", "memory"):
        if common[name] is not None:
            lines.append(f"{name} = {json.dumps(common[name])}")
    tables = {"dims": common["dims"] or {}, "options": candidate.options, "buckets": candidate.buckets}
    tables["pad"] = pad if candidate.buckets else {}
    for name, table in tables.items():
        if table:
            inner = ", ".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in table.items())
            lines.append(f"{name} = {{{inner}}}")
    return "\n".join(lines) + "\n"


__all__ = ["Tuning", "tune"]
