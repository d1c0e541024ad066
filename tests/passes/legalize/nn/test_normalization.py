"""Normalizations as arithmetic: training and inference, all ranks, broadcast scales."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.nn.normalization import (
    decompose_batch_normalization,
    decompose_layer_normalization,
    decompose_local_response_normalization,
)
from tests.passes.device import Device
from tests.passes.legalize.one_node import Case, case, legalized, normal, skipped


def batch(*shape: int, dtypes: tuple[type, type, type] = (np.float32,) * 3, outputs: int = 1, **others: object) -> Case:
    channels = shape[1] if len(shape) > 1 else 1
    x, (scale, bias) = (
        normal(*shape, dtype=dtypes[0]),
        (normal(channels, dtype=dtypes[1], seed=seed) for seed in (1, 2)),
    )
    mean, variance = normal(channels, dtype=dtypes[2], seed=3), abs(normal(channels, dtype=dtypes[2], seed=4)) + 1
    opset = int(others.pop("opset", 15))
    return case(
        "BatchNormalization", [x, scale, bias, mean, variance.astype(dtypes[2])], others, opset=opset, outputs=outputs
    )


class TestBatchNormalization:
    @pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 5), (2, 3, 2, 2, 2), (4,)])
    @pytest.mark.parametrize("opset", [7, 9, 14, 15])
    def test_inference(self, shape: tuple[int, ...], opset: int) -> None:
        if len(shape) > 1 or opset >= 14:
            legalized(decompose_batch_normalization, batch(*shape, opset=opset, epsilon=0.1))

    @pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4), (2, 3, 4, 5)])
    def test_training(self, shape: tuple[int, ...], device: Device) -> None:
        source = batch(*shape, outputs=3, training_mode=1, momentum=0.8)
        found = legalized(decompose_batch_normalization, source, device=device)
        assert found.count("ReduceMean") == 2

    def test_training_without_statistics(self, device: Device) -> None:
        full = batch(2, 3, 4, outputs=3, training_mode=1)
        found = legalized(
            decompose_batch_normalization, batch(2, 3, 4, training_mode=1), [full.expected()[0]], device=device
        )
        assert "Mul" in found and found.count("Reshape") == 2  # nothing is spent on the statistics

    def test_mixed_dtypes(self, device: Device) -> None:
        for dtypes in ((np.float16, np.float16, np.float32), (np.float16, np.float32, np.float32)):
            legalized(decompose_batch_normalization, batch(2, 3, 4, dtypes=dtypes), device=device, atol=1e-3, rtol=1e-3)

    def test_a_statistic_for_every_place(self, device: Device) -> None:
        x, scale, bias, mean = normal(2, 3, 4), *(normal(3, 4, seed=seed) for seed in (1, 2, 3))
        inputs = [x, scale, bias, mean, abs(normal(3, 4, seed=4)) + 1]
        source = case("BatchNormalization", inputs, {"spatial": 0}, opset=7)
        legalized(decompose_batch_normalization, source, device=device)

    def test_skips(self) -> None:
        reason = "the node is a training form of an opset before 14: run convert-opset first"
        assert skipped(decompose_batch_normalization, batch(2, 3, 4, opset=9, outputs=5)) == [reason]


class TestLayerNormalization:
    @pytest.mark.parametrize("axis", [0, 1, -1])
    def test_axes_and_statistics(self, axis: int, device: Device) -> None:
        scale = normal(*(2, 3, 4)[axis:], seed=1)
        source = case("LayerNormalization", [normal(2, 3, 4), scale, scale], {"axis": axis}, outputs=3, opset=17)
        legalized(decompose_layer_normalization, source, device=device)

    def test_scales_are_broadcast(self, device: Device) -> None:
        for size in (1, 4):
            scale = normal(size, seed=1)
            source = case("LayerNormalization", [normal(2, 3, 4), scale, scale], {"axis": 1}, opset=17)
            legalized(decompose_layer_normalization, source, device=device)

    def test_omitted_outputs(self) -> None:
        inputs = [normal(2, 4), normal(4, seed=1)]
        legalized(
            decompose_layer_normalization,
            case("LayerNormalization", inputs, {"epsilon": 0.1}, outputs=["y", "", "s"], opset=17),
        )

    def test_double(self, device: Device) -> None:
        scale = normal(4, dtype=np.float64)
        legalized(
            decompose_layer_normalization,
            case("LayerNormalization", [normal(2, 4, dtype=np.float64), scale]),
            device=device,
        )

    def test_root_mean_square(self, device: Device) -> None:
        for axis in (0, 1, -1):
            inputs = [normal(2, 3, 4), normal(*(2, 3, 4)[axis:], seed=1)]
            source = case("RMSNormalization", inputs, {"axis": axis, "epsilon": 0.01}, opset=23)
            assert "Sub" not in legalized(decompose_layer_normalization, source, device=device)

    def test_root_mean_square_of_the_dtype_of_the_scale(self, device: Device) -> None:
        x, scale = normal(2, 4, dtype=np.float16), normal(4, seed=1)
        wide = x.astype(np.float32)
        expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * scale
        legalized(
            decompose_layer_normalization, case("RMSNormalization", [x, scale], opset=23), [expected], device=device
        )


def local_response(x: np.ndarray, size: int, alpha: float, beta: float, bias: float) -> np.ndarray:
    """By the definition, channel by channel."""
    total = np.zeros_like(x)
    for channel in range(x.shape[1]):
        first, last = max(0, channel - (size - 1) // 2), min(x.shape[1] - 1, channel + -(-(size - 1) // 2))
        total[:, channel] = (x[:, first : last + 1] ** 2).sum(1)
    return np.asarray(x / (bias + alpha / size * total) ** beta)


class TestLocalResponseNormalization:
    @pytest.mark.parametrize("shape", [(2, 5), (2, 5, 3), (2, 5, 3, 2), (2, 5, 2, 2, 2)])
    @pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
    def test_by_definition(self, shape: tuple[int, ...], size: int) -> None:
        attributes = {"size": size, "alpha": 0.5, "beta": 0.7, "bias": 1.5}
        x = normal(*shape)
        legalized(
            decompose_local_response_normalization, case("LRN", [x], attributes), [local_response(x, **attributes)]
        )

    def test_on_the_runtimes(self, device: Device) -> None:
        attributes = {"size": 3, "alpha": 0.5, "beta": 0.7, "bias": 1.5}
        found = legalized(
            decompose_local_response_normalization, case("LRN", [normal(2, 5, 3, 3)], attributes), device=device
        )
        assert found.count("MatMul") == 1
        legalized(decompose_local_response_normalization, case("LRN", [normal(2, 5, 3, 3)], {"size": 3}))


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_form(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=2, max_size=5))
    attributes = {"epsilon": data.draw(st.sampled_from([1e-5, 0.1]))}
    training = data.draw(st.booleans())
    source = batch(*shape, outputs=3 if training else 1, training_mode=int(training), momentum=0.7, **attributes)
    legalized(decompose_batch_normalization, source, rtol=1e-4, atol=1e-4)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    scale = normal(*shape[axis:], seed=1)
    inputs = [normal(*shape), scale, scale][: data.draw(st.integers(2, 3))]
    source = case("LayerNormalization", inputs, {"axis": axis, **attributes}, opset=17)
    legalized(decompose_layer_normalization, source, rtol=1e-4, atol=1e-4)
