"""PyTorch tensors as NumPy arrays, and back, for every dtype that ONNX and PyTorch share."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array

if TYPE_CHECKING:
    import torch


@functools.cache
def _without_numpy() -> dict[torch.dtype, tuple[torch.dtype, Any]]:
    """Return the dtypes that NumPy lacks: torch's integer dtype of the same size, and ml_dtypes' dtype."""
    import torch

    return {
        torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
        torch.float8_e4m3fn: (torch.int8, ml_dtypes.float8_e4m3fn),
        torch.float8_e4m3fnuz: (torch.int8, ml_dtypes.float8_e4m3fnuz),
        torch.float8_e5m2: (torch.int8, ml_dtypes.float8_e5m2),
        torch.float8_e5m2fnuz: (torch.int8, ml_dtypes.float8_e5m2fnuz),
    }


def to_array(tensor: torch.Tensor) -> Array:
    """Return a tensor as an array, shared if dense and on the CPU; raises InputError if sparse, nested or quantized."""
    import torch

    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        raise InputError(f"a tensor of dtype {tensor.dtype} and layout {tensor.layout} has no ONNX form")
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu()
    if tensor.dtype in _without_numpy():
        raw, dtype = _without_numpy()[tensor.dtype]
        shape = tuple(tensor.shape)
        integers: Array = tensor.contiguous().reshape(-1).view(raw).numpy()
        return np.asarray(integers.view(dtype).reshape(shape))
    array: Array = tensor.numpy()
    return array


def to_tensor(array: Array) -> torch.Tensor:
    """Return an array as a tensor on the CPU; a copy if the array is read-only or not dense."""
    import torch

    array = np.asarray(array)
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = array.copy(order="C")
    for dtype, (raw, ml_dtype) in _without_numpy().items():
        if array.dtype == np.dtype(ml_dtype):
            integers = np.int16 if raw is torch.int16 else np.int8
            return torch.from_numpy(array.reshape(-1).view(integers)).view(dtype).reshape(array.shape)
    return torch.from_numpy(array)


def require_dtype(name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Raise InputError if an input is of another dtype than it was lowered for."""
    if tensor.dtype != dtype:
        what = f"the dtype is {tensor.dtype}, but it was lowered for {dtype}"
        raise InputError(what, where=f"input {name!r}", hint=f"cast it: .to({dtype})")
