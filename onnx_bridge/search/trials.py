"""The trials of a search: convert a model in one way, compare it with its reference, and measure it."""

from __future__ import annotations

import itertools
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from onnx_bridge.benchmark.engines import Call
from onnx_bridge.benchmark.measure import Rounds, measure
from onnx_bridge.benchmark.statistics import Ratio, Summary, ratio
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.manifest.text import manifest_path
from onnx_bridge.conversion import convert as conversion
from onnx_bridge.core.errors import BridgeError, InputError, RuntimeFailure
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.values import Value
from onnx_bridge.parity.checking import check
from onnx_bridge.parity.checking.report import CheckReport
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.parity import CheckRequest
from onnx_bridge.requests.search import MixedPrecisionRequest, TuneRequest
from onnx_bridge.samples.inputs import Sample
from onnx_bridge.search import mixed_precision
from onnx_bridge.search.pareto import Candidate, Trial


class Trials:
    """Runs trials of a model file, with bundles in ``folder``, and measures them against the candidate ``first``."""

    def __init__(self, model: Path, folder: Path, request: TuneRequest, first: Candidate) -> None:
        self._model, self._folder, self._request, self._first = model, folder, request, first
        self._rounds = Rounds(request.iterations, seed=request.seed)
        self._comparison = CheckRequest(reference=model, inputs=request.inputs, seed=request.seed)
        self._base: Bundle | None = None

    def run(self, candidate: Candidate) -> Trial:
        """Convert, compare and measure; raises InputError or RuntimeFailure if the first candidate does not convert."""
        started = time.perf_counter()
        if self._base is None:
            self._base = self._convert(self._first, self._folder / "first")
        try:
            bundle = self._base if candidate == self._first else self._convert(candidate, self._folder / "trial")
            report = check.run(bundle, self._comparison)
            report.raise_failure()
        except (InputError, RuntimeFailure) as error:
            return Trial(candidate, time.perf_counter() - started, f"it does not convert: {error.what}")
        if not report.passed:
            reason = f"the model differs from the reference: {report.summary}"
            return Trial(candidate, time.perf_counter() - started, reason, differs=True)
        bucketed = bool(bundle.manifest.dims)
        samples = self._workload(bundle) if bucketed else report.samples[:1]
        latency, ratio = self._measure(bundle, self._base, samples)
        return Trial(
            candidate,
            time.perf_counter() - started,
            latency=latency,
            ratio=ratio,
            memory=sum(path.stat().st_size for program in bundle.programs for path in program.files),
            error=_error(report, bucketed),
        )

    def float32_nodes(self, candidate: Candidate, progress: Progress) -> tuple[str, ...]:
        """Return the nodes that must stay in float32 at the largest sizes; empty if the search fails."""
        progress(f"{candidate.precision}: which nodes must stay in float32")
        conversion = self._conversion(candidate)
        dims = {**conversion.dims, **{name: sizes[-1] for name, sizes in self._sizes.items()}}
        conversion = replace(conversion, dims=dims, buckets={}, pad={}, pad_before=(), options={}, keep_fp32=())
        request = MixedPrecisionRequest(inputs=self._request.inputs, seed=self._request.seed, conversion=conversion)
        try:
            return mixed_precision.run(self._model, request).nodes
        except BridgeError:
            return ()

    def close(self) -> None:
        for name in ("first", "trial"):
            shutil.rmtree(self._folder / name, ignore_errors=True)

    @property
    def _sizes(self) -> Mapping[str, tuple[int, ...]]:
        return self._request.conversion.buckets

    def _measure(self, bundle: Bundle, base: Bundle, samples: Sequence[Mapping[str, Value]]) -> tuple[float, Ratio]:
        """Return the median latency of a bundle for all samples, and its ratio to the base."""
        if bundle is base:
            (series,) = measure([_call(bundle, samples)], self._rounds)
            return Summary.of(series.latencies).p50, Ratio(1.0, 1.0, 1.0)
        series, other = measure([_call(bundle, samples), _call(base, samples)], self._rounds)
        return Summary.of(series.latencies).p50, ratio(series.latencies, other.latencies, paired=True)

    def _conversion(self, candidate: Candidate) -> ConvertRequest:
        return replace(candidate.conversion(self._request.conversion), prove="never")

    def _convert(self, candidate: Candidate, folder: Path) -> Bundle:
        if not manifest_path(folder).exists() or candidate.buckets:
            shutil.rmtree(folder, ignore_errors=True)
        request = self._conversion(candidate)
        return conversion.run(self._model, folder, request)

    def _workload(self, bundle: Bundle) -> list[Sample]:
        """Return one input of each size."""
        combined = itertools.product(*self._sizes.values())
        dims = [dict(zip(self._sizes, bound, strict=True)) for bound in combined]
        return [bundle.sample(dim, seed=self._request.seed) for dim in dims]


def _call(bundle: Bundle, samples: Sequence[Mapping[str, Value]]) -> tuple[Call, Mapping[str, Value]]:
    """Return a call that runs all samples, and its argument."""
    if len(samples) == 1:
        return bundle, samples[0]
    return lambda _sample: [bundle(sample) for sample in samples], {}


def _error(report: CheckReport, bucketed: bool) -> float:
    """Return the error of the worst output, √(Σ (output − reference)² / Σ reference²) = 10^(−SQNR/20); may be infinite.

    Unlike a tolerance it is comparable between precisions.
    """
    legs = report.legs if bucketed else report.legs[-1:]
    worst = 0.0
    for output in (output for leg in legs for comparison in leg.comparisons for output in comparison.outputs):
        if output.sqnr_db is None:
            worst = max(worst, 0.0 if output.passed else math.inf)
        else:
            worst = max(worst, 10 ** (-output.sqnr_db / 20))
    return worst
