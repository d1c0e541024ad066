"""Quantize a PyTorch module with AMD Quark, and export it to ONNX.

    module ─► insert quantizers, calibrate ─► (train) ─► freeze ─► torch.onnx ─► tidy ─► compare with the float module

This works around problems of Quark:

- By default, freezing in the eager mode leaves rounded float weights without quantizers, and MIGraphX would compute in
  float. Weights are frozen unrounded, and `passes.quantization.fold_qdq` makes them integers. If only weights are
  quantized, `onnx_bridge.export` takes the rounded module, and stores those of 4 bits as such.
- Quark's own export ends with rewrites that fail on a convolution without a bias, and its nodes are not sorted. The
  graph comes from torch.onnx's exporter instead, with the names of `onnx_bridge.export`.
- Graph mode needs torchao, and fails late without it; it supports no open dimensions, rewrites a network for AMD's NPUs
  (`onnx_bridge.quantization.torch.quark_graph`), and quantizes integers, which no runtime supports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.values import Value
from onnx_bridge.quantization import quark as library
from onnx_bridge.quantization.calibration_data import as_arrays, calibration_samples, with_tokens
from onnx_bridge.quantization.quantized import (
    FEW,
    Deviation,
    Quantized,
    deviations,
    gains_of,
    kernels_of,
    losses,
    require_quantized,
    saved,
    versioned,
)
from onnx_bridge.quantization.torch.quark_configs import WEIGHTS_ONLY, storage_notes
from onnx_bridge.quantization.torch.quark_modes import FrozenModule, Quantizer, WithOriginalSignature, uncompiled
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests.export import ExportRequest
from onnx_bridge.requests.quantization import QuantizeRequest
from onnx_bridge.requests.schemes import BLOCK, Recipe, Scheme
from onnx_bridge.samples.inputs import Sample, TensorSpec
from onnx_bridge.torch.export.exporters import Dims, ExporterError, run_exporter
from onnx_bridge.torch.export.samples import check_dynamic, distinct_sizes, resized, symbol_sizes
from onnx_bridge.torch.export.try_exporters import try_exporters
from onnx_bridge.torch.modules.calls import Call, FlatModule, first_run, run_module
from onnx_bridge.torch.modules.modules import check_devices, inference_copy
from onnx_bridge.torch.modules.tensors import to_array, to_tensor
from passes.rewriting.base import Context
from passes.rewriting.pipeline import Pipeline

_PASSES = "fold-qdq,fold-constants,remove-identity,fold-batch-norm,remove-dead,infer-shapes"
_OPSET, _LATER = 17, {"fp8": 19, "int16": 20}
"""The opset of the export, and of schemes that need a later one."""
_EXPORTED, _APART = 20.0, 3.0
"""An export is wrong whose SQNR against its own module is below the first, and at most the second above that against
the float module; in dB."""
_WIDE = 21
"""The opset with 16-bit quantization; it changes no operator of torch.onnx's exports at 20."""


def quantize_module(module: nn.Module, call: ExportRequest, request: QuantizeRequest, progress: Progress) -> Quantized:
    """Quantize a module, which is not changed, for its arguments and open dimensions; raises like `quantize`."""
    scheme, mode = request.format, request.module_mode
    recipe = request.recipe(mode)
    _check_mode(request, call)
    arguments, tensors = _call(module, call)
    dims = check_dynamic(tensors, call.dynamic)
    specs = [_spec(name, tensor, dims.get(name, {})) for name, tensor in tensors.items()]
    own: Sample = {name: to_array(tensor) for name, tensor in tensors.items()}
    data = calibration_samples(recipe, with_tokens(request, specs).calibration, specs, [own])
    library.load("quark.torch")
    with inference_copy(module) as copied:
        original = FlatModule(copied, arguments).eval()
        result = first_run(original, tensors)
        called = list(_results(original, own)) if request.float_ends else []
        ends = {*called[:1], *called[-1:]} - {*request.exclude}
        layers = _excluded(module, scheme, [*request.exclude, *sorted(ends, key=called.index)])
        accuracy = {} if request.validate is None else {"float": request.validate(copied)}
        samples = [as_arrays(sample) for sample in data.samples]

        def measured(fewer: Recipe) -> tuple[Sequence[Deviation], Sequence[Deviation]]:
            quantizer = Quantizer(original, fewer, mode, exclude=layers)
            flat: Any = quantizer.freeze(quantizer.insert({}, samples, progress)).flat
            outputs = deviations(partial(_run, flat), partial(_run, original), data.samples)
            return outputs, _of_layers(flat, original, data.samples)

        progress(f"quantize to {scheme.name}")
        quantizer = Quantizer(original, recipe, mode, exclude=layers)
        quantized = quantizer.insert(tensors, samples, progress)
        with library.without_log():
            trained = WithOriginalSignature(quantized, module, result.structure).eval()
            if request.validate is not None:
                with quantizer.paused(quantized):
                    accuracy["PTQ"] = request.validate(trained)
            if request.train is not None:
                progress("train")
                with quantizer.learnt_scales(quantized, request.observer):
                    request.train(trained)
        progress("freeze")
        frozen: Any = quantizer.freeze(quantized)
        rounded = recipe.scheme in WEIGHTS_ONLY  # and else a module of torch's own layers
        made = frozen.flat.module if rounded else WithOriginalSignature(frozen, module, result.structure).eval()
        if request.validate is not None and request.train is not None:
            accuracy["QAT"] = request.validate(made)
        progress("export")
        if rounded:
            model = _finished(try_exporters(made, replace(call, out=None)).model, request)
        else:
            model = _export(FrozenModule(frozen, arguments).eval(), tensors, list(result.tensors), dims, request)
        progress("compare with the float module")
        reference = Reference(model)
        compared = deviations(lambda sample: reference.run(as_arrays(sample)), partial(_run, original), data.samples)
        if not rounded:
            _check_export(reference, frozen, data.samples[:FEW], compared, scheme)
        gains = gains_of(recipe, measured, compared, lambda: _of_layers(frozen.flat, original, data.samples), progress)
    how = f"{'graph' if mode == 'fx' else 'eager'} mode{', trained' * bool(request.train)}"
    how += f" by {request.observer}" if request.observer else ""
    written = saved(model, request.out, progress)
    return Quantized(
        model=written,
        quantizer=f"{versioned('AMD Quark', 'amd-quark')}, {how}",
        scheme=scheme.name,
        per_channel=request.per_channel,
        method=recipe.method,
        excluded=tuple(layers),
        calibration=data.source,
        samples=data.count,
        batches=len(data.samples),
        deviations=compared,
        kernels=kernels_of(written),
        gains=gains,
        notes=(*data.notes, *storage_notes(scheme), *reference.notes, *losses(gains)),
        path=request.out,
        accuracy=accuracy,
        module=made,
    )


def _check_export(
    reference: Reference, frozen: nn.Module, samples: Sequence[Sample], compared: Sequence[Deviation], scheme: Scheme
) -> None:
    """Raise InputError if an export differs from the quantized module by about as much as from the float one.

    A right one is equal to it, or rounds some ties to the other side.
    """

    def module(sample: Sample) -> dict[str, Value]:
        with torch.no_grad(), uncompiled():
            outputs = frozen([to_tensor(array) for array in as_arrays(sample).values()])
        return {str(index): to_array(output) for index, output in enumerate(outputs)}

    of_export = deviations(lambda sample: reference.run(as_arrays(sample)), module, samples)
    for export, whole in zip(of_export, compared, strict=True):
        if export.sqnr_db is not None and export.sqnr_db < min(_EXPORTED, (whole.sqnr_db or 0.0) + _APART):
            what = f"torch.onnx exports the quantized module wrongly: SQNR {export.sqnr_db:.1f} dB from its own result"
            raise InputError(what, where=f"scheme {scheme.name}, output {export.name!r}")


def _of_layers(quantized: FlatModule, original: FlatModule, samples: Sequence[Sample]) -> tuple[Deviation, ...]:
    """Return how far the result of each convolution and matrix product is from that in float."""
    return deviations(partial(_results, quantized), partial(_results, original), samples[:FEW])


def _check_mode(request: QuantizeRequest, call: ExportRequest) -> None:
    if request.module_mode == "fx" and call.dynamic:
        what = "Quark's graph mode supports no open dimensions"
        raise library.GraphModeError(what, where=f"scheme {request.scheme}", hint="use mode='eager'")


def _results(flat: FlatModule, sample: Sample) -> dict[str, Value]:
    """Return the results of convolutions and matrix products by layer, in the order of their calls."""
    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    results: dict[str, Value] = {}
    hooks = [
        layer.register_forward_hook(lambda *call, name=name: results.update({name: to_array(call[2])}))
        for name, layer in flat.module.named_modules()
        if isinstance(layer, kinds)
    ]
    try:
        _run(flat, sample)
    finally:
        for hook in hooks:
            hook.remove()
    return results


def _call(module: nn.Module, request: ExportRequest) -> tuple[Call, dict[str, torch.Tensor]]:
    if not isinstance(module, nn.Module):
        raise InputError(f"the module is a {type(module).__name__}, not a torch.nn.Module", where="the module")
    call, tensors = Call.of(module, request.args, request.kwargs)
    check_devices(module, tensors)
    if not tensors:
        raise InputError("the module is called without any tensor, so it is a constant", where="the module")
    return call, tensors


def _excluded(module: nn.Module, scheme: Scheme, exclude: Sequence[str]) -> list[str]:
    """Return the layers that stay in float: those that the user names, and those whose weights have no whole blocks."""
    layers = dict(module.named_modules())
    for name in exclude:
        if name not in layers:
            raise InputError(f"the module has no layer {name!r}", where="exclude", hint=nearest(name, layers))
    if scheme.name != "int4-weights":
        return list(exclude)
    weighted = {
        name: layer for name, layer in layers.items() if isinstance(getattr(layer, "weight", None), torch.Tensor)
    }
    quantizable = [
        name for name, child in weighted.items() if isinstance(child, nn.Linear) and child.in_features % BLOCK == 0
    ]
    if not quantizable:
        what = f"the module has no Linear whose inputs are a multiple of {BLOCK}, the only layer with 4-bit weights"
        raise InputError(what, where=f"scheme {scheme.name}", hint="quantize its ONNX export")
    return [*exclude, *(name for name in weighted if name not in quantizable and name not in exclude)]


def _spec(name: str, tensor: torch.Tensor, dims: Mapping[int, str]) -> TensorSpec:
    shape = tuple(dims.get(axis, size) for axis, size in enumerate(tensor.shape))
    return TensorSpec(name, to_array(tensor).dtype, shape)


def _run(flat: FlatModule, sample: Sample) -> dict[str, Value]:
    """Return the outputs of the float module; their names do not matter."""
    tensors = {name: to_tensor(array) for name, array in as_arrays(sample).items()}
    return {name: to_array(tensor) for name, tensor in run_module(flat, tensors).tensors.items()}


def _export(
    frozen: FrozenModule,
    tensors: Mapping[str, torch.Tensor],
    outputs: Sequence[str],
    dims: Dims,
    request: QuantizeRequest,
) -> ir.Model:
    """Return the graph of a module with quantizers; raises InputError if torch.onnx or runtimes cannot express it."""
    scheme, path = request.format, request.out
    fixed = {
        size
        for name, tensor in tensors.items()
        for axis, size in enumerate(tensor.shape)
        if axis not in dims.get(name, {})
    }
    given = {**tensors, **resized(tensors, dims, distinct_sizes(symbol_sizes(tensors, dims), sorted(fixed)))}
    folder = None if path is None else path.absolute().parent
    try:
        with uncompiled():
            opset = _LATER.get(scheme.name, _OPSET)
            model = run_exporter("torchscript", frozen, given, outputs, dims, opset, folder)
    except ExporterError as error:
        kind = library.GraphModeError if request.module_mode == "fx" else InputError
        what = f"torch.onnx cannot export the quantized module: {error}"
        raise kind(what, where=f"scheme {scheme.name}") from None
    return _finished(model, request)


def _finished(model: ir.Model, request: QuantizeRequest) -> ir.Model:
    """Return the graph of a quantized module, sorted, with integer weights; raises InputError if no runtime has it."""
    scheme = request.format
    if scheme.name == "int16":
        model.opset_imports[""], model.ir_version = _WIDE, max(model.ir_version, 10)
    steps = Pipeline.parse(_PASSES).run(model, Context())
    model = steps[-1].result.model
    model.graph.sort()
    if not storage_notes(scheme):
        require_quantized(model, scheme)
    return model
