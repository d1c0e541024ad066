"""The verb ``bench``: engines side by side, over precisions and batch sizes."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.benchmark import engines as engine_names
from onnx_bridge.benchmark.engines import (
    TORCH,
    Opened,
    Unavailable,
    check_names,
    forget_peak,
    open_bundle,
    open_module,
    open_session,
)
from onnx_bridge.benchmark.engines import resident as memory_of
from onnx_bridge.benchmark.measure import Plan, measure
from onnx_bridge.benchmark.operators import per_operator as operators_of
from onnx_bridge.benchmark.outcome import Baseline, Bench, Row
from onnx_bridge.bundle.bundle import Bundle, is_bundle
from onnx_bridge.conversion.convert import convert
from onnx_bridge.conversion.precision import Precision
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.model import io as models
from onnx_bridge.samples import files
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.inputs import Sample, TensorSpec

Tell = Callable[[str], None]


def bench(
    model: str | os.PathLike[str] | ir.Model | Bundle,
    *,
    batches: Sequence[int] = (),
    precisions: Sequence[str] = ("fp32",),
    engines: Sequence[str] = ("migraphx", "ort"),
    module: str | None = None,
    inputs: files.SampleSource | None = None,
    iterations: int = 50,
    warmup: int = 3,
    seconds: float | None = None,
    seed: int = 0,
    against: str | os.PathLike[str] | None = None,
    max_slowdown: float = 0.05,
    per_operator: bool = False,
    target: str = "auto",
    pipeline: str = "default",
    dims: Mapping[str, int] | None = None,
    calibration: files.SampleSource | None = None,
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
        model: a model, which is converted first (into a temporary folder); or a bundle, which is as it is; or the name
            of a factory of a PyTorch module with its arguments, which is exported first, as `export` does it.
        batches: sizes of the model's batch dimension, the symbolic first one of its inputs; empty leaves it alone.
        precisions: that MIGraphX computes in; other engines compute in the model's own.
        engines: of `onnx_bridge.benchmark.engines.ENGINES`; ratios are to the first of them that is available.
        module: for ``torch`` and ``torch-compile``, the factory of the module, where ``model`` is none.
        inputs: where to take the sample from (the first one); default: a seeded one.
        iterations: rounds, at most.
        warmup: calls before that do not count.
        seconds: no further round begins after so many, for each batch size, but for the first five.
        seed: of the sample and of the order.
        against: the JSON of an earlier benchmark.
        max_slowdown: the share by which it may be slower than that (0.05 is 5 %).
        per_operator: whether to ask MIGraphX where its time goes, in further calls.
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
        InputError: an argument, the model or the baseline is wrong, or no engine is available.
        RuntimeFailure: MIGraphX failed.
    """
    tell = progress or (lambda _stage: None)
    baseline = None if against is None else Baseline.read(Path(against))
    _check(batches, precisions, iterations, warmup, max_slowdown)
    factory = _factory(model)
    module = module or factory
    check_names(tuple(engines), module)
    plan = Plan(iterations, warmup, seconds, seed)
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
        if factory is not None:
            tell(f"exporting {factory}")
            model = _exported(factory, Path(folder) / f"{factory.rpartition(':')[2]}.onnx", bool(batches))
        given = _Given.of(model, Path(folder), timeout, memory)
        if given.bundle is not None and (batches or tuple(precisions) != ("fp32",)):
            what = "a bundle has the batch size and the precision that it was made with"
            raise InputError(what, where=str(given.bundle.path), hint="bench the model instead")
        symbol = given.batch_dimension() if batches else None
        rows: list[Row] = []
        notes: dict[str, None] = {}
        unavailable: dict[str, Unavailable] = {}
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
                        try:
                            ready, row = _opened(engine, precision, batch, made, given, module, sample)
                        except Unavailable as error:
                            unavailable[engine] = error
                            continue
                        stack.callback(ready.close)
                        if per_operator and engine == "migraphx" and made is not None:
                            tell("asking MIGraphX where its time goes")
                            row = replace(row, operators=operators_of(made, sample))
                        opened.append((ready, row))
                if not opened:
                    raise next(iter(unavailable.values()))
                assert sample is not None
                tell("measuring" if batch is None else f"measuring batch {batch}")
                found = measure([(each.call, sample) for each, _ in opened], plan)
                rows += [
                    replace(row, latencies=series.latencies, together=series.together)
                    for (_, row), series in zip(opened, found, strict=True)
                ]
        reasons = {engine: error.what for engine, error in unavailable.items()}
        result = Bench(given.name, given.digest, tuple(rows), _versions(rows, given), tuple(notes), reasons)
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

    def sample(self, inputs: files.SampleSource | None, sizes: Mapping[str, int], seed: int) -> Sample:
        specs = self.specs()
        if inputs is not None:
            return files.load(inputs, specs, count=1)[0]
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
    elif engine in TORCH:
        opened = open_module(engine, str(module), list(sample))
    else:
        opened = open_session(given.path, engine)
    loaded = time.perf_counter()
    if engine in TORCH:
        _call_module(engine, opened, sample, str(module))
    else:
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


def _call_module(engine: str, opened: Opened, sample: Sample, factory: str) -> None:
    """Call a module for the first time, when ``torch.compile`` compiles.

    Raises:
        Unavailable: it cannot be compiled here.
        InputError: it cannot be called with the model's inputs.
    """
    try:
        opened.call(sample)
    except Exception as error:  # the user's own code, or torch's compiler
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        what = f"{type(error).__name__}: {said}"
        if engine == "torch-compile":
            raise Unavailable(f"torch.compile fails: {what}", where=factory, hint="leave torch-compile out") from error
        hint = "its forward must take the model's inputs, by these names or in this order"
        raise InputError(f"the module fails: {what}", where=factory, hint=f"{hint}: {', '.join(sample)}") from error


def _factory(model: str | os.PathLike[str] | ir.Model | Bundle) -> str | None:
    """The name of a factory (``package.module:name``, ``file.py:name``); None for whatever else there is to measure."""
    if isinstance(model, ir.Model | Bundle):
        return None
    text = os.fspath(model)
    home, _, name = text.rpartition(":")
    return text if home and name and not Path(text).exists() else None


def _exported(factory: str, path: Path, open_batch: bool) -> Path:
    """The ONNX file of a factory's module; with ``open_batch`` the first size of its tensors is left open.

    Raises:
        InputError: it gives no arguments, or as `onnx_bridge.export`.
    """
    from onnx_bridge.torch.export.export import export, require_torch

    require_torch()
    import inspect

    import torch

    from onnx_bridge.torch.export import factories

    module, arguments = factories.load(factory)
    if arguments is None:
        hint = "give (module, args)"
        raise InputError("it gives a module without arguments to call it with", where=factory, hint=hint)
    args, kwargs = arguments
    dynamic = {}
    if open_batch:
        bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        tensors = {name: each for name, each in bound.items() if isinstance(each, torch.Tensor) and each.ndim}
        dynamic = {name: {0: "batch"} for name in tensors}
    export(module, args, kwargs, dynamic=dynamic, out=path)
    return path


def _versions(rows: Sequence[Row], given: _Given) -> dict[str, str]:
    found = {"machine": f"{platform.node()} {platform.machine()}", "cores": str(os.cpu_count())}
    names = {row.engine for row in rows}
    if "migraphx" in names:
        found["MIGraphX"] = given.bundle.manifest.versions["migraphx"] if given.bundle else runtimes.find().version
    if names.intersection(engine_names.PROVIDERS):
        found["ONNX Runtime"] = importlib.metadata.version("onnxruntime")
    if names.intersection(TORCH):
        found["torch"] = importlib.metadata.version("torch")
    return found
