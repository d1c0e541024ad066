"""Lower a module: cast it, obtain its programs, and wrap them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress
from onnx_bridge.requests.lowering import LowerRequest
from onnx_bridge.torch.lowering.lowered import Interface, Lowered, without_annotations
from onnx_bridge.torch.lowering.program_cache import obtain_programs
from onnx_bridge.torch.modules.calls import Call, FlatModule, first_run
from onnx_bridge.torch.modules.modules import check_module, inference_copy, training_submodule
from onnx_bridge.torch.modules.structure import leaf_names

_PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16}


def lower_module(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    request: LowerRequest,
    progress: Progress | None = None,
) -> Lowered:
    """Lower a module for a call; raises like `onnx_bridge.lower`."""
    check_module(module)
    module = getattr(module, "_orig_mod", module)  # of what torch.compile returns
    if (name := training_submodule(module)) is not None:
        what = "the module is in training mode, and MIGraphX is for inference only"
        raise InputError(what, where=f"module {name or type(module).__name__!r}", hint="call eval() first")
    dtype = None if request.precision is None else _PRECISIONS[request.precision]
    signature = without_annotations(inspect.signature(module.forward))
    sample, tensors = Call.bound(type(module).__name__, signature, args, kwargs, defaults=True)
    given = {name: tensor.dtype for name, tensor in tensors.items()}
    returned: list[torch.dtype] = []
    if dtype is not None:
        returned = _output_dtypes(module, args, kwargs)
        module = copy.deepcopy(module).to(dtype)
        args, kwargs = _cast(module, args, kwargs, dtype)
    obtained = obtain_programs(module, args, kwargs, request, progress)
    outputs = dict(zip(leaf_names(obtained.result), returned, strict=True)) if returned else {}
    interface = Interface(type(module).__name__, signature, sample, obtained.result, dtype, given, outputs)
    return Lowered(obtained.programs, interface)


def _output_dtypes(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.dtype]:
    call, tensors = Call.of(module, args, kwargs)
    with inference_copy(module) as copied:
        result = first_run(FlatModule(copied, call).eval(), tensors)
    return [tensor.dtype for tensor in result.tensors.values()]


def _cast(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], dtype: torch.dtype
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    call, tensors = Call.of(module, args, kwargs)
    return call.arguments(
        {name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    )
