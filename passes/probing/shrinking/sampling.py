"""Elements of smaller constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.probing.probe_writer import SAMPLED, keeps_elements


def sampled(tensor: ir.TensorProtocol, shape: Sequence[int]) -> ir.TensorProtocol:
    """Return elements of a tensor at even distances along each axis; the tensor itself if it has that shape.

    If a probe of the tensor would not have its elements, one of the sample has not either: the witnesses of nodes with
    other weights are equal.
    """
    real = tensor.shape.numpy()
    if list(shape) == list(real):
        return tensor
    places = [np.arange(small) * size // max(small, 1) for small, size in zip(shape, real, strict=True)]
    array = np.asarray(tensor.numpy())
    return _sample(np.ascontiguousarray(array[np.ix_(*places)]), tensor)


def _sample(array: np.ndarray[Any, np.dtype[Any]], source: ir.TensorProtocol) -> ir.TensorProtocol:
    small = ir.Tensor(array, dtype=source.dtype)
    if not keeps_elements(source):
        small.meta[SAMPLED] = True
    return small


def within(indices: ir.TensorProtocol, before: Sequence[int], after: Sequence[int]) -> ir.TensorProtocol:
    """Return indices for smaller axes: at the same distance from the start or, if they are negative, from the end.

    Those that are too large become the last ones, in their order.

    Args:
        indices: indices in any shape; if there are several sizes, its last axis has as many elements.
        before: the sizes of the axes.
        after: their smaller sizes.
    """
    array = np.asarray(indices.numpy())
    small = np.array(after if len(after) > 1 else after[0], array.dtype)
    clipped = np.clip(array, -small, small - 1)
    if len(np.unique(clipped)) < len(np.unique(array)) <= min(after, default=0):
        positive = np.where(array < 0, array + np.array(before, array.dtype), array).reshape(array.shape)
        clipped = np.searchsorted(np.unique(positive), positive).astype(array.dtype)
    return _sample(clipped, indices)
