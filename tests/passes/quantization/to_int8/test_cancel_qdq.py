"""cancel-qdq: pairs that cancel, and pairs that do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.quantization.to_int8.cancel_qdq import cancel_qdq
from tests.passes.harness import apply, operators, reasons
from tests.passes.helpers import tiny

STEP = cancel_qdq
S, Z = np.float32(0.05), np.int8(3)
TWICE = """(float[2,3] x) => (float[2,3] y) { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
    p = QuantizeLinear(d, t, u) y = DequantizeLinear(p, t, u) }"""


def test_two_pairs_become_one() -> None:
    source = tiny(TWICE, s=S, z=Z, t=S, u=Z)
    apply(STEP, source)
    assert operators(source) == ["QuantizeLinear", "DequantizeLinear"]


def test_other_consumers_of_the_dequantized_value() -> None:
    text = """(float[2,3] x) => (float[2,3] d, int8[2,3] p) { q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z) p = QuantizeLinear(d, s, z) }"""
    source = tiny(text, s=S, z=Z)
    apply(STEP, source)
    assert sorted(operators(source)) == ["DequantizeLinear", "QuantizeLinear"]


@pytest.mark.parametrize(("t", "u"), [(np.float32(0.1), Z), (S, np.int8(4)), (S, np.uint8(3))])
def test_different_parameters(t: Any, u: Any) -> None:
    assert not apply(STEP, tiny(TWICE, s=S, z=Z, t=t, u=u)).rewrites


@pytest.mark.parametrize(("s", "reason"), [(np.float32(3e38), "overflow"), (np.float32(1e-39), "underflow")])
def test_extreme_scales(s: Any, reason: str) -> None:
    result = apply(STEP, tiny(TWICE, s=s, z=Z, t=s, u=Z), inputs={"x": np.zeros((2, 3), np.float32)})
    assert not result.rewrites
    assert reason in reasons(result)[0]


def test_several_scales() -> None:
    text = """(float[2,3] x) => (int8[2,3] p) { q = QuantizeLinear <axis = 0> (x, s, z)
        d = DequantizeLinear <axis = 0> (q, s, z) p = QuantizeLinear <axis = 0> (d, s, z) }"""
    source = tiny(text, s=np.array([0.1, 7], np.float32), z=np.array([0, -5], np.int8))
    apply(STEP, source)
    assert operators(source) == ["QuantizeLinear"]


@settings(max_examples=30, deadline=None)
@given(power=st.integers(-80, 80), zero=st.integers(0, 65535), seed=st.integers(0, 99))
def test_all_integers_round_trip(power: int, zero: int, seed: int) -> None:
    scale = np.float32(2.0**power * np.random.default_rng(seed).uniform(1, 2))
    text = "(uint16[65536] q) => (uint16[65536] p) { d = DequantizeLinear(q, s, z) p = QuantizeLinear(d, s, z) }"
    source = tiny(text, opset=21, s=scale, z=np.uint16(zero))
    apply(STEP, source, inputs={"q": np.arange(65536).astype(np.uint16)})
    assert operators(source) == ["Identity"]
