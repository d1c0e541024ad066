"""Clip by Max and Min, and Mod by division."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.math.elementwise import decompose_clip, decompose_is_inf, decompose_is_nan, decompose_mod
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.legalize.one_node import agree, case, legalized, normal, skipped

INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]


class TestClip:
    @pytest.mark.parametrize("limits", [(-1, 2), (-1, None), (None, 2), (2, -1)])
    def test_limits(self, limits: tuple[int | None, int | None], device: Device) -> None:
        given = [None if limit is None else np.array(limit, np.float32) for limit in limits]
        legalized(decompose_clip, case("Clip", [normal(3, 4) * 3, *given]), device=device)
        if limits == (2, -1):
            return  # ONNX Runtime takes no such attributes
        named = {name: float(limit) for name, limit in zip(("min", "max"), limits, strict=True) if limit is not None}
        for opset in (7, 10):
            legalized(decompose_clip, case("Clip", [normal(3, 4) * 3], named, opset=opset), device=device)

    def test_no_limits(self) -> None:
        assert legalized(decompose_clip, case("Clip", [normal(3)])) == ["Identity"]

    @pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.float16, np.float64])
    def test_dtypes(self, dtype: type, device: Device) -> None:
        limits = [np.array(2, dtype), np.array(5, dtype)]
        assert legalized(decompose_clip, case("Clip", [normal(9, dtype=dtype), *limits]), device=device) == [
            "Max",
            "Min",
        ]

    def test_large_integers(self) -> None:
        limits = [np.array(-(2**39) - 1), np.array(2**61 + 1)]
        legalized(decompose_clip, case("Clip", [np.array([2**62 + 1, -(2**40), 7]), *limits]))


class TestMod:
    @pytest.mark.parametrize("dtype", INTEGERS)
    def test_integers(self, dtype: type, device: Device) -> None:
        x, y = normal(4, 5, dtype=dtype) * dtype(5), normal(5, dtype=dtype, seed=1)
        y[y == 0] = 3
        for attributes in ({}, {"fmod": 1}):
            legalized(decompose_mod, case("Mod", [x, y], attributes, opset=13), device=device)

    def test_large_integers(self, device: Device) -> None:
        x, y = np.array([2**53 + 1, -(2**53) - 1, 2**62 + 3]), np.array([10, 10, -7])
        legalized(decompose_mod, case("Mod", [x, y]), device=device)

    @pytest.mark.runtime
    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_floats(self, dtype: type, device: Device) -> None:
        x = np.array([5.5, -5.5, 5.5, -5.5, 4, -3, 3, np.inf, 1, np.nan], dtype)
        y = np.array([2, 2, -2, -2, 2, np.inf, -np.inf, 2, 0, 2], dtype)
        source = case("Mod", [x, y], opset=28)
        model = source.model
        assert decompose_mod.run(model, Context()).rewrites
        (actual,) = device.run(ir.to_proto(model), source.feeds)
        with np.errstate(invalid="ignore"):
            agree(actual, np.mod(x, y), 1e-6, 0)

    def test_truncated_remainders_are_unchanged(self) -> None:
        assert skipped(decompose_mod, case("Mod", [normal(3), normal(3, seed=1)], {"fmod": 1})) == []


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numbers_that_are_none_or_infinite(dtype: type, device: Device) -> None:
    limits = np.finfo(dtype)
    numbers = [0, -0.0, 1, -1, 0.5, np.nan, np.inf, -np.inf, limits.max, limits.min, limits.smallest_subnormal]
    x = np.array([numbers, [-number for number in numbers]], dtype)
    assert legalized(decompose_is_nan, case("IsNaN", [x], opset=13), device=device) == ["Less", "Greater", "Or", "Not"]
    for sides in ({}, {"detect_negative": 0}, {"detect_positive": 0}, {"detect_negative": 0, "detect_positive": 0}):
        if dtype is np.float32:  # ONNX Runtime has no more before opset 20
            legalized(decompose_is_inf, case("IsInf", [x], sides, opset=10), device=device)
        legalized(decompose_is_inf, case("IsInf", [x], sides, opset=20), device=device)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_operands(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(INTEGERS))
    info = np.iinfo(dtype)
    truncates = data.draw(st.integers(0, 1))
    most = 2**53 if truncates else 2**62  # ONNX Runtime takes C's remainder by way of floats, which have no more bits
    numbers = st.integers(max(int(info.min), -most), min(int(info.max), most))
    x = np.array(data.draw(st.lists(numbers, min_size=3, max_size=3)), dtype)
    divisors = numbers.filter(lambda number: number not in (0, -1))
    y = np.array(data.draw(st.lists(divisors, min_size=1, max_size=1)), dtype)
    legalized(decompose_mod, case("Mod", [x, y], {"fmod": truncates}))
    if dtype in (np.int16, np.uint16):
        return  # ONNX Runtime has no Clip of them
    low, high = (np.array(data.draw(numbers), dtype) for _ in range(2))
    legalized(decompose_clip, case("Clip", [x, low, high]))
