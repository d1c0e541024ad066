"""The API function `onnx_bridge.tune`: tries precisions, compile options and pipelines within a time budget.

Each trial converts the model, compares it with the reference within that precision's tolerances, and measures it in
turns with the first trial, so that its latency is a ratio, which does not depend on the load of the machine. A
precision that differs gets another trial with the nodes in float32 that it needs. The result of each trial is written
to a journal beside the job file: a search that was interrupted, or gets a larger budget, continues from it.

If inputs have several sizes, buckets are searched as well: one for each size, which pads nothing; one for the largest,
which needs the least memory; and, of three sizes or more, one for the smallest and one for the largest. The latency is
then that of one input of each size.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from onnx_bridge.conversion.keys import calibration_key
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.digest import json_digest
from onnx_bridge.core.progress import Progress, TimedProgress, silent
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.compile_options import TUNING
from onnx_bridge.migraphx.machine import compile_environment
from onnx_bridge.migraphx.targets import resolve_target
from onnx_bridge.model import io as models
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.search import CompileOptions, TuneRequest
from onnx_bridge.search.pareto import Candidate, Trial, winner
from onnx_bridge.search.trials import Trials
from onnx_bridge.search.tuning import Tuning
from onnx_bridge.search.tuning_journal import Journal
from passes.core.doubts import Doubts

if TYPE_CHECKING:
    from onnx_bridge.requests.keywords import TuneOptions

Clock = Callable[[], float]

_OPTIONS: Mapping[str, tuple[CompileOptions, ...]] = {
    "ref": ({}, {"fast_math": False}),
    "gpu": ({}, {"fast_math": False}, {"exhaustive_tune": True, TUNING: "keep"}),
}
"""The compile options that are tried by default, by target."""


def tune(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    clock: Clock = time.monotonic,
    **options: Unpack[TuneOptions],
) -> Tuning:
    """Find the fastest way to convert a model that agrees with its reference.

    Args:
        model: an ONNX file.
        out: the job file for `convert` to write (``.toml``); the journal is beside it.
        progress: called with each trial as it begins.
        clock: the time in seconds.
        options: the fields of `onnx_bridge.requests.search.TuneRequest`. No trial begins that would exceed the
            ``budget``, if it took as long as the longest one so far. ``buckets`` are the sizes of inputs, by symbolic
            dimension: which of them get a bucket is searched.

    Raises:
        InputError: the model or an option is wrong, or the budget is too short for one trial.
        RuntimeFailure: there is no MIGraphX.
    """
    return run(Path(model), Path(out), TuneRequest.of(options), progress, clock)


def run(
    model: Path, out: Path, request: TuneRequest, progress: Progress | None = None, clock: Clock = time.monotonic
) -> Tuning:
    """Search as a request says; errors are those of `tune`."""
    if out.suffix != ".toml":
        raise InputError("the job file must be a .toml", where=str(out), hint="for example -o tuned.toml")
    sizes = {name: tuple(sorted(set(sizes))) for name, sizes in request.conversion.buckets.items()}
    request = replace(request, conversion=replace(request.conversion, buckets=sizes))
    runtime = runtimes.find(request.conversion.runtime)
    target = resolve_target(request.conversion.target, runtime)
    request = replace(request, conversion=replace(request.conversion, target=target))
    candidates = _candidates(request)
    folder = out.with_suffix(".tuning")
    journal = Journal(folder / "journal.jsonl", _key(model, request, candidates[0], runtime), request.resume)
    trials = Trials(model, folder, request, candidates[0])
    search = _Search(trials, journal, candidates, request.budget, clock, progress or silent)
    with contextlib.closing(trials):
        search.run()
    chosen = winner(search.done)
    if chosen is not None:
        out.write_text(_job(model.absolute(), chosen.candidate.conversion(request.conversion)))
    job = None if chosen is None else out
    return Tuning(
        model, target, tuple(search.done), search.resumed, tuple(search.queue), job, request.conversion.buckets
    )


def _candidates(request: TuneRequest) -> list[Candidate]:
    """Return all combinations of what is to be tried."""
    conversion = request.conversion
    options = _OPTIONS[conversion.target] if request.options is None else request.options
    candidates = [
        Candidate(precision, option, pipeline, buckets=buckets)
        for precision, option, pipeline, buckets in itertools.product(
            request.precisions, options, request.pipelines, _bucketings(conversion.buckets)
        )
    ]
    if not candidates:
        raise InputError("no candidate is left to try", where="precisions, options and pipelines")
    return candidates


def _bucketings(sizes: Mapping[str, tuple[int, ...]]) -> list[dict[str, tuple[int, ...]]]:
    """Return the different choices of sizes with a bucket: all; the largest; of three or more the first and last."""
    choices: list[dict[str, tuple[int, ...]]] = [
        dict(sizes),
        {name: values[-1:] for name, values in sizes.items()},
        {name: (size[0], size[-1]) if len(size) > 2 else size for name, size in sizes.items()},
    ]
    return [choice for index, choice in enumerate(choices) if choice not in choices[:index]]


def _key(model: Path, request: TuneRequest, first: Candidate, runtime: runtimes.Runtime) -> str:
    """Return the key of the search in its journal: everything that its trials depend on."""
    conversion = request.conversion
    return json_digest(
        {
            "model": models.digest(model),
            "runtime": runtime.identity,
            "environment": compile_environment(os.environ),
            "target": conversion.target,
            "dims": dict(conversion.dims),
            "host": conversion.host,
            "inputs": str(request.inputs) if request.inputs is not None else None,
            "calibration": calibration_key(conversion.calibration),
            "iterations": request.iterations,
            "seed": request.seed,
            "first": first.to_json(),
            "sizes": {name: list(bucket) for name, bucket in conversion.buckets.items()},
            "pad": dict(conversion.pad),
            "pad_before": sorted(conversion.pad_before),
        }
    )


@dataclass
class _Search:
    """Runs trials until no candidate is left, or the budget of seconds is spent; ``resumed`` are from the journal."""

    trials: Trials
    journal: Journal
    queue: list[Candidate]
    budget: float
    clock: Clock
    tell: Progress
    done: list[Trial] = field(default_factory=list)
    resumed: int = 0
    _longest: float = 0.0
    _started: float = 0.0

    def run(self) -> None:
        """Run the search; raises InputError if the budget is too short for one trial."""
        self._started = self.clock()
        while self.queue:
            candidate = self.queue[0]
            trial = self.journal.trial(candidate)
            if trial is not None:
                self.resumed += 1
            elif self.done and self._longest > self._left():
                break
            else:
                trial = self._run(candidate)
            self._longest = max(self._longest, trial.seconds)
            self.done.append(trial)
            self.queue.pop(0)
            if trial.differs and (nodes := self._float32_nodes(candidate)):
                self.queue.insert(0, replace(candidate, keep_fp32=nodes))

    def _left(self) -> float:
        """Return the seconds that are left."""
        return self.budget - (self.clock() - self._started)

    def _run(self, candidate: Candidate) -> Trial:
        self.tell(TimedProgress(f"trial {len(self.done) + 1}: {candidate.name}", max(self._left(), 0.0)))
        doubts, trial = Doubts(), self.trials.run(candidate)
        if not doubts:
            self.journal.add(trial)
        if not self.done and self._left() < 0:
            what = f"the budget of {self.budget:g} s is too short for one trial, which took {trial.seconds:.3g} s"
            raise InputError(what, where="budget", hint="give a larger one; the trial is in the journal")
        return trial

    def _float32_nodes(self, candidate: Candidate) -> tuple[str, ...]:
        """Return the nodes that must stay in float32, from the journal or by a search, if there is time for one."""
        if candidate.precision == "fp32" or candidate.keep_fp32:
            return ()
        nodes = self.journal.float32_nodes(candidate)
        if nodes is None and self._longest * 2 <= self._left():
            doubts, nodes = Doubts(), self.trials.float32_nodes(candidate, self.tell)
            if not doubts:
                self.journal.add_float32_nodes(candidate, nodes)
        return nodes or ()


def _job(model: Path, request: ConvertRequest) -> str:
    """Return the job file that makes the bundle again."""
    if request.calibration is not None:
        request = replace(request, calibration=Path(str(request.calibration)).absolute())
    values, defaults = request.to_json(), ConvertRequest().to_json()
    always = ("target", "pipeline", "precision", "host")
    wanted = {name: value for name, value in values.items() if name in always or value != defaults[name]}
    lines = ["[[jobs]]", f"model = {json.dumps(str(model))}"]
    return "\n".join([*lines, *(f"{name} = {_toml(value)}" for name, value in wanted.items())]) + "\n"


def _toml(value: Any) -> str:
    """Return a JSON value as TOML, with inline tables."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(key)} = {_toml(item)}' for key, item in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)
