"""float8-to-fnuz: the same numbers, with saturation, on MIGraphX."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from passes.cleanup.remove_dead import RemoveDead
from passes.legalize.types.float8_fnuz import float8_to_fnuz
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.harness import apply, reasons, run
from tests.passes.helpers import tiny

FN = ml_dtypes.float8_e4m3fn
EVERY = np.array([each for each in range(256) if each & 0x7F != 0x7F], np.uint8).view(FN)
Z = np.array(0, FN)


def source(text: str, **constants: Any) -> ir.Model:
    return tiny(text, opset=19, **constants)


def test_every_number_of_a_weight() -> None:
    model = source(
        "(float[254] x) => (float[254] y) { d = DequantizeLinear(w, s, z) y = Add(x, d) }",
        w=EVERY,
        s=np.float32(0.3),
        z=Z,
    )
    apply(float8_to_fnuz, model, rtol=0, atol=0)
    assert RemoveDead().run(model, Context()).rewrites
    assert {str(each.dtype) for each in model.graph.initializers.values()} == {"FLOAT", "FLOAT8E4M3FNUZ"}


@pytest.mark.parametrize("zeros", [", z", ""])
def test_activations_and_saturation(zeros: str) -> None:
    text = f"""(float[64] x) => (float[64] y) {{ q = QuantizeLinear(x, s, z) i = Identity(q)
        y = DequantizeLinear(i, s{zeros}) }}"""
    x = {"x": np.concatenate([np.linspace(-60, 60, 32), np.linspace(-0.01, 0.01, 32)]).astype(np.float32)}
    apply(float8_to_fnuz, source(text, s=np.float32(0.1), z=Z), rtol=0, atol=0, inputs=x)


def test_a_product_on_the_device(device: Device) -> None:
    random = np.random.default_rng(0)
    text = """(float[3,12] x) => (float[3,5] y) { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
        e = DequantizeLinear <axis = 1> (w, t) y = MatMul(d, e) }"""
    model = source(
        text,
        w=random.standard_normal((12, 5)).astype(FN),
        s=np.float32(0.003),
        t=random.uniform(0.1, 1, 5).astype(np.float32),
        z=Z,
    )
    x = {"x": random.standard_normal((3, 12)).astype(np.float32)}
    expected = run(ir.to_proto(model), x)["y"]
    apply(float8_to_fnuz, model, inputs=x)
    RemoveDead().run(model, Context())
    np.testing.assert_allclose(device.run(ir.to_proto(model), {"x": x["x"]})[0], expected, rtol=1e-5, atol=1e-5)


def test_skips() -> None:
    nan = np.array([0x7F, 0], np.uint8).view(FN)
    text = "(float[2] x) => (float[2] y) { d = DequantizeLinear(w, s, z) y = Add(x, d) }"
    assert reasons(float8_to_fnuz.run(source(text, w=nan, s=np.float32(1), z=Z), Context())) == [
        "the weights contain NaN"
    ]
    text = "(float8e4m3fn[2] q) => (float[2] y) { y = DequantizeLinear(q, s, z) }"
    assert reasons(float8_to_fnuz.run(source(text, s=np.float32(1), z=Z), Context())) == [
        "the quantized input is an input of the graph"
    ]
