"""Parity of a decoder: the logits of prompts and single tokens, beside the original, whose cache grows."""

from __future__ import annotations

from importlib import metadata

from onnx_bridge.bundle.decoder_layout import WIDTH
from onnx_bridge.bundle.decoding.decoder import Decoder
from onnx_bridge.bundle.decoding.trial import Original, edges, inside, trials
from onnx_bridge.conversion.proving.computed_precision import computed_precision
from onnx_bridge.core.errors import InputError, RuntimeFailure, RuntimeNotFound, Step
from onnx_bridge.core.progress import Progress, silent
from onnx_bridge.model import io as models
from onnx_bridge.parity.baseline import original_of
from onnx_bridge.parity.failure import Failure
from onnx_bridge.parity.report import CheckReport, Leg
from onnx_bridge.parity.request import CheckRequest
from onnx_bridge.reference.compare import Comparison

STEPS = 8
"""How many tokens are generated behind each prompt."""


def check_decoder(decoder: Decoder, request: CheckRequest, tell: Progress = silent) -> CheckReport:
    """Compare the logits of a decoder with those of the original on ONNX Runtime, token by token.

    Args:
        decoder: what `onnx_bridge.convert_decoder` made.
        request: the reference, seed and tolerances.
        tell: is called with each prompt.

    Raises:
        InputError: the request has inputs or layers, or the original is gone or was changed.
        RuntimeNotFound: no MIGraphX here runs it.
    """
    if request.inputs is not None or request.layers or request.as_target is not None:
        what = "decoders are compared on generated prompts, without their layers, and as they are"
        raise InputError(what, where=str(decoder.path), hint="name the folder of one program")
    path, notes = original_of(decoder, request.reference)
    manifest = decoder.manifest
    original = Original(path, manifest.freeze)
    tolerances = request.error_tolerances
    preset = computed_precision(models.load(path), models.load(decoder.model_path), manifest.precision).preset
    if preset is not None:
        tolerances = tolerances.at_least(preset)
    widths = [each.dims[WIDTH] for each in manifest.buckets]
    legs = []
    for length in dict.fromkeys((*edges(widths), *inside(widths))):
        tell(f"prompt of {length} tokens")
        found: list[Comparison] = []
        failure = None
        try:
            for each in trials(decoder.cache, original, [length], tolerances, steps=STEPS, seed=request.seed):
                found += each.comparisons
        except RuntimeNotFound:
            raise
        except RuntimeFailure as error:
            failure = Failure(Step.RUN, error, len(found))
        if found or failure is not None:
            legs.append(Leg(f"prompt of {length}, then {STEPS} more", tuple(found), failure))
    return CheckReport(
        model=manifest.name,
        legs=tuple(legs),
        seed=request.seed,
        versions={"ONNX Runtime": metadata.version("onnxruntime"), "MIGraphX": manifest.versions["migraphx"]},
        notes=(*manifest.notes, *notes),
    )
