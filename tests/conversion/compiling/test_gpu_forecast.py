"""The kernels of a GPU that is not there, what tuning would try, and the nodes behind both."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import onnx_bridge
from onnx_bridge.core.errors import InputError
from tests.conversion.compiling.test_forecast import model
from tests.passes import harness

LAYERS = {
    "repeats": (
        "(float[4,4] x) => (float[4,4] y) { [m] a = MatMul(x, w) [s] b = Sin(a) [n] c = MatMul(b, w) [t] y = Sin(c) }",
        {"sin_kernel": (2, ["s", "t"])},
        {"4×4, 4×4, 4×4": (2, ["m", "n"])},
    ),
    "products beside each other": (
        "(float[4,4] x) => (float[4,4] y) "
        "{ [m] p = MatMul(x, w) [n] q = MatMul(x, v) [s] s = Sin(p) [e] t = Exp(q) [d] y = Sub(s, t) }",
        {"exp_sin_sub_kernel": (1, ["s", "e", "d"])},
        {"4×4, 4×8, 4×8": (1, ["m", "n"])},
    ),
    "a product at the end": (
        "(float[4,4] x) => (float[4,4] y) { [e] a = Exp(x) [m] y = MatMul(a, w) }",
        {"exp_kernel": (1, ["e"])},
        {"4×4, 4×4, 4×4": (1, ["m"])},
    ),
}


@pytest.mark.parametrize("case", LAYERS)
def test_kernels_and_problems_are_counted_and_named(case: str) -> None:
    text, kernels, problems = LAYERS[case]
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(4, 4)).astype(np.float32) for name in "wv" if f", {name})" in text}
    diagnosis = onnx_bridge.doctor(model(text, **weights), target="gpu:gfx942", compile_time=True)
    forecast = diagnosis.gpu
    assert forecast is not None
    assert {step.name: (step.uses, step.nodes) for step in forecast.kernels} == kernels
    assert {step.shapes: (step.uses, step.nodes) for step in forecast.problems} == problems
    assert forecast.candidates == (20, 40)
    assert all(step.code_bytes > 0 for step in forecast.kernels)
    # what is of ref says so
    assert diagnosis.to_json()["compiling"]["target"] == "ref"
    assert [line.split(",")[0] for line in diagnosis.compile_lines[:2]] == ["for ref", "for gfx942"]


def test_branches_are_counted() -> None:
    text = """(float[4,4] x, bool c) => (float[4,4] y) { y = If (c) <
        then_branch = g () => (float[4,4] t) { t = Sin(x) }, else_branch = h () => (float[4,4] e) { e = Exp(x) }> }"""
    forecast = onnx_bridge.doctor(model(text), target="gpu:gfx942", compile_time=True).gpu
    assert forecast is not None
    assert {step.name for step in forecast.kernels} == {"sin_kernel", "exp_kernel"}


def test_nodes_are_not_named_if_nothing_is_emulated() -> None:
    source = model("(float[4,4] x) => (float[4,4] y) { y = Sin(x) }")
    forecast = onnx_bridge.doctor(source, target="gpu:gfx1201", compile_time=True).gpu
    assert forecast is not None
    assert [(step.name, step.nodes) for step in forecast.kernels] == [("sin_kernel", [])]
    assert forecast.unnamed


@pytest.mark.parametrize("target", ["ref", "gpu"])
def test_an_architecture_is_needed(target: str) -> None:
    with pytest.raises(InputError, match="gpu:gfx942"):
        onnx_bridge.doctor(model("(float[4] x) => (float[4] y) { y = Sin(x) }"), target=target, compile_time=True)


FLOAT8 = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) e = DequantizeLinear(w, s, z)"


@pytest.mark.parametrize(
    ("architecture", "kernel", "call"),
    [("gfx942", "fp8", "gpu::hip_quant_gemm"), ("gfx1100", "float", "gpu::hip_gemm")],
)
def test_products_of_float8_are_what_is_forecast(architecture: str, kernel: str, call: str) -> None:
    source = harness.model(
        f"(float[8,64] x) => (float[8,64] y) {{ {FLOAT8} y = MatMul(d, e) }}",
        opset=21,
        s=np.float32(0.01),
        z=np.zeros((), ml_dtypes.float8_e4m3fn),
        w=np.random.default_rng(0).normal(size=(64, 64)).astype(ml_dtypes.float8_e4m3fn),
    )
    diagnosis = onnx_bridge.doctor(source, target=f"gpu:{architecture}", compile_time=True)
    assert diagnosis.kernels == {kernel: 1}
    assert diagnosis.gpu is not None
    assert [step.name for step in diagnosis.gpu.problems] == [call]


def test_a_quantizer_of_programs_has_the_format_of_other_architectures(tmp_path: Path) -> None:
    """Of a model MIGraphX reads only the format of CDNA 3."""
    source = model(
        "(float[8,64] x) => (float[8,64] y) { y = MatMul(x, w) }",
        w=np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32),
    )
    bundle = onnx_bridge.convert(source, tmp_path / "bundle", target="gpu:gfx1201", precision="fp8")
    assert bundle.manifest.program.forecast["kernels"] == {"fp8": 1}
    (program,) = bundle.path.glob("*.gfx1201.mxr")
    assert b"gpu::hip_quant_gemm" in program.read_bytes()  # the name of an instruction


def test_convolutions_of_float8_stay_on_the_device() -> None:
    """This MIGraphX has no kernel for them, and one in float is better than a transfer."""
    source = harness.model(
        f"(float[1,4,6,6] x) => (float[1,3,4,4] y) {{ {FLOAT8} y = Conv(d, e) }}",
        opset=21,
        s=np.float32(0.01),
        z=np.zeros((), ml_dtypes.float8_e4m3fn),
        w=np.arange(108).reshape(3, 4, 3, 3).astype(ml_dtypes.float8_e4m3fn),
    )
    diagnosis = onnx_bridge.doctor(source, target="gpu:gfx942")
    assert [part["side"] for part in diagnosis.partitions] == ["device"]
    assert diagnosis.kernels == {"float": 1}
