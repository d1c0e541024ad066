"""The API function `onnx_bridge.quantize`: a quantized ONNX model from one in float, or from a PyTorch module.

AMD Quark or ONNX Runtime's quantizer quantizes an ONNX graph. Of a PyTorch module, Quark quantizes the module itself,
as a graph of torch.export if it supports the scheme there, and else layer by layer; ONNX Runtime's quantizer quantizes
the exported graph.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress, silent
from onnx_bridge.model import io as models
from onnx_bridge.quantization.quantize_graph import quantize_graph
from onnx_bridge.quantization.quantized import Quantized
from onnx_bridge.requests.export import Dynamic, ExportRequest, as_arguments, output_path
from onnx_bridge.requests.quantization import Mode, QuantizeRequest
from onnx_bridge.requests.schemes import scheme_of
from onnx_bridge.samples.files import SampleSource
from onnx_bridge.torch import require_torch
from onnx_bridge.torch.export.export import export
from passes.isolation.limits import Limits, limited

if TYPE_CHECKING:
    from torch import nn


def quantize(  # noqa: PLR0913
    src: str | os.PathLike[str] | ir.Model | nn.Module,
    out: str | os.PathLike[str] | None = None,
    *,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    with_: str = "quark",
    scheme: str = "int8",
    mode: Mode | None = None,
    calibration: SampleSource | None = None,
    per_channel: bool = False,
    exclude: Sequence[str] = (),
    train: Callable[[nn.Module], object] | None = None,
    dynamic: Dynamic | None = None,
    timeout: float | None = None,
    memory: float | None = None,
    progress: Progress | None = None,
) -> Quantized:
    """Quantize a model, run it, and measure how far its outputs are from those in float.

    Inputs, outputs and weights of a module are named as by `onnx_bridge.export`. Weights are stored as integers if the
    scheme has integers.

    Args:
        src: an ONNX file, a model in memory, or a PyTorch module; it is not changed. A module is quantized as it
            computes after ``eval()``.
        out: the file to write, atomically; None writes nothing.
        args: arguments of a module by position: a tuple or list of them, or the only one.
        kwargs: arguments of a module by name.
        with_: the quantizer: ``quark`` or ``ort``.
        scheme: what to quantize to, by name (`onnx_bridge.requests.schemes.SCHEMES`).
        mode: Quark's mode for a module: ``fx`` quantizes the graph of torch.export, with the operators between layers;
            ``eager`` quantizes the layers, their weights and inputs; None is fx if it supports the scheme.
        calibration: the data that ranges are measured on (see `onnx_bridge.samples.calibration`), by input names;
            required for a model by int8, int8-pow2, uint8, int16 and fp8. For a module the default is its arguments.
            The result is compared with the float model on it.
        per_channel: whether weights get a scale for each output channel.
        exclude: names of nodes or operators that stay in float; of a module's layers for Quark's eager mode.
        train: quantization-aware training: called with the quantized module, after calibration and before its scales
            are frozen. That module has the signature of the original one, and is trained in place. With the mode fx it
            takes only arguments of the given sizes. Quark only.
        dynamic: open dimensions of a module, as for `onnx_bridge.export`; not for Quark's mode fx.
        timeout: seconds for each step of a process that runs models, or quantizes one: None is 600 for each sample.
            A PyTorch module is quantized by Quark in this process, without limits.
        memory: GiB of such a process; None is 80 % of what is free.
        progress: called with each stage as it begins.

    Raises:
        InputError: the quantizer is not installed, or does not support the scheme, or this model; the data does not
            fit; the model is quantized already; or ``out`` cannot be written.
        NativeFailure: a limit was exceeded, or the quantizer has crashed.
    """
    request = QuantizeRequest(
        quantizer=with_,
        scheme=scheme_of(scheme),
        mode=mode,
        calibration=calibration,
        per_channel=per_channel,
        exclude=tuple(exclude),
        train=train,
        out=output_path(out),
    )
    tell = progress or silent
    with limited(Limits.of(timeout, memory)):
        if isinstance(src, (str, os.PathLike, ir.Model)):
            given = {"args": args, "kwargs": kwargs, "mode": mode, "train": train, "dynamic": dynamic}
            for name, value in given.items():
                if value is not None:
                    raise InputError("the option is only for PyTorch modules", where=name, hint="omit it")
            return _quantize_model(src, request, tell)
        call = ExportRequest(() if args is None else as_arguments(args), dict(kwargs or {}), dynamic or {})
        return _quantize_module(src, call, request, tell)


def _quantize_model(src: str | os.PathLike[str] | ir.Model, request: QuantizeRequest, progress: Progress) -> Quantized:
    request.check_route("ort" if request.quantizer == "ort" else "quark")
    if isinstance(src, ir.Model):
        return quantize_graph(src, request, progress)
    if request.out is not None and request.out.exists() and request.out.samefile(src):
        raise InputError("the quantized model would overwrite the original", where=str(request.out))
    return quantize_graph(models.load(Path(src)), request, progress)


def _quantize_module(module: nn.Module, call: ExportRequest, request: QuantizeRequest, progress: Progress) -> Quantized:
    require_torch()
    if request.quantizer == "quark":
        from onnx_bridge.quantization.torch.quantize_module import quantize_module

        return quantize_module(module, call, request, progress)
    for name, value in {"mode": request.mode, "train": request.train}.items():
        if value is not None:
            raise InputError("ONNX Runtime's quantizer does not have it", where=name, hint="use Quark")
    request.check_route("ort")
    exported = export(module, call.args, call.kwargs, dynamic=call.dynamic, progress=progress)
    return quantize_graph(exported.model, request, progress, [dict(exported.samples[0])])
