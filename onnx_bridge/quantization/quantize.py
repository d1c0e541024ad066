"""The API function `onnx_bridge.quantize`: a quantized ONNX model from one in float, or from a PyTorch module.

AMD Quark or ONNX Runtime's quantizer quantizes an ONNX graph. Of a PyTorch module, Quark quantizes the module itself,
as a graph of torch.export if it supports the scheme there, and else layer by layer; ONNX Runtime's quantizer quantizes
the exported graph.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress, silent
from onnx_bridge.model import io as models
from onnx_bridge.model.folder import folders_of
from onnx_bridge.quantization.calibration_data import with_tokens
from onnx_bridge.quantization.quantize_graph import quantize_graph
from onnx_bridge.quantization.quantized import Quantized
from onnx_bridge.quantization.quark import GraphModeError
from onnx_bridge.requests.export import Dynamic, ExportRequest, as_arguments, output_path
from onnx_bridge.requests.quantization import QuantizeRequest
from onnx_bridge.samples.inputs import specs
from onnx_bridge.torch import require_torch
from onnx_bridge.torch.export.export import export
from passes.isolation.limits import Limits, limited

if TYPE_CHECKING:
    from torch import nn

    from onnx_bridge.requests.keywords import QuantizeOptions


def quantize(
    src: str | os.PathLike[str] | ir.Model | nn.Module,
    out: str | os.PathLike[str] | None = None,
    *,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic: Dynamic | None = None,
    progress: Progress | None = None,
    **options: Unpack[QuantizeOptions],
) -> Quantized:
    """Quantize a model, run it, and measure how far its outputs are from those in float.

    Inputs, outputs and weights of a module are named as by `onnx_bridge.export`. Weights are stored as integers if the
    scheme has integers. A PyTorch module is quantized by Quark in this process, without limits.

    Args:
        src: an ONNX file, a model in memory, or a PyTorch module; it is not changed. A module is quantized as it
            computes after ``eval()``.
        out: the file to write, atomically; None writes nothing.
        args: arguments of a module by position: a tuple or list of them, or the only one.
        kwargs: arguments of a module by name.
        dynamic: open dimensions of a module, as for `onnx_bridge.export`; Quark's mode fx has none.
        progress: called with each stage as it begins.
        options: the fields of `onnx_bridge.requests.quantization.QuantizeRequest`. ``calibration`` is by input names,
            and required for a model by int8, int8-pow2, uint8, int16 and fp8; for a module the default is its
            arguments. ``train`` is called with the quantized module, which has the signature of the original one, and
            is trained in place; with the mode fx it takes only arguments of the given sizes.

    Raises:
        InputError: the quantizer is not installed, or does not support the scheme, or this model; the data does not
            fit; the model is quantized already; or ``out`` cannot be written.
        NativeFailure: a limit was exceeded, or the quantizer has crashed.
    """
    path = None if out is None else Path(out)
    return run(src, path, QuantizeRequest.of(options), progress, args=args, kwargs=kwargs, dynamic=dynamic)


def run(
    src: str | os.PathLike[str] | ir.Model | nn.Module,
    out: Path | None,
    request: QuantizeRequest,
    progress: Progress | None = None,
    **call: Any,
) -> Quantized:
    """Quantize a model as a request says; ``call`` has the arguments of a module. Raises like `quantize`."""
    request, tell = replace(request, out=output_path(out)), progress or silent
    with limited(Limits.of(request.timeout, request.memory)):
        if isinstance(src, (str, os.PathLike, ir.Model)):
            for name, value in {**call, **_of_modules(request)}.items():
                if value is not None:
                    raise InputError("the option is only for PyTorch modules", where=name, hint="omit it")
            return _quantize_model(src, request, tell)
        given = {name: value for name, value in call.items() if value is not None}
        args = as_arguments(given["args"]) if "args" in given else ()
        return _quantize_module(src, replace(ExportRequest(**given), args=args), request, tell)


def _of_modules(request: QuantizeRequest) -> dict[str, Any]:
    """Return the options that only Quark's quantizer of modules has."""
    return {name: getattr(request, name) or None for name in ("mode", "train", "observer", "validate", "bias")}


def _quantize_model(src: str | os.PathLike[str] | ir.Model, request: QuantizeRequest, progress: Progress) -> Quantized:
    if isinstance(src, ir.Model):
        return quantize_graph(src, with_tokens(request, specs(src)), progress)
    if request.out is not None and request.out.exists() and request.out.samefile(src):
        raise InputError("the quantized model would overwrite the original", where=str(request.out))
    model = models.load(Path(src))
    quantized = quantize_graph(model, with_tokens(request, specs(model), folders_of(Path(src))), progress)
    if quantized.assignment is None:
        return quantized
    command = _command(Path(src), request, quantized.assignment.exclude)
    return replace(quantized, assignment=replace(quantized.assignment, command=command))


def _command(src: Path, request: QuantizeRequest, exclude: Sequence[str]) -> str:
    """Return the command that makes a model without a search; empty if it cannot be given."""
    if not isinstance(request.calibration, (Path, type(None))) or any("," in name for name in exclude):
        return ""
    options: dict[str, Any] = {
        "--with": request.with_,
        "--scheme": request.scheme,
        "--calibration": request.calibration,
        "--calibrate": request.calibrate,
        "--algorithm": request.algorithm,
        "--per-channel": request.per_channel,
        "--exclude": ",".join(exclude),
    }
    words = ["onnx-bridge", "quantize", str(src), *(["-o", str(request.out)] if request.out is not None else [])]
    for flag, value in options.items():
        words += [flag] if value is True else [flag, str(value)] if value else []
    return shlex.join(words)


def _quantize_module(module: nn.Module, call: ExportRequest, request: QuantizeRequest, progress: Progress) -> Quantized:
    require_torch()
    notes: tuple[str, ...] = ()
    if request.with_ == "quark" and not request.least:
        from onnx_bridge.quantization.torch.quantize_module import quantize_module

        try:
            return quantize_module(module, call, request, progress)
        except GraphModeError as error:
            if any(_of_modules(request).values()) or request.exclude:  # which name what the export does not have
                raise
            notes = (f"{error.what}; the module's ONNX export was quantized instead",)
    for name, value in _of_modules(request).items():
        if value is not None:
            why = "ONNX Runtime's quantizer does not have it" if request.with_ == "ort" else "a search has no training"
            raise InputError(why, where=name, hint="use Quark" if request.with_ == "ort" else "leave it out")
    request.recipe(request.with_)  # checks it
    exported = export(module, call.args, call.kwargs, dynamic=call.dynamic, progress=progress)
    request = with_tokens(request, specs(exported.model))
    quantized = quantize_graph(exported.model, request, progress, [dict(exported.samples[0])])
    return replace(quantized, notes=(*notes, *quantized.notes))
