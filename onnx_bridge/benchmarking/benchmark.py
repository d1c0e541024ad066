"""The verb ``bench``: engines side by side, over precisions and batch sizes."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from onnx_bridge import input_files
from onnx_bridge import inputs as samplers
from onnx_bridge import model as models
from onnx_bridge.benchmarking import engines as engine_names
from onnx_bridge.benchmarking.engines import Opened, check_names, forget_peak, open_bundle, open_module, open_session
from onnx_bridge.benchmarking.engines import resident as memory_of
from onnx_bridge.benchmarking.measuring import Plan, measure
from onnx_bridge.benchmarking.outcome import Baseline, Bench, Row
from onnx_bridge.conversion.bundle import Bundle, is_bundle
from onnx_bridge.conversion.convert import convert
from onnx_bridge.errors import InputError
from onnx_bridge.inputs import Sample, TensorSpec
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.precision import Precision

Tell = Callable[[str], None]


def bench(
    model: str | os.PathLike[str] | ir.Model | Bundle,
    *,
    batches: Sequence[int] = (),
    precisions: Sequence[str] = ("fp32",),
    engines: Sequence[str] = ("migraphx", "ort"),
    module: str | None = None,
    inputs: input_files.Given | None = None,
    iterations: int = 50,
    warmup: int = 3,
    seconds: float | None = None,
    seed: int = 0,
    against: str | os.PathLike[str] | None = None,
    max_slowdown: float = 0.05,
    target: str = "auto",
    pipeline: str = "default",
    dims: Mapping[str, int] | None = None,
    calibration: input_files.Given | None = None,
    keep_fp32: Sequence[str] = (),
    options: Mapping[str, bool | str] | None = None,
    timeout: float | None = None,
    memory: float | None = None,
    progress: Tell | None = None,
) -> Bench:
    """Measure latency, throughput, memory, and the time until the first result.

    Engines take turns, round by round, in a drawn order; each is called on the same sample. MIGraphX runs in its worker
    process, as it does behind `Bundle`, and what that costs is part of its latency.

    Args:
        model: a model, which is converted first (into a temporary folder); or a bundle, which is as it is.
        batches: sizes of the model's batch dimension, the symbolic first one of its inputs; empty leaves it alone.
        precisions: that MIGraphX computes in; other engines compute in the model's own.
        engines: of `onnx_bridge.benchmarking.engines.ENGINES`; ratios are to the first of them.
        module: for ``torch``, ``file.py:function`` that makes the module; inputs are given by position.
        inputs: where to take the sample from (the first one); default: a seeded one.
        iterations: rounds, at most.
        warmup: calls before that do not count.
        seconds: no further round begins after so many, for each batch size, but for the first five.
        seed: of the sample and of the order.
        against: the JSON of an earlier benchmark.
        max_slowdown: the share by which it may be slower than that (0.05 is 5 %).
        target: as for `convert`, for a model.
        pipeline: likewise.
        dims: likewise.
        calibration: likewise, for those precisions that need it.
        keep_fp32: likewise, for those precisions that take it.
        options: likewise.
        timeout: likewise.
        memory: likewise.
        progress: told each stage as it begins.

    Raises:
        InputError: an argument, the model or the baseline is wrong.
        RuntimeFailure: MIGraphX failed.
    """
    tell = progress or (lambda _stage: None)
    baseline = None if against is None else Baseline.read(Path(against))
    _check(batches, precisions, iterations, warmup, max_slowdown)
    check_names(tuple(engines), module)
    plan = Plan(iterations, warmup, seconds, seed)
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
        given = _Given.of(model, Path(folder), timeout, memory)
        if given.bundle is not None and (batches or tuple(precisions) != ("fp32",)):
            what = "a bundle has the batch size and the precision that it was made with"
            raise InputError(what, where=str(given.bundle.path), hint="bench the model instead")
        symbol = given.batch_dimension() if batches else None
        rows: list[Row] = []
        notes: dict[str, None] = {}
        for batch in batches or (None,):
            sizes = {**(dims or {}), **({symbol: batch} if symbol is not None and batch is not None else {})}
            opened: list[tuple[Opened, Row]] = []
            with contextlib.ExitStack() as stack:
                sample: Sample | None = None
                for engine in engines:
                    for precision in precisions if engine == "migraphx" else ("fp32",):
                        made = given.bundle
                        if engine == "migraphx" and made is None:
                            tell(f"converting to {precision}")
                            made = convert(
                                given.path,
                                Path(folder) / f"{precision}-{batch}",
                                target=target,
                                pipeline=pipeline,
                                dims=sizes,
                                precision=precision,
                                calibration=calibration if precision in ("int8", "fp8") else None,
                                keep_fp32=keep_fp32 if precision in ("fp16", "bf16", "int8") else (),
                                options=options,
                                timeout=timeout,
                                memory=memory,
                            )
                            notes |= dict.fromkeys(f"{precision}: {note}" for note in made.manifest.notes)
                        if sample is None:
                            sample = given.sample(inputs, sizes, seed)
                        tell(f"loading {engine}")
                        opened.append(_opened(engine, precision, batch, made, given, module, sample))
                        stack.callback(opened[-1][0].close)
                assert sample is not None
                tell("measuring" if batch is None else f"measuring batch {batch}")
                found = measure([(each.call, sample) for each, _ in opened], plan)
                rows += [_with(row, series) for (_, row), series in zip(opened, found, strict=True)]
        result = Bench(given.name, given.digest, tuple(rows), _versions(rows, given), tuple(notes))
    return result if baseline is None else result.against(baseline, max_slowdown)


def _check(batches: Sequence[int], precisions: Sequence[str], iterations: int, warmup: int, slowdown: float) -> None:
    if any(each < 1 for each in batches) or len(set(batches)) < len(batches):
        raise InputError(f"{list(batches)} are no batch sizes", where="batch", hint="as in 1,2,4,8, each once")
    if iterations < 1 or warmup < 0:
        raise InputError("at least one iteration, and no fewer than 0 calls before, are needed", where="iterations")
    if not 0 <= slowdown < 10:
        raise InputError(f"it cannot be {slowdown:.0%}", where="max-slowdown", hint="as in 5%")
    if not precisions:
        raise InputError("there is nothing to measure: no precision is named", where="precisions")
    for each in precisions:
        Precision(each)


@dataclass(frozen=True)
class _Given:
    """What is measured: a bundle, or a model as a file.

    Attributes:
        bundle: None for a model.
        path: the model's file; of a bundle, that which it was made from if it is still there, else the cleaned one.
        name: the model's.
        digest: of the model; None for one in memory.
    """

    bundle: Bundle | None
    path: Path
    name: str
    digest: str | None

    @classmethod
    def of(
        cls,
        model: str | os.PathLike[str] | ir.Model | Bundle,
        folder: Path,
        timeout: float | None,
        memory: float | None,
    ) -> _Given:
        if isinstance(model, ir.Model):
            path = folder / "model.onnx"
            models.save(model, path)
            return cls(None, path, model.graph.name or "model", None)
        if isinstance(model, Bundle) or is_bundle(model):
            bundle = model if isinstance(model, Bundle) else Bundle(model, timeout=timeout, memory=memory)
            source = bundle.manifest.source
            original = Path(source["path"]) if source["path"] else None
            whole = original is not None and original.exists() and models.digest(original) == source["sha256"]
            path_ = original if whole else bundle.model_path
            return cls(bundle, path_ or bundle.path, bundle.manifest.name, source["sha256"])
        path = Path(model)
        return cls(None, path, path.stem, models.digest(path))

    def specs(self) -> list[TensorSpec]:
        """What the model takes."""
        return self.bundle.specs if self.bundle is not None else samplers.specs(models.load(self.path))

    def batch_dimension(self) -> str:
        """The symbolic first dimension of the inputs.

        Raises:
            InputError: there is none, or there are several.
        """
        found = {spec.shape[0] for spec in self.specs() if spec.shape and isinstance(spec.shape[0], str)}
        if len(found) != 1:
            has = f"there are {', '.join(sorted(found))}" if found else "the first dimensions of its inputs are fixed"
            raise InputError(f"it has no batch dimension: {has}", where=str(self.path), hint="leave out --batch")
        return found.pop()

    def sample(self, inputs: input_files.Given | None, sizes: Mapping[str, int], seed: int) -> Sample:
        specs = self.specs()
        if inputs is not None:
            return input_files.given(inputs, specs, count=1)[0]
        symbols = {dim for spec in specs for dim in spec.shape or () if isinstance(dim, str)}
        known = {name: size for name, size in sizes.items() if name in symbols}
        return samplers.generate(specs, seed=seed, dims=known)[0]


def _opened(
    engine: str,
    precision: str,
    batch: int | None,
    bundle: Bundle | None,
    given: _Given,
    module: str | None,
    sample: Sample,
) -> tuple[Opened, Row]:
    """An engine after its first call, and what that took.

    The worker process may be shared with engines before it, of which its memory must not speak: the peak begins anew.
    """
    pid = None
    if engine == "migraphx":
        assert bundle is not None
        bundle.close()
        pid = _process_of(bundle)
    forget_peak(pid)
    before = memory_of(pid)
    started = time.perf_counter()
    if engine == "migraphx":
        assert bundle is not None
        opened = open_bundle(bundle)
    elif engine == "torch":
        opened = open_module(str(module), list(sample))
    else:
        opened = open_session(given.path, engine)
    loaded = time.perf_counter()
    opened.call(sample)
    done = time.perf_counter()
    peak = max(0, memory_of(opened.pid, peak=True) - before)
    target = bundle.manifest.target if engine == "migraphx" and bundle is not None else ""
    if engine == "migraphx" and bundle is not None:
        precision = bundle.manifest.options.get("precision", "fp32")
    return opened, Row(engine, target, precision, batch, (), loaded - started, done - loaded, peak)


def _process_of(bundle: Bundle) -> int | None:
    """The worker process that a bundle will be loaded into, started; None where it needs none."""
    if not bundle.manifest.programs:
        return None
    worker = workers.shared(runtimes.find(), bundle.manifest.options.get("environment"))
    worker.start()
    return worker.pid


def _with(row: Row, series: Sequence[float]) -> Row:
    return Row(row.engine, row.target, row.precision, row.batch, tuple(series), row.load, row.first, row.memory)


def _versions(rows: Sequence[Row], given: _Given) -> dict[str, str]:
    found = {"machine": f"{platform.node()} {platform.machine()}", "cores": str(os.cpu_count())}
    names = {row.engine for row in rows}
    if "migraphx" in names:
        found["MIGraphX"] = given.bundle.manifest.versions["migraphx"] if given.bundle else runtimes.find().version
    if names.intersection(engine_names.PROVIDERS):
        found["ONNX Runtime"] = importlib.metadata.version("onnxruntime")
    if "torch" in names:
        found["torch"] = importlib.metadata.version("torch")
    return found
