"""The error of the reference against itself when its inputs, and coordinates, move by one unit in the last place.

If a model chooses between values that are closer to each other than they can be computed (TopK, ArgMax, rounding to
a quantization step), or amplifies rounding errors, its outputs are not determined: an error that the reference makes
against itself proves nothing about a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from onnx_bridge.core.values import Array, Value
from onnx_bridge.reference.comparison.compare import Comparison, OutputComparison
from onnx_bridge.reference.comparison.tolerances import is_float

FACTOR = 10.0
"""An error is the reference's own if it is at most this multiple of what the reference moves by.

A device rounds every operation differently, while the nudge moves only the inputs: it underestimates what rounding does
by as many times as errors add up, some ten times in deep networks. A fault is further away: a well-conditioned network
in float32 moves by 1e-6 of its outputs, and its tolerance is 1e-3.
"""
SEEDS = (1, 2, 3)
"""The seeds of the signs by which inputs are moved."""

Sample = Mapping[str, Value]


def nudged(sample: Sample, seed: int, epsilon: float = 0.0) -> dict[str, Value]:
    """Return a sample whose floats are moved by one unit in the last place, up or down.

    Args:
        sample: inputs by name.
        seed: the seed of the signs.
        epsilon: the unit in the last place of 1.0, if that of a narrower dtype than the input's is meant.
    """
    draw = np.random.default_rng(seed)

    def moved(value: Value) -> Value:
        if isinstance(value, list):
            return [_moved(item, draw, epsilon) for item in value]
        return None if value is None else _moved(value, draw, epsilon)

    return {name: moved(value) for name, value in sample.items()}


def _moved(array: Array, draw: np.random.Generator, epsilon: float) -> Array:
    if array.dtype.kind in "OUST" or not is_float(array.dtype):
        return array
    limits: Any = ml_dtypes.finfo(array.dtype)  # type: ignore[no-untyped-call]
    step = max(float(limits.eps), epsilon)
    signs = draw.integers(0, 2, array.shape) * 2 - 1
    with np.errstate(all="ignore"):
        moved = np.asarray(array.astype(np.float64) * (1 + step * signs)).astype(array.dtype)
        return np.where(np.isfinite(moved), moved, array)  # the largest numbers have none above them


def coordinate_error(resized: Array, shape: Sequence[int], seed: int) -> Array:
    """Return what moves a resized tensor as one unit in the last place of its coordinates does, up or down.

    The coordinates of Resize are computed in float32 from sizes alone, so that no moved input moves them. If n elements
    of an axis become m, that of element i is about i · n / m, and a unit in its last place moves the element by
    2⁻²³ · i times the distance to the next.

    Args:
        resized: the results, of any float dtype.
        shape: the sizes before, of as many axes.
        seed: the seed of the signs.
    """
    draw = np.random.default_rng(seed)
    wide, error = resized.astype(np.float64), np.zeros(resized.shape)
    for axis, (before, after) in enumerate(zip(shape, resized.shape, strict=True)):
        if before != after and after > 1:
            coordinates = np.arange(after).reshape(-1, *[1] * (resized.ndim - axis - 1))
            error += 2.0**-23 * coordinates * np.abs(np.gradient(wide, axis=axis))
    signs = draw.integers(0, 2, resized.shape) * 2 - 1
    return np.nan_to_num(error * signs, posinf=0.0, neginf=0.0).astype(resized.dtype)


def explains(differing: OutputComparison, moved: Sequence[OutputComparison]) -> bool:
    """Return whether what the reference moves by explains a difference: in its largest error, and in the errors of all.

    Args:
        differing: an output against the reference.
        moved: the same output of the reference with moved inputs, against the reference.
    """
    if any(comparison.tolerance is None for comparison in moved):  # another shape, or not there
        return True
    if differing.max_abs is None or differing.rmse is None:
        return False
    if _one_sided(differing) and not any(map(_one_sided, moved)):
        return False
    largest = max((comparison.max_abs or 0.0 for comparison in moved), default=0.0)
    spread = max((comparison.rmse or 0.0 for comparison in moved), default=0.0)
    return differing.max_abs <= FACTOR * largest and differing.rmse <= FACTOR * spread


def explains_all(differing: Sequence[OutputComparison], moved: Sequence[Comparison]) -> bool:
    """Return whether each output moves as far by itself as it differs (`explains`)."""
    return all(
        explains(output, [each for comparison in moved for each in comparison.outputs if each.name == output.name])
        for output in differing
    )


def _one_sided(output: OutputComparison) -> bool:
    """Return whether a NaN or an infinity is on one side only."""
    worst = output.worst_actual, output.worst_expected
    return any(isinstance(number, float) and not np.isfinite(number) for number in worst)
