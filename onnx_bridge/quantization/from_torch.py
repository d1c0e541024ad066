"""A PyTorch module, quantized by AMD Quark and exported to ONNX: what ``onnx_bridge.export.quark`` does.

    module ─► insert quantizers, calibrate ─► (train) ─► freeze ─► torch.onnx ─► tidy ─► compare with the float module

What goes wrong when Quark is called by hand is seen to here:

- Frozen as Quark does by default, the eager mode's weights are rounded floats without quantizers: MIGraphX would
  compute in float. They are frozen unrounded, and `passes.quantization.to_qdq.fold_qdq` makes integers of them.
- Quark's own export ends with rewrites that fail on a convolution without a bias, and leaves nodes out of order. The
  graph comes from torch.onnx's exporter instead, with the names that `onnx_bridge.export` gives.
- Graph mode needs torchao, and says so in the middle of its work; it takes no sizes that stay open, replaces Sigmoid
  by HardSigmoid and SiLU by HardSwish without a word, and quantizes integers, which no runtime takes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.values import Value
from onnx_bridge.model import io as models
from onnx_bridge.quantization import quark as library
from onnx_bridge.quantization import torch_specs
from onnx_bridge.quantization.data_reader import calibration_for, plain
from onnx_bridge.quantization.deviation import deviations
from onnx_bridge.quantization.quantize import checked_target, detached, refuse_untouched, versioned
from onnx_bridge.quantization.quantized import Quantized
from onnx_bridge.quantization.schemes import BLOCK, Scheme, scheme_of
from onnx_bridge.quantization.torch_modes import AsOriginal, Frozen, Quantizer, uncompiled
from onnx_bridge.quantization.torch_specs import Mode
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples.files import SampleSource
from onnx_bridge.samples.inputs import Sample, TensorSpec
from onnx_bridge.torch.export.calls import Call, Flat, check_devices, eager, settled
from onnx_bridge.torch.export.exporters import Dims, Refused, attempt
from onnx_bridge.torch.export.samples import check_dynamic, distinct, resized, sizes_of
from onnx_bridge.torch.export.tensors import to_array, to_tensor
from passes.analysis.quantization import is_quantize
from passes.core.base import Context
from passes.core.graphs import Scope
from passes.core.pipeline import Pipeline

_TIDY = "fold-qdq,fold-constants,remove-identity,fold-batch-norm,remove-dead,infer-shapes"
_OPSET, _LATER = 17, {"fp8": 19, "int16": 20}
"""The opset of the export, and that of schemes that need a later one."""
_WIDE = 21
"""The opset that has integers of 16 bits; it changes no operator that torch.onnx's export at 20 has."""


def quark(
    module: nn.Module,
    args: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    scheme: str = "int8",
    mode: Mode = "fx",
    calibration: SampleSource | None = None,
    per_channel: bool = False,
    exclude: Sequence[str] = (),
    train: Callable[[nn.Module], object] | None = None,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Quantized:
    """See `onnx_bridge.quantization.export_verb.Export.quark`."""
    wanted = scheme_of(scheme)
    if mode not in ("fx", "eager"):
        raise InputError(f"there is no mode {mode!r}", where="mode", hint="use fx or eager")
    wanted.check(mode, per_channel=per_channel)
    for given, what in ((exclude, "leaves nothing out by name"), (dynamic, "takes no sizes that stay open")):
        if given and mode == "fx":
            raise InputError(f"Quark's graph mode {what}", where=f"scheme {wanted.name}", hint="use mode='eager'")
    path, tell = checked_target(out), progress or (lambda _stage: None)
    call, tensors = _call(module, args, kwargs)
    dims = check_dynamic(tensors, dynamic or {})
    layers = _left_out(module, wanted, exclude)
    specs = [_spec(name, tensor, dims.get(name, {})) for name, tensor in tensors.items()]
    own: Sample = {name: to_array(tensor) for name, tensor in tensors.items()}
    data = calibration_for(wanted, calibration, specs, [own])
    library.load("quark.torch")
    with settled(module) as stand_in:
        original = Flat(stand_in, call).eval()
        result, leaves = eager(original, tensors)
        tell(f"quantize to {wanted.name}")
        quantizer = Quantizer(wanted, mode, per_channel=per_channel, exclude=layers)
        quantized = quantizer.insert(original, tensors, [plain(each) for each in data.samples], tell)
        if train is not None:
            tell("train")
            with library.hushed():
                train(AsOriginal(quantized, module, result))
        tell("freeze")
        frozen = Frozen(quantizer.freeze(quantized), call).eval()
        tell("export")
        model = _exported(frozen, tensors, list(leaves), dims, wanted, path)
        tell("compare with the float module")
        reference = Reference(model)
        found = deviations(
            lambda sample: reference.run(plain(sample)), lambda sample: _run(original, sample), data.samples
        )
    if path is not None:
        tell("write")
        models.save(model, path)
        model = models.load(path)
    else:
        model = detached(model)
    how = f"{'graph' if mode == 'fx' else 'eager'} mode{', trained' if train else ''}"
    return Quantized(
        model=model,
        quantizer=f"{versioned('AMD Quark', 'amd-quark')}, {how}",
        scheme=wanted.name,
        per_channel=per_channel,
        excluded=tuple(layers),
        calibration=data.source,
        samples=len(data.samples),
        deviations=found,
        notes=(*data.notes, *torch_specs.note(wanted), *quantizer.notes, *reference.notes),
        path=path,
        module=AsOriginal(frozen.module, module, result).eval(),
    )


def _call(module: nn.Module, args: Any, kwargs: Mapping[str, Any] | None) -> tuple[Call, dict[str, torch.Tensor]]:
    if not isinstance(module, nn.Module):
        raise InputError(f"it is a {type(module).__name__}, and no torch.nn.Module", where="the module")
    arguments = args if isinstance(args, tuple | list) else (args,)
    call, tensors = Call.of(module, tuple(arguments), dict(kwargs or {}))
    check_devices(module, tensors)
    if not tensors:
        raise InputError("it is called without any tensor, so it is a constant", where="the module")
    return call, tensors


def _left_out(module: nn.Module, scheme: Scheme, exclude: Sequence[str]) -> list[str]:
    """The layers that stay in float: those that the user names, and those that have no whole blocks of weights."""
    layers = dict(module.named_modules())
    for each in exclude:
        if each not in layers:
            raise InputError(f"the module has no layer {each!r}", where="exclude", hint=nearest(each, layers))
    if scheme.name != "int4-weights":
        return list(exclude)
    weighted = {name: each for name, each in layers.items() if isinstance(getattr(each, "weight", None), torch.Tensor)}
    fit = [name for name, each in weighted.items() if isinstance(each, nn.Linear) and each.in_features % BLOCK == 0]
    if not fit:
        what = f"the module has no Linear whose inputs are a multiple of {BLOCK}, which alone gets weights of 4 bits"
        raise InputError(what, where=f"scheme {scheme.name}", hint="quantize its ONNX export")
    return [*exclude, *(name for name in weighted if name not in fit and name not in exclude)]


def _spec(name: str, tensor: torch.Tensor, dims: Mapping[int, str]) -> TensorSpec:
    shape = tuple(dims.get(axis, size) for axis, size in enumerate(tensor.shape))
    return TensorSpec(name, to_array(tensor).dtype, shape)


def _run(flat: Flat, sample: Sample) -> dict[str, Value]:
    """The float module's own outputs; the names of outputs do not matter."""
    tensors = {name: to_tensor(array) for name, array in plain(sample).items()}
    _, leaves = eager(flat, tensors)
    return {name: to_array(leaf) for name, leaf in leaves.items()}


def _exported(
    frozen: Frozen,
    tensors: Mapping[str, torch.Tensor],
    outputs: Sequence[str],
    dims: Dims,
    scheme: Scheme,
    path: Path | None,
) -> ir.Model:
    """The graph, with integers for weights, in order.

    Raises:
        InputError: torch.onnx cannot export it, or a quantizer is at a place that no runtime takes.
    """
    rigid = {
        size for name, each in tensors.items() for axis, size in enumerate(each.shape) if axis not in dims.get(name, {})
    }
    given = {**tensors, **resized(tensors, dims, distinct(sizes_of(tensors, dims), sorted(rigid)))}
    folder = None if path is None else path.absolute().parent
    try:
        with uncompiled():
            model = attempt("torchscript", frozen, given, outputs, dims, _LATER.get(scheme.name, _OPSET), folder)
    except Refused as refused:
        raise InputError(
            f"torch.onnx cannot export what Quark made: {refused}", where=f"scheme {scheme.name}"
        ) from None
    if scheme.name == "int16":
        model.opset_imports[""], model.ir_version = _WIDE, max(model.ir_version, 10)
    steps = Pipeline.parse(_TIDY).run(model, Context())
    model = steps[-1].result.model
    model.graph.sort()
    _refuse_integers(model)
    if not torch_specs.note(scheme):
        refuse_untouched(model, scheme)
    return model


def _refuse_integers(model: ir.Model) -> None:
    """Graph mode quantizes whatever an addition or comparison takes, masks and indices too."""
    scope = Scope(model, model.graph)
    for node in model.graph:
        if is_quantize(node) and (dtype := scope.dtype(node.inputs[0])) is not None and not dtype.is_floating_point():
            what = (
                f"Quark's graph mode quantizes {dtype.name.lower()}, such as masks and indices, which no runtime takes"
            )
            raise InputError(
                what, where=f"QuantizeLinear {node.name}", hint="use mode='eager', or quantize the ONNX export"
            )
