"""decompose-group-norm against its specification in numpy: ONNX Runtime has the operators on GPUs only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.contrib.normalization import decompose_group_norm
from tests.passes.device import Device
from tests.passes.legalize.one_node import Case, case, declare, legalized, normal, skipped

Array = np.ndarray[Any, np.dtype[Any]]


def group_norm(x: Array, gamma: Array, beta: Array, groups: int, *, epsilon: float = 1e-5, silu: bool = False) -> Array:
    """GroupNorm of channels-last x, (batch, height, width, channels), in float64."""
    parts = x.astype(np.float64).reshape(len(x), -1, groups, x.shape[-1] // groups)
    mean, variance = parts.mean((1, 3), keepdims=True), parts.var((1, 3), keepdims=True)
    y = ((parts - mean) / np.sqrt(variance + epsilon)).reshape(x.shape) * gamma + beta
    return np.asarray(y / (1 + np.exp(-y)) if silu else y).astype(x.dtype)


def one(operator: str, inputs: list[Array], outputs: list[Array], **attributes: Any) -> Case:
    return declare(case(operator, inputs, attributes, domain="com.microsoft", opset=17, outputs=len(outputs)), outputs)


class TestGroupNorm:
    X, GAMMA, BETA = 3 * normal(2, 4, 5, 6) + 1, normal(6), normal(6, seed=1)

    @pytest.mark.parametrize("silu", [False, True])
    def test_channels_last(self, silu: bool, device: Device) -> None:
        y = group_norm(self.X, self.GAMMA, self.BETA, 3, epsilon=1e-3, silu=silu)
        source = one("GroupNorm", [self.X, self.GAMMA, self.BETA], [y], groups=3, activation=int(silu), epsilon=1e-3)
        assert "Sigmoid" in legalized(decompose_group_norm, source, [y], device=device) or not silu

    def test_channels_first(self, device: Device) -> None:
        y = np.moveaxis(group_norm(self.X, self.GAMMA, self.BETA, 2), -1, 1)
        inputs = [np.ascontiguousarray(np.moveaxis(self.X, -1, 1)), self.GAMMA, self.BETA]
        source = one("GroupNorm", inputs, [y], groups=2, activation=0, channels_last=0)
        legalized(decompose_group_norm, source, [y], device=device)

    def test_half_precision_is_rounded_once(self) -> None:
        x = self.X.astype(np.float16)
        y = group_norm(x, self.GAMMA, self.BETA, 3)
        source = one("GroupNorm", [x, self.GAMMA, self.BETA], [y], groups=3, activation=0)
        legalized(decompose_group_norm, source, [y], rtol=1e-3, atol=1e-3)


class TestSkipGroupNorm:
    X, SKIP, GAMMA, BETA, BIAS = normal(2, 3, 2, 4), normal(2, 3, 2, 4, seed=1), *(normal(4, seed=i) for i in range(3))

    @pytest.mark.parametrize("shape", [(2, 3, 2, 4), (2, 1, 1, 4), (2, 4)])
    def test_sum_output(self, shape: tuple[int, ...], device: Device) -> None:
        skip = normal(*shape)
        total = self.X + skip.reshape(2, 1, 1, 4) if len(shape) == 2 else self.X + skip
        total = total + self.BIAS
        expected = [group_norm(total, self.GAMMA, self.BETA, 2, silu=True), total]
        source = one(
            "SkipGroupNorm", [self.X, self.GAMMA, self.BETA, skip, self.BIAS], expected, groups=2, activation=1
        )
        legalized(decompose_group_norm, source, expected, device=device)

    def test_without_a_bias(self) -> None:
        expected = [group_norm(self.X + self.SKIP, self.GAMMA, self.BETA, 4)]
        source = one("SkipGroupNorm", [self.X, self.GAMMA, self.BETA, self.SKIP], expected, groups=4, activation=0)
        legalized(decompose_group_norm, source, expected)


def test_skips() -> None:
    x, gamma = normal(1, 2, 2, 4), normal(4)
    source = one("GroupNorm", [x, gamma, gamma], [x], groups=2, activation=2)
    assert skipped(decompose_group_norm, source) == ["the activation 2 is neither none nor SiLU"]
    source.proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    assert skipped(decompose_group_norm, source) == [
        "the shape of its input is unknown: freeze the dimensions that are open"
    ]


@given(
    groups=st.integers(1, 3),
    size=st.integers(1, 3),
    places=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    silu=st.booleans(),
)
@settings(max_examples=25, derandomize=True, deadline=None)
def test_any_shape(groups: int, size: int, places: list[int], silu: bool) -> None:
    x = normal(2, *places, groups * size)
    gamma, beta = normal(groups * size), normal(groups * size, seed=2)
    y = group_norm(x, gamma, beta, groups, epsilon=1e-2, silu=silu)
    source = one("GroupNorm", [x, gamma, beta], [y], groups=groups, activation=int(silu), epsilon=1e-2)
    legalized(decompose_group_norm, source, [y])
