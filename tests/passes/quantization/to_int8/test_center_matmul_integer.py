"""center-matmul-integer: all dtypes and zero points, bit for bit, also on MIGraphX."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from passes.quantization.to_int8.center_matmul_integer import center_matmul_integer
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.harness import apply, operators, reasons, run
from tests.passes.helpers import tiny

STEP = center_matmul_integer


def integers(dtype: Any, *shape: int) -> Any:
    info = np.iinfo(dtype)
    return np.random.default_rng(1).integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 5)])
@pytest.mark.parametrize(("a", "b"), list(itertools.product(("uint8", "int8"), repeat=2)))
def test_every_pair_of_dtypes(a: str, b: str, shape: tuple[int, ...], device: Device) -> None:
    dims = ",".join(map(str, shape))
    text = f"({a}[{dims}] x, {a} u) => (int32[{dims[:-1]}4] y) {{ y = MatMulInteger(x, w, u, v) }}"
    source = tiny(text, w=integers(b, 5, 4), v=integers(b, 4))
    inputs = {"x": integers(a, *shape), "u": np.array(77, a)}
    expected = run(ir.to_proto(source), inputs)["y"]
    apply(STEP, source, inputs=inputs)
    assert operators(source)[0] == "MatMulInteger"
    np.testing.assert_array_equal(device.run(ir.to_proto(source), inputs)[0], expected)


def test_both_computed() -> None:
    text = "(uint8[3,5] x, uint8[5,4] w, uint8 u, uint8 v) => (int32[3,4] y) { y = MatMulInteger(x, w, u, v) }"
    inputs = {
        "x": integers("uint8", 3, 5),
        "w": integers("uint8", 5, 4),
        "u": np.array(9, "uint8"),
        "v": np.array(200, "uint8"),
    }
    source = tiny(text)
    apply(STEP, source, inputs=inputs)
    assert operators(source).count("ReduceSum") == 2


def test_missing_zero_points() -> None:
    source = tiny("(uint8[3,5] x) => (int32[3,4] y) { y = MatMulInteger(x, w) }", w=integers("int8", 5, 4))
    apply(STEP, source, inputs={"x": integers("uint8", 3, 5)})
    assert operators(source) == ["MatMulInteger", "Mul", "Add"] or operators(source) == ["Mul", "MatMulInteger", "Add"]


def test_centered_zero_points() -> None:
    text = "(uint8[3,5] x) => (int32[3,4] y) { y = MatMulInteger(x, w, u, v) }"
    source = tiny(text, w=integers("int8", 5, 4), u=np.uint8(128), v=np.int8(0))
    assert not apply(STEP, source, inputs={"x": integers("uint8", 3, 5)}).rewrites


def test_skips() -> None:
    text = "(uint8[3,5] x) => (int32[3,4] y) { y = MatMulInteger(x, w, u) }"
    source = tiny(text, w=integers("uint8", 5, 4), u=np.array([1, 2, 3], np.uint8))
    assert reasons(STEP.run(source, Context())) == ["the first operand may have one zero point per row"]
    text = "(uint8[5] x) => (int32[4] y) { y = MatMulInteger(x, w) }"
    result = apply(STEP, tiny(text, w=integers("uint8", 5, 4)), inputs={"x": integers("uint8", 5)})
    assert reasons(result) == ["an operand is a vector"]
