"""move-channels against ONNX's own convolution and pooling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.contrib.channels_last import move_channels
from tests.passes.device import Device
from tests.passes.legalize.one_node import Case, case, declare, legalized, normal, skipped

Array = np.ndarray[Any, np.dtype[Any]]


def last(x: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def contrib(operator: str, inputs: list[Array | None], y: Array, **attributes: Any) -> Case:
    return declare(case(operator, inputs, attributes, domain="com.microsoft", opset=17), [y])


def convolved(x: Array, w: Array, *rest: Array, **attributes: Any) -> Array:
    """The result of ONNX Runtime's Conv."""
    return case("Conv", [x, w, *rest], attributes, opset=17).expected()[0]


class TestNhwcConv:
    X, W, B = normal(2, 4, 6, 5), normal(6, 2, 3, 2), normal(6)
    HOW: dict[str, Any] = {"group": 2, "strides": [2, 1], "pads": [1, 0, 1, 1], "dilations": [1, 2]}

    def test_channels_last_weights(self, device: Device) -> None:
        y = last(convolved(self.X, self.W, self.B, **self.HOW, kernel_shape=[3, 2]))
        source = contrib("NhwcConv", [last(self.X), last(self.W), self.B], y, **self.HOW, kernel_shape=[3, 2])
        assert legalized(move_channels, source, [y], device=device) == ["Transpose", "Transpose", "Conv", "Transpose"]

    def test_without_a_bias(self) -> None:
        y = last(convolved(self.X, self.W, group=2))
        legalized(move_channels, contrib("NhwcConv", [last(self.X), last(self.W)], y, group=2), [y])

    def test_weights_of_another_layout(self) -> None:
        y = last(convolved(self.X, self.W, group=2))
        source = contrib("NhwcConv", [last(self.X), normal(6, 2, 3, 3)], y, group=2)
        (reason,) = skipped(move_channels, source)
        assert reason == "the last axis of the weights (6, 2, 3, 3) does not match the channels of (2, 6, 5, 4)"


class TestNhwcFusedConv:
    X, W, B = normal(1, 3, 5, 5), normal(4, 3, 3, 3), normal(4)

    def test_a_sum_and_an_activation(self, device: Device) -> None:
        plain = convolved(self.X, self.W, self.B)
        other = normal(*plain.shape, seed=7)
        y = last(np.maximum(plain + other, 0))
        source = contrib("NhwcFusedConv", [last(self.X), self.W, self.B, last(other)], y, activation="Relu")
        assert "Relu" in legalized(move_channels, source, [y], device=device)

    def test_parameters_of_the_activation(self) -> None:
        y = last(np.clip(convolved(self.X, self.W), -0.5, 1.5))
        how = {"activation": "Clip", "activation_params": [-0.5, 1.5]}
        legalized(move_channels, contrib("NhwcFusedConv", [last(self.X), self.W], y, **how), [y])

    def test_an_unknown_activation(self) -> None:
        source = contrib("NhwcFusedConv", [last(self.X), self.W], last(convolved(self.X, self.W)), activation="Mish")
        assert skipped(move_channels, source) == ["the activation Mish is unknown"]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_pooling(dtype: type, device: Device) -> None:
    x = np.random.default_rng(0).integers(0, 100, (1, 7, 6, 3)).astype(dtype)
    how = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}
    y = last(case("MaxPool", [np.ascontiguousarray(np.moveaxis(x, -1, 1))], how, opset=17).expected()[0])
    legalized(move_channels, contrib("NhwcMaxPool", [x], y, **how), [y], device=device)


@given(
    group=st.integers(1, 2),
    sizes=st.lists(st.integers(3, 5), min_size=1, max_size=3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
)
@settings(max_examples=20, derandomize=True, deadline=None)
def test_any_convolution(group: int, sizes: list[int], kernel: int, stride: int) -> None:
    x, w = normal(1, 2 * group, *sizes), normal(3 * group, 2, *[kernel] * len(sizes))
    how = {"group": group, "strides": [stride] * len(sizes), "auto_pad": "SAME_UPPER"}
    y = last(convolved(x, w, **how))
    legalized(move_channels, contrib("NhwcConv", [last(x), last(w)], y, **how), [y])
