"""Values of a model that a result may be: of its size, in its order or transposed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from onnx_bridge.core.values import Array
from onnx_bridge.reference.comparison.tolerances import Tolerances

_MOST_AXES = 4
"""The most axes, of more than one element, of a value whose transposes are looked at."""


class Likeness(NamedTuple):
    """A result in the form of a value that it may be, and which of its elements differ, one after the other."""

    name: str
    actual: Array
    expected: Array
    wrong: np.ndarray[Any, np.dtype[np.bool_]]


def likenesses(output: Array, values: Mapping[str, Array], tolerances: Tolerances) -> Iterator[Likeness]:
    """Yield a result in the form of each value that it may be, in the order of the values."""
    for name, value in values.items():
        if output.size != value.size or (output.dtype.kind in "iub") != (value.dtype.kind in "iub"):
            continue
        narrow = min(output.dtype, value.dtype, key=lambda dtype: dtype.itemsize)  # MIGraphX may compute in it
        expected = value.astype(narrow)
        allowed = tolerances.of(name, expected)
        for actual in _orders(output.astype(narrow), value.shape):
            numbers, right = actual.astype(np.float64).ravel(), expected.astype(np.float64).ravel()
            with np.errstate(all="ignore"):
                near = np.isclose(numbers, right, allowed.rtol, allowed.atol, equal_nan=True)
            yield Likeness(name, actual, expected, ~near)


def _orders(output: Array, shape: Sequence[int]) -> Iterator[Array]:
    """Yield a result in a shape: in its order, and transposed if that has the shape as well."""
    yield output.reshape(shape)
    squeezed, sizes = output.squeeze(), [size for size in shape if size != 1]
    for axes in itertools.permutations(range(squeezed.ndim)) if squeezed.ndim <= _MOST_AXES else ():
        if axes != tuple(range(squeezed.ndim)) and [squeezed.shape[axis] for axis in axes] == sizes:
            yield squeezed.transpose(axes).reshape(shape)
