"""lift-dequantize: what is lifted, what stays in integers, and that no value changes."""

from __future__ import annotations

import numpy as np
import pytest

from passes.quantization.to_int8.lift_dequantize import lift_dequantize
from tests.passes.harness import apply, operators, reasons
from tests.passes.helpers import mentioned, tiny

STEP = lift_dequantize
GIVEN = {
    "k": np.array([4, 2]),
    "n": np.array([0, 1, 1, 0]),
    "v": np.int8(7),
    "a": np.array([0]),
    "b": np.array([1]),
    "w": np.ones((4, 2), np.int8),
}


@pytest.mark.parametrize(
    ("between", "names"),
    [
        ("r = Reshape(q, k)", ["Reshape"]),
        ("r = Slice(q, a, b)", ["Slice"]),
        ("r = Pad(q, n)", ["Pad"]),
        ("r = Pad(q, n, v)", ["Pad"]),
        ('r = Pad <mode = "edge"> (q, n)', ["Pad"]),
        ("t, r = Split <axis = 1, num_outputs = 2> (q)", ["Split"]),
        ("t = Slice(q, a, b) r = Reshape(t, k)".replace("k", "k2"), ["Slice", "Reshape"]),
    ],
)
def test_lifted(between: str, names: list[str]) -> None:
    text = f"(float[2,4] x) => (float[i,j] y) {{ q = QuantizeLinear(x, s, z) {between} y = DequantizeLinear(r, s, z) }}"
    given = mentioned(between, GIVEN | {"k2": np.array([2, 2])})
    source = tiny(text, opset=18, s=np.float32(0.05), z=np.int8(-3), **given)
    apply(STEP, source)
    assert operators(source) == ["QuantizeLinear", "DequantizeLinear", *names]


@pytest.mark.parametrize(
    "between", ["r = Transpose(q)", "r = Concat <axis = 0> (q, q)", "t = Transpose(q) r = Reshape(t, k)"]
)
def test_operators_that_are_not_deleted(between: str) -> None:
    text = f"(float[2,4] x) => (float[i,j] y) {{ q = QuantizeLinear(x, s, z) {between} y = DequantizeLinear(r, s, z) }}"
    source = tiny(text, s=np.float32(0.05), z=np.int8(-3), **mentioned(between, GIVEN))
    assert not apply(STEP, source).rewrites


def test_integers_of_an_int8_product() -> None:
    text = """(float[2,4] x) => (float[i,j] y) { q = QuantizeLinear(x, s, z) r = Slice(q, a, b)
        d = DequantizeLinear(r, s, z) e = DequantizeLinear(w, s, z) y = MatMul(d, e) }"""
    source = tiny(text, s=np.float32(0.05), z=np.int8(0), **mentioned(text, GIVEN))
    assert not apply(STEP, source).rewrites
    source = tiny(
        text.replace("z)", "u)", 2), s=np.float32(0.05), z=np.int8(0), u=np.uint8(0), **mentioned(text, GIVEN)
    )
    assert apply(STEP, source).rewrites  # uint8 runs in float


def test_skips() -> None:
    text = """(float[2,4] x) => (float[4,2] y) { q = QuantizeLinear <axis = 0> (x, s, z) r = Reshape(q, k)
        y = DequantizeLinear <axis = 0> (r, t, u) }"""
    constants = {"t": np.ones(4, np.float32), "u": np.zeros(4, np.int8), "k": GIVEN["k"]}
    source = tiny(text, s=np.ones(2, np.float32), z=np.zeros(2, np.int8), **constants)
    assert reasons(apply(STEP, source)) == ["the node has more than one scale"]
