"""The trials of a search that no other trial beats: least latency, memory and error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from onnx_bridge.benchmark.statistics import Ratio


@dataclass(frozen=True)
class Candidate:
    """A way to convert the model.

    Attributes:
        precision: of `onnx_bridge.conversion.precision.PRECISIONS`.
        options: of compiling.
        pipeline: the passes.
        keep_fp32: what stays in float32.
        buckets: the sizes that get a program each, by dimension; empty for a program for one size.
    """

    precision: str = "fp32"
    options: Mapping[str, bool | str] = field(default_factory=dict)
    pipeline: str = "default"
    keep_fp32: tuple[str, ...] = ()
    buckets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For people."""
        parts = [self.precision, *(f"{name}={str(value).lower()}" for name, value in self.options.items())]
        parts += [f"pipeline {self.pipeline}"] if self.pipeline != "default" else []
        parts += [f"{len(self.keep_fp32)} kept in fp32"] if self.keep_fp32 else []
        parts += [f"buckets {name} {' '.join(map(str, sizes))}" for name, sizes in self.buckets.items()]
        return ", ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        values = {**asdict(self), "options": dict(self.options), "keep_fp32": list(self.keep_fp32)}
        return {**values, "buckets": {name: list(sizes) for name, sizes in self.buckets.items()}}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Candidate:
        """What `to_json` gave."""
        buckets = {name: tuple(sizes) for name, sizes in values["buckets"].items()}
        return cls(**{**values, "keep_fp32": tuple(values["keep_fp32"]), "buckets": buckets})


@dataclass(frozen=True)
class Trial:
    """What became of a candidate.

    Attributes:
        candidate: the way.
        seconds: what the trial took.
        failure: why it is out: it does not convert, or differs from the reference; None where it is in.
        latency: the median, in seconds.
        ratio: its latency to that of the first trial, measured in the same rounds.
        memory: bytes of its programs, weights included.
        error: of the worst output, the root of the mean squared error as a share of that of the values.
    """

    candidate: Candidate
    seconds: float
    failure: str | None = None
    latency: float = 0.0
    ratio: Ratio = field(default_factory=lambda: Ratio(1.0, 1.0, 1.0))
    memory: int = 0
    error: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether it is in."""
        return self.failure is None

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {**asdict(self), "candidate": self.candidate.to_json(), "ratio": self.ratio.to_json()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Trial:
        """What `to_json` gave."""
        candidate, found = Candidate.from_json(values["candidate"]), Ratio(**values["ratio"])
        return cls(**{**values, "candidate": candidate, "ratio": found})


def front(trials: Sequence[Trial]) -> list[Trial]:
    """Those that passed and that no other is as good as in everything, and better in something."""
    passed = [trial for trial in trials if trial.passed]
    return [trial for trial in passed if not any(_beats(other, trial) for other in passed)]


def _beats(one: Trial, other: Trial) -> bool:
    pairs = [(one.ratio.value, other.ratio.value), (one.memory, other.memory), (one.error, other.error)]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def winner(trials: Sequence[Trial]) -> Trial | None:
    """The fastest; of those that may be as fast, for all that was measured, the one with the least error.

    None where none passed.
    """
    passed = [trial for trial in trials if trial.passed]
    if not passed:
        return None
    fastest = min(passed, key=lambda trial: trial.ratio.value)
    tied = [trial for trial in passed if trial.ratio.low <= fastest.ratio.value]
    return min(tied, key=lambda trial: (trial.error, trial.ratio.value))


def explain(trial: Trial, trials: Sequence[Trial]) -> str:
    """Why a trial is in, out, or chosen, in a sentence."""
    name = trial.candidate.name
    if not trial.passed:
        return f"{name}: out, {trial.failure}"
    took = f"{trial.ratio} × the first's latency, {trial.memory / 2**20:.3g} MiB, error {trial.error:.2g}"
    best = winner(trials)
    assert best is not None
    if trial is best:
        fastest = min((each for each in trials if each.passed), key=lambda each: each.ratio.value)
        if fastest is trial:
            return f"{name}: chosen, the fastest that agrees with the reference: {took}"
        why = f"as fast as {fastest.candidate.name} for all that was measured, with the smaller error"
        return f"{name}: chosen, {why}: {took}"
    if trial in front(trials):
        better = [
            word
            for word, mine, theirs in (
                ("faster", trial.ratio.value, best.ratio.value),
                ("smaller", trial.memory, best.memory),
                ("more exact", trial.error, best.error),
            )
            if mine < theirs
        ]
        return f"{name}: on the front, {' and '.join(better) or 'as good'}: {took}"
    other = next(each for each in trials if each.passed and _beats(each, trial))
    return f"{name}: beaten by {other.candidate.name} in all respects: {took}"
