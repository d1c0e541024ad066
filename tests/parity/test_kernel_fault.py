"""From the results of kernels to the first one that is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_bridge.migraphx.gpu.kernels import Kernel
from onnx_bridge.parity.bisect.kernel_fault import first_wrong
from onnx_bridge.reference.comparison.tolerances import Tolerances

RIGHT = {name: np.random.default_rng(place).normal(size=(2, 3)).astype(np.float32) for place, name in enumerate("abc")}
WRONG = RIGHT["b"] + np.float32([[0, 0, 0], [0, 1, 0]])
INSIDE = np.arange(5, dtype=np.float32)
"""A value that only a fusion has."""


def launched(*kernels: tuple[np.ndarray, set[int]]) -> list[Kernel]:
    return [
        Kernel(f"k{place}", output, frozenset(after), frozenset(), ("s_endpgm",))
        for place, (output, after) in enumerate(kernels)
    ]


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        ([(RIGHT["a"], set()), (RIGHT["b"].T, {0}), (RIGHT["c"].reshape(6), {1})], None),
        ([(RIGHT["a"], set()), (WRONG, {0}), (RIGHT["c"] + 1, {1})], ("k1", "b", (1, 1), 1, ())),
        ([(INSIDE, set()), (RIGHT["a"], {0}), (WRONG.T.copy(), {1})], ("k2", "b", (1, 1), 1, ())),
        ([(RIGHT["a"], set()), (INSIDE, {0}), (WRONG, {1})], ("k2", "b", (1, 1), 1, ("k1",))),
        ([(RIGHT["a"] + 1, set()), (RIGHT["b"], {0})], None),  # a value like one of the model's, and right
        ([(INSIDE, set())], None),
    ],
)
def test_the_first_wrong_kernel(kernels: list[tuple[np.ndarray, set[int]]], expected: tuple | None) -> None:
    fault = first_wrong(launched(*kernels), RIGHT, Tolerances())
    found = fault and (fault.symbol, fault.value, fault.index, fault.mismatched, fault.operands)
    assert found == expected
    if fault is not None:
        assert (fault.actual, fault.expected) == (float(WRONG[1, 1]), float(RIGHT["b"][1, 1]))
        assert "confirm on hardware" in str(fault)
