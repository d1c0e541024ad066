"""Sparse tensors of a file, made dense as ONNX Runtime makes them; nothing of them is trusted."""

from __future__ import annotations

import math

import numpy as np
import onnx

from onnx_bridge.model.wire_format import LIMIT
from passes.isolation.limits import available_bytes

_COPIES = 4
"""The copies of all elements that are in memory while a tensor becomes dense."""


def dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    """Return a tensor with all elements, by the name of the values.

    Args:
        sparse: the tensor, whose values and indices are valid tensors in the message themselves.

    Raises:
        ValueError: it is too large, or its elements do not fit its dimensions; the message is the end of a sentence.
    """
    if min(sparse.dims, default=0) < 0 or sparse.values.data_type == onnx.TensorProto.STRING:
        raise ValueError("has a negative dimension, or elements that are strings")
    if onnx.TensorProto.EXTERNAL in (sparse.values.data_location, sparse.indices.data_location):
        raise ValueError("has elements in another file")
    if sparse.indices.data_type != onnx.TensorProto.INT64:
        raise ValueError("has indices that are not of the type INT64")
    values, indices = (onnx.numpy_helper.to_array(tensor) for tensor in (sparse.values, sparse.indices))
    shape, count = tuple(sparse.dims), values.size
    size = math.prod(shape)
    if size * values.itemsize >= min(LIMIT, available_bytes() // _COPIES):
        raise ValueError(f"has {size} elements, more than a file of 2 GiB or the free memory holds")
    if values.ndim != 1 or indices.shape not in ((count,), (count, len(shape))):
        raise ValueError(f"has {list(indices.shape)} indices for {list(values.shape)} values")
    bounds = np.array(shape if indices.ndim == 2 else (size,), np.int64)
    if np.any(indices < 0) or np.any(indices >= bounds):
        raise ValueError(f"has indices outside of its shape {list(shape)}")
    flat = np.ravel_multi_index(tuple(indices.T), shape) if indices.ndim == 2 else indices
    if len(np.unique(flat)) < count:
        raise ValueError("has two values for one element")
    elements = np.zeros(size, values.dtype)
    elements[flat] = values
    return onnx.numpy_helper.from_array(elements.reshape(shape), sparse.values.name)
