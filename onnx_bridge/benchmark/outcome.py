"""The results of a benchmark as JSON, CSV and a table, and their comparison with a baseline."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from onnx_bridge.benchmark.operators import OperatorTime
from onnx_bridge.benchmark.statistics import Change, Ratio, Summary, change, knee, ratio
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.regular_file import read_regular
from onnx_bridge.core.schema import JsonRecord, parse_json, read_as

FORMAT = 1


@dataclass(frozen=True)
class Row(JsonRecord):
    """The measurements of one engine in one setting.

    Attributes:
        engine: one of `onnx_bridge.benchmark.engines.ENGINES`.
        target: what MIGraphX compiled for; empty for other engines.
        batch: samples per call; None if the model has no batch dimension.
        latencies: seconds of each call, in order.
        load: seconds to load a compiled bundle or a model file.
        first: seconds of the first call.
        memory: peak memory of loading and the first call, in bytes, above what the process had before.
        together: how many calls each latency is the mean of (`onnx_bridge.benchmark.measure`).
        operators: the time of each operator, the slowest first; empty if not measured.
    """

    in_json = ("throughput",)

    engine: str
    target: str
    precision: str
    batch: int | None
    latencies: Annotated[tuple[Annotated[float, Meta(gt=0)], ...], Meta(min_length=1)]
    load: float
    first: float
    memory: int
    together: int = 1
    operators: tuple[OperatorTime, ...] = ()

    @property
    def key(self) -> tuple[str, str, str, int | None]:
        return self.engine, self.target, self.precision, self.batch

    @property
    def name(self) -> str:
        kind = f"{self.engine} {self.target}".strip()
        return f"{kind}, {self.precision}{'' if self.batch is None else f', batch {self.batch}'}"

    @property
    def summary(self) -> Summary:
        """The summary of its latencies."""
        return Summary.of(self.latencies)

    @property
    def throughput(self) -> float:
        """Samples per second, at the median latency."""
        return (self.batch or 1) / self.summary.p50

    def to_json(self) -> dict[str, Any]:
        """Return the row and the summary of its latencies as JSON values."""
        return super().to_json() | self.summary.to_json()


@dataclass(frozen=True)
class Gate:
    """A row compared with that of a baseline: its name, the ratio of the latencies, and what the ratio shows."""

    row: str
    ratio: Ratio
    change: Change


@dataclass(frozen=True)
class BenchResult(JsonRecord):
    """The results of a benchmark.

    Attributes:
        model: the name of the model.
        digest: the sha256 of the model; None for one in memory.
        rows: the rows by batch size, in the order of the engines.
        versions: the versions of the machine and libraries.
        notes: what the user should know, in sentences.
        unavailable: why requested engines are missing.
        gates: the comparison with a baseline; empty without one.
        max_slowdown: the slowdown that it allows.
    """

    in_json = ("passed",)

    model: str
    digest: str | None
    rows: tuple[Row, ...]
    versions: Mapping[str, str]
    notes: tuple[str, ...] = ()
    unavailable: Mapping[str, str] = field(default_factory=dict)
    gates: tuple[Gate, ...] = ()
    max_slowdown: float | None = None

    @property
    def passed(self) -> bool:
        """Return whether no row is slower than the baseline allows."""
        return all(gate.change is not Change.SLOWER for gate in self.gates)

    def ratios(self) -> dict[Row, Ratio]:
        """Return the ratio of each row to the first one of its batch size, measured in the same rounds."""
        first: dict[int | None, Row] = {}
        ratios = {}
        for row in self.rows:
            base = first.setdefault(row.batch, row)
            if base is not row:
                ratios[row] = ratio(row.latencies, base.latencies, paired=True)
        return ratios

    def throughputs(self) -> dict[tuple[str, str, str], dict[int, float]]:
        """Return the throughput by batch size, if there are several, by engine, target and precision."""
        sizes: dict[tuple[str, str, str], dict[int, float]] = {}
        for row in self.rows:
            if row.batch is not None:
                sizes.setdefault(row.key[:3], {})[row.batch] = row.throughput
        return {kind: throughputs for kind, throughputs in sizes.items() if len(throughputs) > 1}

    def knees(self) -> dict[tuple[str, str, str], tuple[int, int]]:
        """Return the batch size with the best throughput, and the knee, by engine, target and precision."""
        return {kind: knee(throughputs) for kind, throughputs in self.throughputs().items()}

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, which can serve as a baseline."""
        ratios, keys = self.ratios(), ("engine", "target", "precision", "best", "knee")
        rows = [row.to_json() | ({"ratio": ratios[row].to_json()} if row in ratios else {}) for row in self.rows]
        knees = [dict(zip(keys, (*kind, *sizes), strict=True)) for kind, sizes in self.knees().items()]
        return {"format": FORMAT} | super().to_json() | {"rows": rows, "knees": knees}

    def to_csv(self) -> str:
        """Return a line for each row, without single latencies and operators."""
        text = io.StringIO()
        left_out = ("latencies", "operators")
        rows = [{name: value for name, value in row.to_json().items() if name not in left_out} for row in self.rows]
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    @property
    def caveat(self) -> str | None:
        """A sentence to read before the figures; None if they speak for themselves."""
        if all(row.target != "ref" for row in self.rows):
            return None
        return "ref is MIGraphX's interpreter on the CPU, for checking numbers: its speed is no measure of a GPU's"

    def sentences(self) -> list[str]:
        sentences = [
            f"{' '.join(filter(None, kind[:2]))}, {kind[2]}: best throughput at batch {best}, knee at {smallest}"
            for kind, (best, smallest) in self.knees().items()
        ]
        if self.ratios():
            sentences.append(
                "× first: latency as a multiple of the first engine's, with its interval of 98 % confidence"
            )
        outliers = sum(row.summary.outliers for row in self.rows)
        if outliers:
            calls = sum(row.summary.calls for row in self.rows)
            sentences.append(
                f"{outliers} of {calls} readings are outliers (beyond Q3 + 3·IQR), excluded from mean and std"
            )
        short = [f"{row.name} ({row.together})" for row in self.rows if row.together > 1]
        if short:
            sentences.append(f"short calls, whose readings are means of several: {'; '.join(short)}")
        sentences += [f"{engine}: not available, {why}" for engine, why in self.unavailable.items()]
        for gate in self.gates:
            limit = f"{self.max_slowdown or 0:.1%}"
            words = {
                Change.SLOWER: f"slower than the baseline by more than {limit}",
                Change.WITHIN: f"within {limit} of the baseline",
                Change.UNDECIDED: f"too noisy to compare with {limit} of slowdown: measure more calls",
            }
            sentences.append(f"{gate.row}: {gate.ratio} × the baseline, {words[gate.change]}")
        return [*sentences, *self.notes]

    def against(self, baseline: Baseline, max_slowdown: float) -> BenchResult:
        """Return the results compared with a baseline; raises InputError if it has another model or no common row."""
        if self.digest is None or baseline.digest != self.digest:
            what = f"the baseline is of another model ({baseline.model}), or of another version of it"
            raise InputError(what, where=str(baseline.path), hint="make one with `bench MODEL -o baseline.json`")
        before = {row.key: row for row in baseline.rows}
        gates = []
        for row in self.rows:
            if row.key in before:
                compared = ratio(row.latencies, before[row.key].latencies)
                gates.append(Gate(row.name, compared, change(compared, max_slowdown)))
        if not gates:
            has = "; ".join(row.name for row in baseline.rows)
            raise InputError(
                "the baseline has none of the rows that were measured", where=str(baseline.path), hint=f"it has {has}"
            )
        notes = list(self.notes)
        missing = [row.name for row in self.rows if row.key not in before]
        if missing:
            notes.append(f"not in the baseline: {'; '.join(missing)}")
        other = [name for name, version in self.versions.items() if baseline.versions.get(name) != version]
        if other:
            notes.append(f"the baseline was measured with another {', '.join(other)}")
        return replace(self, notes=tuple(notes), gates=tuple(gates), max_slowdown=max_slowdown)


@dataclass(frozen=True)
class Baseline:
    """An earlier benchmark, read from its JSON."""

    model: str
    digest: str | None
    rows: tuple[Row, ...]
    versions: Mapping[str, str]
    format: Literal[1]
    path: Path = Path()

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """Read a baseline; raises InputError if the file is not one."""
        try:
            return replace(read_as(cls, parse_json(read_regular(path))), path=path)
        except (OSError, ValueError) as error:
            what = f"the file is not a baseline: {error}"
            raise InputError(what, where=str(path), hint="make one with `bench MODEL -o baseline.json`") from None
