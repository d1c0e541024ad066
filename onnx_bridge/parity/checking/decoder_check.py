"""Parity of a decoder: the logits of prompts and single tokens, beside the original, whose cache grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.decoding.caches import StaticCache
from onnx_bridge.bundle.decoding.trial import Generating, Original, edges, inside, trials
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.conversion.decoders.encoder_decoder.files import Files
from onnx_bridge.conversion.decoders.encoder_decoder.original import EncoderDecoderOriginal
from onnx_bridge.conversion.precision.computed_precision import computed_precision
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress, silent
from onnx_bridge.core.values import Array, as_array
from onnx_bridge.model import io as models
from onnx_bridge.model.embedding import embedding_of
from onnx_bridge.parity.checking.baseline import original_of
from onnx_bridge.parity.checking.gpu_legs import GpuLegs
from onnx_bridge.parity.checking.report import CheckReport, Leg
from onnx_bridge.parity.reference_runs import versions
from onnx_bridge.reference.comparison.compare import Comparison
from onnx_bridge.reference.comparison.dependence import unchanged
from onnx_bridge.reference.comparison.tolerances import Tolerances
from onnx_bridge.requests.parity import CheckRequest
from passes.core.text import counted

STEPS = 8
"""The number of tokens that are generated behind each prompt."""


def check_decoder(bundle: Bundle, request: CheckRequest, tell: Progress = silent) -> CheckReport:
    """Compare the logits of a decoder with those of the original on ONNX Runtime, token by token.

    Raises:
        InputError: the request has inputs or layers, or the original is gone or was changed.
        RuntimeNotFound: no MIGraphX here runs the bundle.
    """
    if request.inputs is not None or request.layers:
        what = "decoders are compared on generated prompts, and without their layers"
        raise InputError(what, where=str(bundle.path), hint="name the folder of one program")
    path, notes = original_of(bundle, request.reference)
    manifest = bundle.manifest
    tolerances = request.error_tolerances
    assert bundle.model_path is not None
    preset = computed_precision(models.load(path), models.load(bundle.model_path), manifest.request.precision).preset
    if preset is not None:
        tolerances = tolerances.at_least(preset)
    widths = list(bundle.decoder.widths)
    gpu = GpuLegs.of(bundle, request.rehearsed, tolerances)
    legs: list[Leg] = []
    gpu_legs: list[Leg] = []
    logits: list[Mapping[str, Array]] = []
    for name, caches, original in _subjects(bundle, path, request.seed):
        for length in dict.fromkeys((*edges(widths), *inside(widths))):

            def comparisons(
                side: Bundle,
                allowed: Tolerances,
                caches: Callable[[Bundle], StaticCache] = caches,
                original: Generating = original,
                length: int = length,
            ) -> Iterator[Comparison]:
                runs = trials(partial(caches, side), original, [length], allowed, steps=STEPS, seed=request.seed)
                for trial in runs:
                    logits.extend(trial.expected)
                    yield from trial.comparisons

            tell(f"{name}prompt of {counted(length, 'token')}")
            leg = Leg.of_bundle(f"{name}prompt of {length}, then {STEPS} more", comparisons(bundle, tolerances))
            if not leg.comparisons and leg.failure is None:
                continue
            legs.append(leg)
            if gpu is not None:
                called = f"{leg.name}, {gpu.passes.leg}"
                gpu_legs += gpu.compared(called, partial(comparisons, allowed=gpu.tolerances), tell)
    return CheckReport(
        model=manifest.name,
        legs=(*legs, *gpu_legs),
        seed=request.seed,
        unproven=tuple(unchanged({bundle.decoder.layout.logits}, logits, tolerances)) if logits else (),
        versions=versions(manifest.versions["migraphx"]),
        notes=(*manifest.notes, *notes, *(() if gpu is None else gpu.conclude(gpu_legs))),
    )


def _subjects(
    bundle: Bundle, path: Path, seed: int
) -> Iterator[tuple[str, Callable[[Bundle], StaticCache], Generating]]:
    """Yield caches of a bundle and the original that generates beside it, by name; one for each size of a source."""
    manifest, decoder = bundle.manifest, bundle.decoder
    encoder = decoder.layout.encoder
    if encoder is None:
        embedding = embedding_of(path, models.load(path))
        _require_unchanged(manifest, path, {} if embedding is None else {embedding.name: models.digest(embedding)})
        yield "", lambda side: side.decoder.cache(), Original(path, manifest.request.freeze)
        return
    files = Files.beside(path)
    _require_unchanged(manifest, path, files.digests())
    original = EncoderDecoderOriginal(files, manifest.request.freeze)
    size = encoder.shape[1]
    for count in (size, size // 2) if encoder.pads else (size,):
        source = original.source(encoder, count, seed)
        tokens = as_array(source[encoder.source])
        caches = partial(_cache, tokens=tokens)
        yield f"source of {count}, ", caches, original.of(decoder.layout, source)


def _require_unchanged(manifest: Manifest, path: Path, digests: Mapping[str, str]) -> None:
    """Require that the files beside the original are those that were converted, unless the user named another one."""
    changed = [name for name, digest in digests.items() if digest != manifest.source.get(f"sha256 of {name}")]
    if changed and path == Path(str(manifest.source["path"])):
        hint = "convert again, or name the original with `reference`"
        raise InputError("the model was changed since it was converted", where=changed[0], hint=hint)


def _cache(bundle: Bundle, tokens: Array) -> StaticCache:
    return bundle.decoder.cache(tokens)
