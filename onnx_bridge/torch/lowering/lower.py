"""From a module to a `Lowered` one."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from onnx_bridge.core.errors import InputError
from onnx_bridge.torch.export.calls import Call, Flat, check_module, eager, in_training, quiet, settled
from onnx_bridge.torch.export.structure import leaf_names
from onnx_bridge.torch.lowering.build_programs import Options, make
from onnx_bridge.torch.lowering.lowered import Interface, Lowered, bound, plain

_PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16}


def lowered(
    module: nn.Module,
    sample_inputs: Any,
    kwargs: Mapping[str, Any] | None,
    dynamic: Mapping[str, Mapping[int, str]],
    buckets: Mapping[str, Sequence[int]],
    options: Options,
    progress: Callable[[str], None] | None,
) -> Lowered:
    """See `onnx_bridge.torch.lower`."""
    check_module(module)
    module = getattr(module, "_orig_mod", module)  # what torch.compile returns
    if (where := in_training(module)) is not None:
        what = "it is in training mode, and MIGraphX only infers"
        raise InputError(what, where=f"module {where or type(module).__name__!r}", hint="call eval() first")
    if kwargs is None and isinstance(sample_inputs, Mapping):
        args, named = (), dict(sample_inputs)
    else:
        args = tuple(sample_inputs) if isinstance(sample_inputs, tuple | list) else (sample_inputs,)
        named = dict(kwargs or {})
    narrow = _dtype(options.precision)
    signature = plain(inspect.signature(module.forward))
    sample, tensors = bound(type(module).__name__, signature, args, named)
    given = {name: each.dtype for name, each in tensors.items()}
    returned: list[torch.dtype] = []
    if narrow is not None:
        returned = _returned(module, args, named)
        module = copy.deepcopy(module).to(narrow)
        args, named = _cast(module, args, named, narrow)
    made = make(module, args, named, dynamic, buckets, options, progress or (lambda _stage: None))
    outputs = dict(zip(leaf_names(made.result), returned, strict=True)) if returned else {}
    interface = Interface(type(module).__name__, signature, sample, made.result, narrow, given, outputs)
    return Lowered(made.programs, interface)


def _dtype(precision: str | None) -> torch.dtype | None:
    if precision is not None and precision not in _PRECISIONS:
        raise InputError(f"there is no precision {precision!r}", hint=f"use {', '.join(_PRECISIONS)}")
    return None if precision is None else _PRECISIONS[precision]


def _returned(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.dtype]:
    """The dtypes of the tensors that the module returns, in order."""
    call, tensors = Call.of(module, args, kwargs)
    with settled(module) as stand_in, quiet():
        _, leaves = eager(Flat(stand_in, call).eval(), tensors)
    return [each.dtype for each in leaves.values()]


def _cast(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    call, tensors = Call.of(module, args, kwargs)
    return call.arguments(
        {name: each.to(dtype) if each.is_floating_point() else each for name, each in tensors.items()}
    )
