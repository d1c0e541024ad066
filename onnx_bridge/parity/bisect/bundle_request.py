"""The request to bisect or reduce a bundle: its manifest says how it was made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.manifest.compatibility import require_own_settings
from onnx_bridge.conversion.precision.precision import BY_CALIBRATION, BY_PASS, TOLERANCES
from onnx_bridge.core.errors import InputError
from onnx_bridge.model import io as models
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.parity import BisectRequest, LowPrecision, ParityRequest, ReduceRequest
from passes.rewriting.pipeline import Pipeline
from passes.specialize.freeze_inputs import FreezeInputs
from passes.specialize.freeze_shapes import FreezeShapes
from passes.surgeon.surgeon import Surgeon


def source_request(bundle: Bundle, request: BisectRequest) -> tuple[Path, BisectRequest]:
    """Return the model that a bundle was converted from, and a request with the settings of that conversion.

    A script is run only if the caller names it: a bundle may come from somebody else.

    Raises:
        InputError: the model is gone or was changed, the request has settings of its own, or a script of the pipeline
            is not named by the request.
    """
    if request.reference is not None or request.precision is not None:
        what = "a bundle records what it was made of, and in which precision it computes"
        raise InputError(what, where=str(bundle.path), hint="leave `reference` and `precision` out")
    given = None if request.conversion.pipeline == ConvertRequest().pipeline else request.conversion.pipeline
    recorded = Pipeline.parse(bundle.manifest.program.pipeline).passes
    scripts = [str(step) for step in recorded if isinstance(step, Surgeon)]
    settings = replace(request.conversion, pipeline="default") if scripts else request.conversion
    require_own_settings(bundle.manifest, settings, bundle.path, *_settings(request))
    if scripts and given is None:
        what = f"the bundle was made by a script, and no script that a bundle names is run: {scripts[0]}"
        raise InputError(what, where=str(bundle.path), hint="give the pipeline again, if you trust the script")
    made_by, precision = bundle.manifest.request, bundle.manifest.request.precision
    # samples depend on sizes and frozen inputs, so these are settings of their own rather than passes
    passes = Pipeline.parse(given).passes if given is not None else recorded
    rest = Pipeline([pass_ for pass_ in passes if not isinstance(pass_, (FreezeShapes, FreezeInputs))])
    conversion = replace(
        request.conversion,
        pipeline=str(rest) or "none",
        dims=made_by.dims,
        shapes=made_by.shapes,
        freeze=made_by.freeze,
        target=bundle.manifest.target,
        application=made_by.application,
    )
    return _source(bundle), replace(
        request,
        conversion=conversion,
        tolerance=TOLERANCES[precision] if precision in BY_PASS else None,
        precision=_calibrated_precision(bundle),
    )


def cleaned_request(bundle: Bundle, request: ReduceRequest) -> tuple[Path, ReduceRequest]:
    """Return the cleaned model of a bundle, and a request without further passes.

    Raises InputError if the bundle keeps only the program, or the request has settings of its own.
    """
    require_own_settings(bundle.manifest, request.conversion, bundle.path, *_settings(request))
    if bundle.model_path is None:
        what = "the bundle keeps no cleaned model"
        raise InputError(what, where=str(bundle.path), hint="name the ONNX file, or convert into a folder")
    application = bundle.manifest.request.application
    conversion = replace(request.conversion, pipeline="none", target=bundle.manifest.target, application=application)
    precision = request.precision or _calibrated_precision(bundle)
    return bundle.model_path, replace(request, conversion=conversion, precision=precision)


def _settings(request: ParityRequest) -> list[str]:
    """Return the settings that a bundle has of its own; if the gpu target is rehearsed, the target is another."""
    return ["pipeline", "dims", "shapes", "freeze", *([] if request.rehearsed else ["target"])]


def _calibrated_precision(bundle: Bundle) -> LowPrecision | None:
    """Return the precision that MIGraphX quantized the programs to; None for that of the cleaned model."""
    precision = bundle.manifest.request.precision
    return cast(LowPrecision, precision) if precision in BY_CALIBRATION else None


def _source(bundle: Bundle) -> Path:
    path, digest = bundle.manifest.source["path"], bundle.manifest.source["sha256"]
    hint = "name the ONNX file"
    if bundle.model_path is not None:
        hint += f"; or bisect MIGraphX alone: {bundle.model_path} with `pipeline='none'`"
    if path is None:
        raise InputError("the bundle was converted from a model in memory", where=str(bundle.path), hint=hint)
    if not Path(path).exists():
        raise InputError("the model that it was converted from is gone", where=path, hint=hint)
    if models.digest(path) != digest:
        raise InputError("the model was changed since it was converted", where=path, hint=hint)
    return Path(path)
