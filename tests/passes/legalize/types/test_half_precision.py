"""widen-half-floats: casts around operators on 16-bit floats, and no others."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.types.half_precision import widen_half_floats
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.legalize.one_node import agree, case, legalized, normal, skipped

HALF = np.float16


def half(*shape: int, seed: int = 0) -> np.ndarray:
    return normal(*shape, dtype=HALF, seed=seed)


def test_the_result_is_rounded_once() -> None:
    assert legalized(widen_half_floats, case("Softmax", [half(2, 3)]), rtol=0, atol=0) == ["Cast", "Softmax", "Cast"]


def test_attributes_and_other_inputs_stay(device: Device) -> None:
    source = case("Gemm", [half(2, 3), half(4, 3), half(4)], {"alpha": 0.5, "transB": 1})
    assert legalized(widen_half_floats, source, device=device) == ["Cast", "Cast", "Cast", "Gemm", "Cast"]
    source = case("ReduceSum", [half(2, 3), np.array([1])], {"keepdims": 0}, constants=[1])
    assert legalized(widen_half_floats, source) == ["Cast", "ReduceSum", "Cast"]


def test_omitted_outputs_stay_omitted() -> None:
    inputs = [half(3, 2, 4), half(1, 5, 4), half(1, 5, 5), None, None, half(1, 2, 5)]
    source = case("RNN", inputs, {"hidden_size": 5}, outputs=["", "h"])
    assert legalized(widen_half_floats, source).count("RNN") == 1


def test_statistics_of_float32_stay_so() -> None:
    source = case("LayerNormalization", [half(2, 3), half(3)], outputs=["y", "mean", "inverse"])
    assert legalized(widen_half_floats, source) == ["Cast", "Cast", "LayerNormalization", "Cast"]


@pytest.mark.runtime
def test_bfloat16(device: Device) -> None:
    x = normal(2, 3).astype(ml_dtypes.bfloat16)
    wide = x.astype(np.float32)
    celu = np.maximum(0, wide) + np.minimum(0, 2 * (np.exp(wide / 2) - 1))
    source = case("Celu", [x], {"alpha": 2.0}, opset=28)
    model = source.model
    assert widen_half_floats.run(model, Context()).rewrites
    assert [node.op_type for node in model.graph] == ["Cast", "Celu", "Cast"]
    (actual,) = device.run(ir.to_proto(model), source.feeds)
    agree(actual, celu.astype(ml_dtypes.bfloat16), 2**-7, 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_other_floats_are_unchanged(dtype: type) -> None:
    assert skipped(widen_half_floats, case("Softmax", [normal(2, 3, dtype=dtype)])) == []


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_operator(data: st.DataObject) -> None:
    operator = data.draw(st.sampled_from(["Exp", "Tanh", "Softplus", "Selu", "LogSoftmax", "HardSigmoid", "ReduceL2"]))
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    legalized(
        widen_half_floats, case(operator, [half(*shape, seed=data.draw(st.integers(0, 9)))]), rtol=1e-3, atol=1e-3
    )
