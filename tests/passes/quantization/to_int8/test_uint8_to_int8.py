"""uint8-to-int8: what changes together, what prevents it, and that no value changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from passes.quantization.to_int8.uint8_to_int8 import Uint8ToInt8
from tests.passes.harness import apply, operators, reasons, stops
from tests.passes.helpers import mentioned, tiny

STEP = Uint8ToInt8()
S, Z = np.float32(0.05), np.uint8(3)
W = np.arange(12, dtype=np.uint8).reshape(4, 3) * 20
X = {"x": np.linspace(-2, 12, 24, dtype=np.float32).reshape(2, 4, 3)}


def dtypes(source: ir.Model) -> set[str]:
    found = {str(value.dtype) for value in source.graph.initializers.values()}
    return found | {str(value.dtype) for node in source.graph for value in node.outputs}


def test_a_pair() -> None:
    source = tiny(
        "(float[2,4,3] x) => (float[2,4,3] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }", s=S, z=Z
    )
    result = apply(STEP, source, inputs=X)
    assert len(result.rewrites) == 1
    assert "UINT8" not in dtypes(source)
    zero = source.graph[0].inputs[2]
    assert zero is not None and zero.const_value is not None
    assert zero.const_value.numpy() == -125


def test_without_zero_points_and_with_output_dtype() -> None:
    text = """(float[2,4,3] x) => (float[2,4,3] y) {
        q = QuantizeLinear <output_dtype = 2> (x, s) y = DequantizeLinear(q, s) }"""
    source = tiny(text, opset=21, s=S)
    apply(STEP, source, inputs=X)
    assert "UINT8" not in dtypes(source)


def test_a_weight_along_an_axis() -> None:
    source = tiny(
        "(float[2,4] x) => (float[2,3] y) { d = DequantizeLinear <axis = 1> (w, s, z) y = MatMul(x, d) }",
        w=W,
        s=np.array([0.1, 0.2, 0.3], np.float32),
        z=np.array([0, 128, 255], np.uint8),
    )
    apply(STEP, source)
    assert "UINT8" not in dtypes(source)


@pytest.mark.parametrize(
    "between",
    [
        "r = Reshape(q, k)",
        "r = Transpose <perm = [0, 2, 1]> (q)",
        "r = MaxPool <kernel_shape = [2], pads = [1, 1]> (q)",
        "r = Concat <axis = 1> (q, q, c)",
        "p = Pad(q, n) r = Slice(p, a, b)",
        "p = Pad(q, n, v) r = Slice(p, a, b)",
        'r = Pad <mode = "edge"> (q, n)',
        "a1, b1 = Split <axis = 1, num_outputs = 2> (q) r = Concat <axis = 2> (b1, a1)",
        "r = Gather <axis = 1> (q, a)",
        "r = Resize(q, , f)",
    ],
)
def test_operators_between(between: str) -> None:
    given = {
        "k": np.array([3, 4, 2]),
        "c": np.full((2, 1, 3), 200, np.uint8),
        "n": np.array([0, 1, 0, 0, 1, 2]),
        "v": np.uint8(77),
        "a": np.array([1, 0, 0]),
        "b": np.array([2, 3, 4]),
        "f": np.array([1, 2, 2], np.float32),
    }
    text = f"""(float[2,4,3] x) => (float[i,j,k] y) {{ q = QuantizeLinear(x, s, z) {between}
        y = DequantizeLinear(r, s, z) }}"""
    source = tiny(text, opset=18, s=S, z=Z, **mentioned(between, given))
    apply(STEP, source, inputs=X)
    assert "UINT8" not in dtypes(source)


def test_all_dequantizers_change_together() -> None:
    source = tiny(
        """(float[2,4,3] x) => (float[2,4,3] y) { q = QuantizeLinear(x, s, z) a = DequantizeLinear(q, s, z)
            b = DequantizeLinear(q, t, u) y = Add(a, b) }""",
        s=S,
        z=Z,
        t=np.float32(2),
        u=np.uint8(200),
    )
    assert len(apply(STEP, source, inputs=X).rewrites) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(uint8[4] q) => (float[4] y) { y = DequantizeLinear(q, s, z) }", "is a uint8 graph input or output"),
        (
            "(float[4] x) => (uint8[4] q, float[4] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }",
            "is a uint8 graph input or output",
        ),
        (
            """(float[4] x) => (float[4] y) { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
               c = Cast <to = 1> (q) y = Add(c, d) }""",
            "Cast",
        ),
        (
            "(float[4] x) => (float[4] y) { q, t, u = DynamicQuantizeLinear(x) y = DequantizeLinear(q, t, u) }",
            "DynamicQuantizeLinear",
        ),
        (
            "(float[4] x, uint8 u) => (float[4] y) { q = QuantizeLinear(x, s, u) y = DequantizeLinear(q, s, u) }",
            "its zero point is not constant",
        ),
    ],
)
def test_skips(text: str, reason: str) -> None:
    result = apply(STEP, tiny(text, s=S, z=Z))
    assert not result.rewrites
    assert reason in reasons(result)[0]


def test_int8_and_floats() -> None:
    text = "(float[4] x) => (float[4] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"
    assert not apply(STEP, tiny(text, s=S, z=np.int8(3))).rewrites
    assert not apply(STEP, tiny("(float[4] x) => (float[4] y) { y = Abs(x) }")).rewrites


def test_a_shared_weight_is_kept_for_other_consumers() -> None:
    source = tiny(
        """(float[2,4] x) => (float[2,3] y, uint8[4,3] v) {
            d = DequantizeLinear(w, s, z) y = MatMul(x, d) v = Identity(w) }""",
        w=W,
        s=S,
        z=Z,
    )
    apply(STEP, source)
    assert operators(source) == ["DequantizeLinear", "MatMul", "Identity"]


def test_budget() -> None:
    def source() -> Any:
        return tiny(
            """(float[4] x) => (float[4] y) { q = QuantizeLinear(x, s, z) a = DequantizeLinear(q, s, z)
               p = QuantizeLinear(a, t, z) y = DequantizeLinear(p, t, z) }""",
            s=S,
            t=np.float32(3),
            z=Z,
        )

    assert [stops(STEP, source(), limit) for limit in range(4)] == [0, 1, 2, 2]
