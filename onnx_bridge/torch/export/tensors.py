"""Tensors of torch as arrays of numpy, and back, in every dtype that both ONNX and torch have."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array

_RAW = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.int8, ml_dtypes.float8_e4m3fn),
    torch.float8_e4m3fnuz: (torch.int8, ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2: (torch.int8, ml_dtypes.float8_e5m2),
    torch.float8_e5m2fnuz: (torch.int8, ml_dtypes.float8_e5m2fnuz),
}
"""Dtypes that numpy lacks: an integer of torch's of the same size, and ml_dtypes' own."""


def to_array(tensor: torch.Tensor) -> Array:
    """A tensor's elements as an array; they are shared where the tensor is dense and on the CPU.

    Raises:
        InputError: it is sparse, nested or of torch's quantized dtypes.
    """
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        raise InputError(f"a tensor of dtype {tensor.dtype} and layout {tensor.layout} has no ONNX form")
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu()
    if tensor.dtype in _RAW:
        raw, dtype = _RAW[tensor.dtype]
        shape = tuple(tensor.shape)
        integers: Array = tensor.contiguous().reshape(-1).view(raw).numpy()
        return np.asarray(integers.view(dtype).reshape(shape))
    array: Array = tensor.numpy()
    return array


def to_tensor(array: Array) -> torch.Tensor:
    """An array's elements as a tensor on the CPU; copied where the array is read-only or not dense."""
    array = np.asarray(array)
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = array.copy(order="C")
    for dtype, (raw, numpys) in _RAW.items():
        if array.dtype == np.dtype(numpys):
            integers = np.int16 if raw is torch.int16 else np.int8
            return torch.from_numpy(array.reshape(-1).view(integers)).view(dtype).reshape(array.shape)
    return torch.from_numpy(array)
