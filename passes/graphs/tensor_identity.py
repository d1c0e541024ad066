"""Tensors as dictionary keys: equal if dtype, shape and every byte are, and read only as far as needed."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.graphs import graphs

_HEAD = 4096
"""The bytes of every tensor that are read; the rest is read only of tensors that are equal so far."""


class TensorKey:
    """A tensor by its dtype, shape and bytes: -0.0 is not 0.0, and a NaN is itself only with the same bits.

    Args:
        tensor: of any dtype; it is read in place, and copied only if its elements are packed or strided.
    """

    def __init__(self, tensor: ir.TensorProtocol) -> None:
        self._tensor = tensor
        self._start = (dtype_and_shape(tensor), self._head())

    def __hash__(self) -> int:
        return hash(self._start)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorKey) and self._start == other._start and self._digest == other._digest

    def _head(self) -> bytes | tuple[bytes, ...]:
        if self._tensor.dtype == ir.DataType.STRING:
            return tuple(graphs.tensor_proto(self._tensor, "").string_data)
        return bytes(_view(self._tensor)[:_HEAD])

    @cached_property
    def _digest(self) -> bytes:
        """A cryptographic hash of all bytes after the head; empty if there are none."""
        if self._tensor.dtype == ir.DataType.STRING or self._tensor.nbytes <= _HEAD:
            return b""
        return hashlib.blake2b(_view(self._tensor)[_HEAD:].data, digest_size=32).digest()


def dtype_and_shape(tensor: ir.TensorProtocol) -> tuple[ir.DataType, tuple[int, ...]]:
    """The part of the key that needs no reading."""
    return tensor.dtype, tuple(tensor.shape.numpy())


def _view(tensor: ir.TensorProtocol) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if tensor.dtype.bitwidth < 8:
        return np.frombuffer(tensor.tobytes(), np.uint8)
    return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8)
