"""The noise that rounding causes in each node by itself."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx_bridge.placement import noise

CHAIN = """<ir_version: 8, opset_import: ["": 17]> g (float[8] x) => (float[8] y) {
    [a] p = Sin (x)  [b] q = Exp (p)  [c] r = Mul (q, q)  [d] s = Tanh (r)  [e] t = Cos (s)  [f] y = Add (t, t)
}"""
NAMES = list("abcdef")
SAMPLES = [{"x": np.linspace(-1, 1, 8, dtype=np.float32)}]
BIG = [SAMPLES[0] | {"big": np.full(8, 1e5, np.float32)}]


def measured(text: str = CHAIN, samples: list[dict[str, np.ndarray]] = SAMPLES) -> dict[str, float]:
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    return noise.noise_of_rounding(model, NAMES, ir.DataType.FLOAT16, samples)


def test_each_node_by_itself() -> None:
    found = measured()
    assert list(found) == NAMES
    assert all(1e-10 < value < 1e-5 for value in found.values())


def test_a_node_beyond_the_range() -> None:
    text = CHAIN.replace("Mul (q, q)", "Mul (q, big)").replace("Tanh (r)", "Div (r, big)")
    found = measured(text.replace("float[8] x)", "float[8] x, float[8] big)"), BIG)
    assert [name for name, value in found.items() if not math.isfinite(value)] == ["c", "d"]


def test_large_models_are_measured_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measured()
    monkeypatch.setattr(noise, "_MOST_COPIES", 1)
    monkeypatch.setattr(noise, "_MOST_RUNS", 9)
    found = measured()
    assert found == {name: whole[NAMES[index - index % 2]] for index, name in enumerate(NAMES)}
