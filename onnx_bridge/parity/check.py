"""Parity with the reference: the verb ``check``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Literal

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.buckets import Buckets, has_buckets
from onnx_bridge.bundle.bundle import Bundle, is_bundle
from onnx_bridge.bundle.gpu_preview import AsGpu
from onnx_bridge.conversion.convert import convert
from onnx_bridge.conversion.precision import BY_PASS, TOLERANCES
from onnx_bridge.core.errors import InputError, RuntimeFailure, RuntimeNotFound
from onnx_bridge.core.values import Array, Value, flat
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.model import io as models
from onnx_bridge.parity.bisect.search import Search
from onnx_bridge.parity.buckets import check_buckets
from onnx_bridge.parity.error_histogram import Sketch, keeping
from onnx_bridge.parity.evidence import Evidence, Network
from onnx_bridge.parity.failure import STEPS, Failure
from onnx_bridge.parity.layer_report import Layers
from onnx_bridge.parity.layers import MEMORY, compare_layers
from onnx_bridge.parity.report import REFERENCE, Leg, Report
from onnx_bridge.parity.runtime_failure import advice, blamed_for, run_until_failure, telling, unconverted
from onnx_bridge.reference.compare import compare_all
from onnx_bridge.reference.reference import Reference
from onnx_bridge.reference.tolerances import Part, Tolerance, Tolerances
from onnx_bridge.samples import files
from onnx_bridge.samples import inputs as samplers
from passes.analysis.quantization import is_quantized
from passes.core.base import Context
from passes.specialize.freeze_inputs import FreezeInputs

AS_GPU = "MIGraphX ref, as a GPU computes quantization"
"""What the leg of ``as_target="gpu"`` is called."""


def check(
    model: str | os.PathLike[str] | ir.Model | Bundle | Buckets,
    *,
    reference: str | os.PathLike[str] | None = None,
    inputs: files.Given | None = None,
    seed: int = 0,
    samples: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    tolerance: str | None = None,
    tolerances: Mapping[str, Tolerance | Part] | None = None,
    layers: bool = False,
    layers_memory: float | None = None,
    evidence: bool = False,
    as_target: Literal["gpu"] | None = None,
    target: str = "auto",
    pipeline: str = "default",
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    freeze: Mapping[str, Array | str] | None = None,
    host: bool = True,
    cache: bool = True,
    timeout: float | None = None,
    memory: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Compare with the reference: the original model on ONNX Runtime's CPU provider, all graph optimizations off.

    Two things are compared: the cleaned model on ONNX Runtime, and the bundle, which is MIGraphX, and ONNX Runtime for
    partitions on the host. So a difference that a pass makes is told from one that MIGraphX makes. Sequences are
    compared element by element. Where MIGraphX refuses the model, crashes or runs into a limit, that is what is
    reported of it, with the nodes that it fails on where these can be found without waiting (`onnx_bridge.bisect`).

    Args:
        model: a model, which is converted first (into a temporary folder), or a bundle.
        reference: the original model of a bundle; default: the file that it was converted from.
        inputs: samples, a function that gives them, or where to read them from (`onnx_bridge.samples.files`): an
            ``.npz``, a folder of ``.pb``, a Polygraphy ``.json`` or loader script; default: seeded samples that make
            sense for the model.
        seed: of generated samples.
        samples: how many to generate (default: one), or to take of those given (default: all).
        rtol: relative tolerance of floats: |actual − expected| ≤ atol + rtol·|expected|; default: by dtype.
        atol: absolute tolerance of floats; default: by dtype and the size of the values.
        tolerance: the precision that MIGraphX computes in (`onnx_bridge.reference.tolerances.PRESETS`), which decides
        on
            the tolerances of its outputs instead of their dtypes.
        tolerances: by output, which goes before all of these; with ``layers``, of other values too.
        layers: also compare every value within the model, on the first sample that differs, or the first.
        layers_memory: most GiB of values that this may hold at a time; default: 1.
        evidence: also keep what it saw: all outputs, the graphs before and after, and a sketch of each layer.
        as_target: ``gpu`` also runs on ``ref`` what a GPU would compute of quantization (`onnx_bridge.as_gpu`); what
            that may be off by is the tolerance of int8, where the model is quantized.
        target: as for `convert`, for a model; with ``as_target``, ``ref`` for ``auto``.
        pipeline: likewise.
        dims: likewise.
        input_shapes: likewise (its ``shapes``).
        freeze: likewise; given inputs are without them.
        host: likewise.
        cache: likewise.
        timeout: most seconds for each of MIGraphX's steps.
        memory: most GiB that MIGraphX's process may take.
        progress: told each stage as it begins.

    Raises:
        InputError: the model or the inputs are wrong, or the original of a bundle is gone or was changed.
        RuntimeFailure: there is no MIGraphX, or none that the bundle runs on.
    """
    tell = progress or (lambda _stage: None)
    if as_target not in (None, "gpu"):
        raise InputError(f"nothing can be computed as on {as_target!r}", hint="there is only gpu")
    if as_target is not None and target == "auto":
        target = "ref"
    named = {name: Part(each.rtol, each.atol) for name, each in (tolerances or {}).items()}
    wanted = Tolerances(tolerance, Part(rtol, atol), named)
    same = replace(wanted, preset=None)  # passes compute in the dtypes of the model
    if not isinstance(model, (ir.Model, Bundle)) and (isinstance(model, Buckets) or has_buckets(model)):
        return _check_buckets(model, reference, inputs, seed, samples, wanted, layers, timeout, memory, progress)
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
        if isinstance(model, Bundle):
            bundle = model
        elif not isinstance(model, ir.Model) and is_bundle(model):
            bundle = Bundle(model, timeout=timeout, memory=memory)
        else:
            steps = ["parse"]

            def told(stage: str) -> None:
                steps.append(stage)
                tell(stage)

            try:
                bundle = convert(
                    model,
                    Path(folder) / "bundle",
                    target=target,
                    pipeline=pipeline,
                    dims=dims,
                    shapes=input_shapes,
                    freeze=freeze,
                    host=host,
                    cache=cache,
                    timeout=timeout,
                    memory=memory,
                    progress=told,
                )
            except RuntimeNotFound:
                raise
            except RuntimeFailure as error:
                workers.shared(runtimes.find(None)).start()  # or it says nothing of the model
                search = Search(
                    model,
                    reference=reference,
                    inputs=inputs,
                    seed=seed,
                    samples=samples,
                    target=target,
                    pipeline=pipeline,
                    dims=dims,
                    input_shapes=input_shapes,
                    freeze=freeze,
                    cache=cache,
                    timeout=timeout,
                    memory=memory,
                    progress=progress,
                )
                failed = Failure([each for each in steps if each in STEPS][-1], error)
                seeded = seed if inputs is None else None
                return unconverted(search, failed, wanted, same, host, layers, layers_memory, evidence, seeded)
            if isinstance(model, ir.Model):
                reference = Path(folder) / "original.onnx"
                models.save(model, reference)
        if (precision := bundle.manifest.options.get("precision")) is not None:
            wanted = wanted.at_least(TOLERANCES[precision])
            in_model = precision in BY_PASS or "keep_fp32" in bundle.manifest.options
            same = wanted if in_model else same
        original, notes = _original(bundle, reference)
        tell("reference")
        expected = Reference(original)
        given = _samples(bundle, original, inputs, seed, samples)
        frozen = _frozen(bundle, original)
        truth = [expected.run({**sample, **frozen}) for sample in given]
        legs = []
        results: dict[str, Sequence[Mapping[str, Value]]] = {REFERENCE: truth}
        sketches: dict[str, Sketch] = {}
        if bundle.model_path is not None:
            tell("cleaned model on ONNX Runtime")
            cleaned = Reference(bundle.model_path)
            found = [cleaned.run(sample) for sample in given]
            legs.append(Leg("cleaned on ONNX Runtime", compare_all(found, truth, same, layers)))
            results[legs[-1].name] = found
        name = _name(bundle)
        tell(name)
        outputs, failure = run_until_failure(bundle, given)
        results[name] = outputs
        legs.append(Leg(name, compare_all(outputs, truth[: len(outputs)], wanted, layers), failure))
        viewed = None
        if as_target is not None:
            viewed = AsGpu(bundle)
            tell(AS_GPU)
            outputs, other = run_until_failure(viewed, given)
            results[AS_GPU] = outputs
            loose = wanted.at_least(TOLERANCES["int8"]) if _is_quantized(bundle) else wanted
            legs.append(Leg(AS_GPU, compare_all(outputs, truth[: len(outputs)], loose, layers), other))
        looked = None
        if layers:
            number = telling(legs)
            source = None if original == bundle.model_path else original
            looked = _layers(
                bundle, source, given[number], frozen, wanted, layers_memory, sketches if evidence else None, progress
            )
            looked = replace(looked, sample=number)
            wanted.check([*flat(truth[number]), *(row.tensor for row in looked.rows)])
        blamed = None if failure is None else blamed_for(bundle, failure, given[failure.sample or 0])
        seen = _evidence(bundle, original, results, sketches) if evidence else None
    return Report(
        model=bundle.manifest.name,
        legs=tuple(legs),
        samples=tuple(given),
        seed=seed if inputs is None else None,
        versions={
            "ONNX Runtime": metadata.version("onnxruntime"),
            "MIGraphX": bundle.manifest.versions["migraphx"],
        },
        notes=(
            *_partitions(bundle),
            *bundle.manifest.notes,
            *bundle.notes,
            *notes,
            *expected.notes,
            *(viewed.kernel_notes if viewed is not None else ()),
            *files.doubts(given),
            *_unseen(legs, looked),
            *advice(failure, blamed),
        ),
        layers=looked,
        bisection=blamed,
        evidence=seen,
    )


def _is_quantized(bundle: Bundle) -> bool:
    """Whether the cleaned model quantizes anything."""
    return bundle.model_path is not None and is_quantized(models.load(bundle.model_path))


def _check_buckets(
    model: str | os.PathLike[str] | Buckets,
    reference: str | os.PathLike[str] | None,
    inputs: files.Given | None,
    seed: int,
    samples: int | None,
    tolerances: Tolerances,
    layers: bool,
    timeout: float | None,
    memory: float | None,
    progress: Callable[[str], None] | None,
) -> Report:
    if inputs is not None or layers:
        what = "buckets are compared on generated samples of their sizes, and as a whole"
        raise InputError(what, where=str(model), hint="name the folder of one bucket")
    bundle = model if isinstance(model, Buckets) else Buckets(model, timeout=timeout, memory=memory)
    precision = bundle.manifest.options.get("precision")
    wanted = tolerances if precision is None else tolerances.at_least(TOLERANCES[precision])
    original = None if reference is None else Path(reference)
    return check_buckets(bundle, reference=original, seed=seed, samples=samples, tolerances=wanted, progress=progress)


def _evidence(
    bundle: Bundle,
    original: Path,
    results: Mapping[str, Sequence[Mapping[str, Value]]],
    sketches: Mapping[str, Sketch],
) -> Evidence:
    cleaned = None if bundle.model_path is None else Network.of(models.load(bundle.model_path))
    return Evidence(results, Network.of(models.load(original)), cleaned, bundle.manifest.passes, sketches)


def _unseen(legs: Sequence[Leg], layers: Layers | None) -> list[str]:
    """A note where outputs differ and no layer does."""
    if layers is None or not layers.passed or all(each.passed for leg in legs for each in leg.comparisons):
        return []
    return [
        "outputs differ though no layer does: asking for the values in between changes what MIGraphX fuses, and with "
        "that the fault is gone; `onnx-bridge bisect` looks for it without asking for them"
    ]


def _layers(
    bundle: Bundle,
    original: Path | None,
    sample: Mapping[str, Value],
    frozen: Mapping[str, Value],
    tolerances: Tolerances,
    memory: float | None,
    sketches: dict[str, Sketch] | None,
    progress: Callable[[str], None] | None,
) -> Layers:
    if bundle.model_path is None:
        what = "layers are those of the cleaned model, which a program alone does not have"
        raise InputError(what, where=str(bundle.path), hint="convert into a folder")
    return compare_layers(
        bundle.model_path,
        sample,
        bundle.worker,
        limits=bundle.limits,
        target=bundle.manifest.target,
        original=original,
        original_sample={**sample, **frozen},
        host={each.node: each.reason for stage in bundle.manifest.partitions for each in stage.host},
        memory_limit=MEMORY if memory is None else int(memory * 2**30),
        tolerances=tolerances,
        watch=None if sketches is None else keeping(sketches),
        progress=progress,
    )


def _partitions(bundle: Bundle) -> list[str]:
    return [f"partitions: {bundle.manifest.partition_line}"] if bundle.manifest.partitions else []


def _name(bundle: Bundle) -> str:
    """What the bundle runs on."""
    if not bundle.manifest.programs:
        return "bundle, on ONNX Runtime alone"
    return f"MIGraphX {bundle.manifest.target}{'' if bundle.wholly_on_migraphx else ' with ONNX Runtime'}"


def _original(bundle: Bundle, reference: str | os.PathLike[str] | None) -> tuple[Path, list[str]]:
    """The reference model's file, and what the user should know about it."""
    if reference is not None:
        return Path(reference), []
    source = bundle.manifest.source
    path = Path(source["path"]) if source["path"] else None
    if path is not None and path.exists():
        if models.digest(path) != source["sha256"]:
            raise InputError(
                "the model was changed since it was converted",
                where=str(path),
                hint="convert again, or name the original with --reference",
            )
        return path, []
    if bundle.model_path is None:
        raise InputError(
            "the model that it was converted from is gone",
            where=str(path or bundle.path),
            hint="name the original with --reference",
        )
    return bundle.model_path, [
        "the model that it was converted from is gone: the reference is the cleaned model; --reference names another"
    ]


def _samples(
    bundle: Bundle,
    original: Path,
    given: files.Given | None,
    seed: int,
    count: int | None,
) -> list[samplers.Sample]:
    """Samples in the shapes that the bundle takes; what they are for is best seen in the original."""
    if given is None:
        shapes = {each.name: each.shape for each in bundle.inputs if each.shape is not None}
        names = {each.name for each in bundle.inputs}
        wanted = [spec for spec in samplers.specs(models.load(original)) if spec.name in names]
        specs, dims = samplers.fixed(wanted, shapes)
        return samplers.generate(specs, seed=seed, samples=1 if count is None else count, dims=dims)
    return files.given(given, bundle.specs, count=count)


def _frozen(bundle: Bundle, original: Path) -> samplers.Sample:
    """The inputs of the original that are constants of the bundle."""
    frozen = bundle.manifest.options.get("freeze", {})
    if not frozen:
        return {}
    model = models.load(original)
    FreezeInputs(values=frozen).run(model, Context())
    tensors = {name: model.graph.initializers[name].const_value for name in frozen}
    return {name: np.asarray(tensor.numpy()) for name, tensor in tensors.items() if tensor is not None}
