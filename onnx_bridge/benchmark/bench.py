"""The API function `onnx_bridge.bench`: engines side by side, over precisions and batch sizes."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import onnx_ir as ir

from onnx_bridge.benchmark import engines as engine_names
from onnx_bridge.benchmark.engines import TORCH, Engine, Unavailable, check_names, open_engine
from onnx_bridge.benchmark.measure import Rounds, measure
from onnx_bridge.benchmark.operators import per_operator as operator_times
from onnx_bridge.benchmark.outcome import Baseline, BenchResult, Row
from onnx_bridge.benchmark.subject import Subject, export_factory
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.manifest.compatibility import require_own_settings
from onnx_bridge.conversion.precision.precision import BY_CALIBRATION
from onnx_bridge.conversion.steps.run import run as convert
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress, silent
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.requests.search import BenchRequest
from onnx_bridge.samples.inputs import Sample
from onnx_bridge.torch.modules import factories
from passes.isolation.limits import limited

if TYPE_CHECKING:
    from onnx_bridge.requests.keywords import BenchOptions

Model = str | os.PathLike[str] | ir.Model | Bundle
_KEEPS_FP32 = ("fp16", "bf16", "int8")
"""The precisions in which nodes may stay in float32."""


def bench(model: Model, *, progress: Progress | None = None, **options: Unpack[BenchOptions]) -> BenchResult:
    """Measure latency, throughput, memory, and the time until the first result.

    Engines take turns, round by round, in random order; each is called with the same sample. MIGraphX runs in its
    worker process, as it does for `Bundle`, and the overhead of that is part of its latency.

    Args:
        model: a model, which is converted (into a temporary folder); or a bundle; or the name of a factory of a PyTorch
            module with its arguments, which is exported.
        progress: called with each stage as it begins.
        options: the fields of `onnx_bridge.requests.search.BenchRequest`.

    Raises:
        InputError: an option, the model or the baseline is wrong, or no engine is available.
        RuntimeFailure: MIGraphX failed.
    """
    return run(model, BenchRequest.of(options), progress)


def run(model: Model, request: BenchRequest, progress: Progress | None = None) -> BenchResult:
    """Measure a model as a request says; errors are those of `bench`."""
    with limited(request.conversion.limits):
        return _run(model, request, progress or silent)


def _run(model: Model, request: BenchRequest, tell: Progress) -> BenchResult:
    baseline = None if request.against is None else Baseline.read(request.against)
    factory = str(model) if factories.is_factory(model) else None
    request = replace(request, module=request.module or factory)
    check_names(request.engines, request.module)
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as temporary:
        folder = Path(temporary)
        if factory is not None:
            tell(f"exporting {factory}")
            model = export_factory(factory, folder, bool(request.batches))
        subject = Subject.of(model, folder, request.conversion)
        if subject.bundle is not None and (request.batches or request.precisions != ("fp32",)):
            what = "a bundle has the batch size and the precision that it was made with"
            raise InputError(what, where=str(subject.bundle.path), hint="bench the model instead")
        if subject.bundle is not None and subject.bundle.manifest.decoder is not None:
            hint = "`onnx-bridge generate` says how long tokens take; or bench the model"
            raise InputError("a decoder is called token by token", where=str(subject.bundle.path), hint=hint)
        if subject.bundle is not None:
            names = ("pipeline", "dims", "target", "keep_fp32", "options")
            require_own_settings(subject.bundle.manifest, request.conversion, subject.bundle.path, *names)
        benchmark = _Benchmark(request, subject, folder, tell)
        symbol = subject.batch_dimension() if request.batches else None
        for batch in request.batches or (None,):
            sizes = dict(request.conversion.dims)
            if symbol is not None and batch is not None:
                sizes[symbol] = batch
            benchmark.measure(batch, sizes)
        result = benchmark.result()
    return result if baseline is None else result.against(baseline, request.max_slowdown)


@dataclass
class _Benchmark:
    """A benchmark in progress, with the rows and notes so far, and the engines that cannot run here."""

    request: BenchRequest
    subject: Subject
    folder: Path
    tell: Progress
    rows: list[Row] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    unavailable: dict[str, Unavailable] = field(default_factory=dict)

    def measure(self, batch: int | None, sizes: Mapping[str, int]) -> None:
        """Measure all engines and precisions at a batch size, in the same rounds; raises InputError if none can run."""
        request = self.request
        rounds = Rounds(request.iterations, request.warmup, request.seconds, request.seed)
        sample: Sample | None = None
        opened: list[tuple[Engine, Row]] = []
        with contextlib.ExitStack() as stack:
            for engine, precision in self._settings():
                bundle = self._bundle(precision, batch, sizes) if engine == "migraphx" else None
                if sample is None:  # after the conversion, whose errors are more helpful
                    sample = self.subject.sample(request.inputs, sizes, request.seed)
                self.tell(f"loading {engine}")
                try:
                    ready = open_engine(engine, bundle, self.subject.path, request.module, sample)
                except Unavailable as error:
                    self.unavailable[engine] = error
                    continue
                stack.callback(ready.close)
                opened.append((ready, self._row(engine, precision, batch, bundle, ready, sample)))
            if sample is None or not opened:
                raise next(iter(self.unavailable.values()))
            what = "measuring" if batch is None else f"measuring batch {batch}"
            measured = measure([(engine.call, sample) for engine, _ in opened], rounds, tell=self.tell, what=what)
        self.rows += [
            replace(row, latencies=series.latencies, together=series.together)
            for (_, row), series in zip(opened, measured, strict=True)
        ]

    def result(self) -> BenchResult:
        reasons = {engine: error.what for engine, error in self.unavailable.items()}
        subject, versions = self.subject, _versions(self.rows, self.subject, self.request.conversion.runtime)
        return BenchResult(subject.name, subject.digest, tuple(self.rows), versions, tuple(self.notes), reasons)

    def _settings(self) -> Iterator[tuple[str, str]]:
        """Yield each engine with its precisions."""
        for engine in self.request.engines:
            for precision in self.request.precisions if engine == "migraphx" else ("fp32",):
                yield engine, precision

    def _bundle(self, precision: str, batch: int | None, sizes: Mapping[str, int]) -> Bundle:
        if self.subject.bundle is not None:
            return self.subject.bundle
        self.tell(f"converting to {precision}")
        conversion = self.request.conversion
        request = replace(
            conversion,
            dims=dict(sizes),
            prove="never",
            precision=precision,
            calibration=conversion.calibration if precision in BY_CALIBRATION else None,
            keep_fp32=conversion.keep_fp32 if precision in _KEEPS_FP32 else (),
        )
        bundle = convert(self.subject.path, self.folder / f"{precision}-{batch}", request)
        self.notes |= dict.fromkeys(f"{precision}: {note}" for note in bundle.manifest.notes)
        return bundle

    def _row(
        self, engine: str, precision: str, batch: int | None, bundle: Bundle | None, ready: Engine, sample: Sample
    ) -> Row:
        """Return the row of an engine, without its latencies."""
        start = ready.start
        if bundle is None:
            return Row(engine, "", precision, batch, (), start.load, start.first, start.memory)
        precision, target = bundle.manifest.request.precision, bundle.manifest.target
        row = Row(engine, target, precision, batch, (), start.load, start.first, start.memory)
        if not self.request.per_operator:
            return row
        self.tell("measuring MIGraphX's operators")
        return replace(row, operators=operator_times(bundle, sample))


def _versions(rows: Sequence[Row], subject: Subject, runtime: str | None) -> dict[str, str]:
    versions = {"machine": f"{platform.node()} {platform.machine()}", "cores": str(os.cpu_count())}
    names = {row.engine for row in rows}
    if "migraphx" in names:
        bundle = subject.bundle
        versions["MIGraphX"] = bundle.manifest.versions["migraphx"] if bundle else runtimes.find(runtime).version
    if names.intersection(engine_names.PROVIDERS):
        versions["ONNX Runtime"] = importlib.metadata.version("onnxruntime")
    if names.intersection(TORCH):
        versions["torch"] = importlib.metadata.version("torch")
    return versions
