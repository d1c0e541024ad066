"""The Pareto front of a search: the trials that no other trial dominates in latency, memory and error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from onnx_bridge.benchmark.statistics import Ratio
from onnx_bridge.conversion.precision.precision import BY_CALIBRATION
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.requests.conversion import ConvertRequest


@dataclass(frozen=True)
class Candidate(JsonRecord):
    """A way to convert the model.

    Attributes:
        precision: one of `onnx_bridge.conversion.precision.precision.PRECISIONS`.
        options: compile options.
        pipeline: the passes.
        keep_fp32: the nodes that stay in float32.
        buckets: the sizes with a program each, by dimension; empty for one program.
    """

    precision: str = "fp32"
    options: Mapping[str, bool | str] = field(default_factory=dict)
    pipeline: str = "default"
    keep_fp32: tuple[str, ...] = ()
    buckets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        parts = [self.precision, *(f"{name}={str(value).lower()}" for name, value in self.options.items())]
        parts += [f"pipeline {self.pipeline}"] if self.pipeline != "default" else []
        parts += [f"{len(self.keep_fp32)} kept in fp32"] if self.keep_fp32 else []
        parts += [f"buckets {name} {' '.join(map(str, sizes))}" for name, sizes in self.buckets.items()]
        return ", ".join(parts)

    def conversion(self, base: ConvertRequest) -> ConvertRequest:
        """Return the request for this conversion; ``base`` says everything else."""
        return replace(
            base,
            precision=self.precision,
            options=self.options,
            pipeline=self.pipeline,
            keep_fp32=self.keep_fp32,
            buckets=self.buckets,
            pad=base.pad if self.buckets else {},
            pad_before=base.pad_before if self.buckets else (),
            calibration=base.calibration if self.precision in BY_CALIBRATION else None,
        )


@dataclass(frozen=True)
class Trial(JsonRecord):
    """The result of a candidate.

    Attributes:
        candidate: how the model was converted.
        failure: why it failed: it does not convert, or differs from the reference; None if it passed.
        latency: the median, in seconds.
        ratio: the ratio of its latency to that of the first trial, measured in the same rounds.
        memory: bytes of its programs, weights included.
        error: the error of the worst output: the root of the mean squared error relative to the reference's.
        differs: whether it failed because it differs from the reference.
    """

    candidate: Candidate
    seconds: float
    failure: str | None = None
    latency: float = 0.0
    ratio: Ratio = field(default_factory=lambda: Ratio(1.0, 1.0, 1.0))
    memory: int = 0
    error: float = 0.0
    differs: bool = False

    @property
    def passed(self) -> bool:
        """Return whether it converted and agrees with the reference."""
        return self.failure is None


def pareto_front(trials: Sequence[Trial]) -> list[Trial]:
    """Return the passed trials that no other one dominates."""
    passed = [trial for trial in trials if trial.passed]
    return [trial for trial in passed if not any(_dominates(other, trial) for other in passed)]


def _dominates(trial: Trial, other: Trial) -> bool:
    """Return whether one trial is at least as good in all respects, and better in one."""
    pairs = [(trial.ratio.value, other.ratio.value), (trial.memory, other.memory), (trial.error, other.error)]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def winner(trials: Sequence[Trial]) -> Trial | None:
    """Return the fastest trial, or the most exact of those as fast within the measured noise; None if none passed."""
    passed = [trial for trial in trials if trial.passed]
    if not passed:
        return None
    fastest = min(passed, key=lambda trial: trial.ratio.value)
    tied = [trial for trial in passed if trial.ratio.low <= fastest.ratio.value]
    return min(tied, key=lambda trial: (trial.error, trial.ratio.value))


def explain(trial: Trial, trials: Sequence[Trial]) -> str:
    """Return why a trial was chosen or not, in a sentence."""
    name = trial.candidate.name
    if not trial.passed:
        return f"{name}: failed, {trial.failure}"
    took = f"{trial.ratio} × the first's latency, {trial.memory / 2**20:.3g} MiB, error {trial.error:.2g}"
    best = winner(trials)
    assert best is not None
    if trial is best:
        fastest = min((trial for trial in trials if trial.passed), key=lambda trial: trial.ratio.value)
        if fastest is trial:
            return f"{name}: chosen, the fastest that agrees with the reference: {took}"
        why = f"as fast as {fastest.candidate.name} within the measured noise, with the smaller error"
        return f"{name}: chosen, {why}: {took}"
    if trial in pareto_front(trials):
        better = [
            word
            for word, mine, theirs in (
                ("faster", trial.ratio.value, best.ratio.value),
                ("smaller", trial.memory, best.memory),
                ("more accurate", trial.error, best.error),
            )
            if mine < theirs
        ]
        return f"{name}: on the Pareto front, {' and '.join(better) or 'as good'}: {took}"
    other = next(candidate for candidate in trials if candidate.passed and _dominates(candidate, trial))
    return f"{name}: dominated by {other.candidate.name}: {took}"
