"""The forecast, condition by condition, against MIGraphX's own pass."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_bridge
from fixtures.gpu_view import gpu_view
from onnx_bridge.core.errors import MigraphxError
from onnx_bridge.migraphx.rehearsal.rehearsal import pass_rehearsal
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.model.int8_forecast import forecast
from passes.graphs.traversal import subgraphs
from passes.quantization.to_int8.keep_inner_scales import keep_inner_scales
from passes.quantization.to_int8.unblock_scales import unblock_scales
from passes.rewriting.base import Context
from tests.passes.helpers import mentioned, tiny

INPUT = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
WEIGHT = "e = DequantizeLinear(w, s, z)"
GIVEN: dict[str, Any] = {
    "s": np.float32(0.05),
    "z": np.int8(0),
    "a": np.int8(5),
    "u": np.uint8(0),
    "w": np.arange(-8, 8, dtype=np.int8).reshape(4, 4),
    "b": np.arange(16, dtype=np.uint8).reshape(4, 4),
    "k": np.arange(-60, 48, dtype=np.int8).reshape(3, 4, 3, 3),
    "f": np.ones((4, 4), np.float32),
    "v": np.linspace(0.1, 0.4, 4, dtype=np.float32),
    "o": np.zeros(4, np.int8),
    "t": np.linspace(0.1, 0.3, 3, dtype=np.float32),
    "p": np.zeros(3, np.int8),
    "c": np.arange(-18, 18, dtype=np.int8).reshape(4, 1, 3, 3),
    "r": np.array([2, 4]),
    "h": np.float16(0.05),
}

CASES = {
    "plain": (f"{INPUT} {WEIGHT} y = MatMul(d, e)", "int8", ""),
    "asymmetric": (f"{INPUT.replace('z)', 'a)')} {WEIGHT.replace('z)', 'a)')} y = MatMul(d, e)", "int8", ""),
    "gemm": (f"{INPUT} {WEIGHT} y = Gemm <transB = 1> (d, e, v)", "int8", ""),
    "columns": (f"{INPUT} e = DequantizeLinear <axis = 1> (w, v, o) y = MatMul(d, e)", "int8", ""),
    "transposed": (f"{INPUT} {WEIGHT} t1 = Transpose(e) y = MatMul(d, t1)", "int8", ""),
    "identity between": (
        f"q = QuantizeLinear(x, s, u) i = Identity(q) d = DequantizeLinear(i, s, u) {WEIGHT} y = MatMul(d, e)",
        "float",
        "dtype",
    ),
    "reshaped": (f"{INPUT} {WEIGHT} t1 = Reshape(d, r) y = MatMul(t1, e)", "int8", ""),
    "alpha": (f"{INPUT} {WEIGHT} y = Gemm <alpha = 0.5> (d, e)", "float", "alpha"),
    "float weight": (f"{INPUT} y = MatMul(d, f)", "float", "dequantized"),
    "relu between": (f"{INPUT} {WEIGHT} t1 = Relu(d) y = MatMul(t1, e)", "float", "dequantized"),
    "flatten between": (f"{INPUT} {WEIGHT} t1 = Flatten(d) y = MatMul(t1, e)", "float", "dequantized"),
    "no zero point": (f"{INPUT} e = DequantizeLinear(w, s) y = MatMul(d, e)", "float", "zero-point"),
    "uint8": (f"{INPUT.replace('z)', 'u)')} {WEIGHT} y = MatMul(d, e)", "float", "dtype"),
    "uint8 weight": (f"{INPUT} e = DequantizeLinear(b, s, u) y = MatMul(d, e)", "float", "dtype"),
    "computed scale": (
        "m = ReduceMax <keepdims = 0> (x) n = Abs(m) q = QuantizeLinear(x, n, z) d = DequantizeLinear(q, n, z) "
        f"{WEIGHT} y = MatMul(d, e)",
        "float",
        "parameters-constant",
    ),
    "two products": (f"{INPUT} {WEIGHT} y1 = MatMul(d, e) g = Relu(d) y = MatMul(y1, e)", "float", ""),
}
CONVOLUTIONS = {
    "plain": (f"{INPUT} e = DequantizeLinear(k, s, z) y = Conv <pads = [1, 1, 1, 1]> (d, e)", "int8", ""),
    "channels": (f"{INPUT} e = DequantizeLinear <axis = 0> (k, t, p) y = Conv(d, e)", "int8", ""),
    "asymmetric": (
        f"{INPUT.replace('z)', 'a)')} e = DequantizeLinear(k, s, a) y = Conv <pads = [1, 0, 0, 1]> (d, e)",
        "int8",
        "",
    ),
    "depthwise": (f"{INPUT} e = DequantizeLinear(c, s, z) y = Conv <group = 4> (d, e)", "int8", ""),
    "inner channels": (
        f"{INPUT} e = DequantizeLinear <axis = 1> (k, v, o) y = Conv(d, e)",
        "float",
        "scales-of-weight",
    ),
    "several for the input": (
        """q = QuantizeLinear <axis = 1> (x, v, o) d = DequantizeLinear <axis = 1> (q, v, o)
           e = DequantizeLinear(k, s, z) y = Conv(d, e)""",
        "float",
        "one-scale",
    ),
    "transposed": (f"{INPUT} e = DequantizeLinear(c, s, z) y = ConvTranspose(d, e)", "float", "operator"),
}


def written(text: str, shape: str, folder: Path) -> Path:
    rank = shape.count(",") + 1
    dims = ",".join("ijkl"[:rank])
    source = tiny(f"(float[{shape}] x) => (float[{dims}] y) {{ {text} }}", opset=19, **mentioned(text, GIVEN))
    proto = onnx.shape_inference.infer_shapes(ir.to_proto(source))
    onnx.save(proto, folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.parametrize("case", list(CASES))
def test_matrix_products(case: str, tmp_path: Path, runtime: Runtime) -> None:
    agrees(*CASES[case], "2,4", tmp_path, runtime)


@pytest.mark.parametrize("case", list(CONVOLUTIONS))
def test_convolutions(case: str, tmp_path: Path, runtime: Runtime) -> None:
    agrees(*CONVOLUTIONS[case], "1,4,6,6", tmp_path, runtime)


def agrees(text: str, kernel: str, condition: str, shape: str, folder: Path, runtime: Runtime) -> None:
    path = written(text, shape, folder)
    found = forecast(path)
    view = gpu_view(path, folder / "program.mxr", runtime)
    assert found.kernels() == Counter(each.kernel for each in view.products)
    assert found.products[-1].kernel == kernel
    if condition:
        assert found.products[-1].condition == condition
        assert found.products[-1].reason
    left = [each for each in view.operators if each.operator == "quantizelinear"]
    assert bool(found.lost) == (kernel == "float" and "n = Abs" not in text), left


def test_a_square_matrix_along_the_wrong_axis(tmp_path: Path, runtime: Runtime) -> None:
    """MIGraphX makes a kernel with wrong results; the forecast reports it, and the pass prevents it."""
    text = f"{INPUT} e = DequantizeLinear <axis = 0> (w, v, o) y = MatMul(d, e)"
    path = written(text, "2,4", tmp_path)
    assert gpu_view(path, tmp_path / "program.mxr", runtime).products[0].kernel == "int8"
    found = forecast(path)
    assert found.products[0].wrong
    source = ir.load(path)
    keep_inner_scales.run(source, Context())
    onnx.save(ir.to_proto(source), path)
    assert forecast(path).kernels() == {"float": 1}
    assert gpu_view(path, tmp_path / "program.mxr", runtime).products[0].kernel == "float"


def test_weights_of_4_bits_with_scales_of_half_precision(tmp_path: Path, runtime: Runtime) -> None:
    """A kernel takes one dtype of scales: those of both operands are widened, or the passes of the gpu target fail."""
    half = INPUT.replace("s,", "h,")
    text = f"{half} e = DequantizeLinear <axis = 0> (n, i) y = Conv(d, e)"
    source = tiny(
        f"(float16[1,4,6,6] x) => (float16[1,3,4,4] y) {{ {text} }}",
        opset=21,
        h=GIVEN["h"],
        z=GIVEN["z"],
        n=np.clip(GIVEN["k"], -8, 7).astype(ml_dtypes.int4),
        i=GIVEN["t"].astype(np.float16),
    )
    path = tmp_path / "model.onnx"
    ir.save(onnx_bridge.clean(source, pipeline="quantized").model, path)
    assert forecast(path).kernels() == {"int8": 1}
    assert gpu_view(path, tmp_path / "program.mxr", runtime).products[0].kernel == "int8"


@pytest.mark.parametrize(("own", "kernel"), [(False, "float"), (True, "int8")])
def test_branches(own: bool, kernel: str, tmp_path: Path, runtime: Runtime) -> None:
    """MIGraphX makes a kernel only of what is in one graph."""
    branch = f"{{ {INPUT} {WEIGHT} %s = MatMul(d, e) }}"
    source = tiny(
        f"""(float[2,4] x, bool c) => (float[2,4] y) {{
            y = If (c) <then_branch = t () => (float[2,4] m) {branch % "m"},
                        else_branch = o () => (float[2,4] n) {{ n = Relu(x) }}> }}""",
        s=GIVEN["s"],
        z=GIVEN["z"],
        w=GIVEN["w"],
    )
    if own:
        inner = next(iter(subgraphs(source.graph[0])))
        for name in ("s", "z"):
            value = source.graph.initializers[name]
            copy = ir.Value(name=f"{name}1", type=value.type, shape=value.shape, const_value=value.const_value)
            inner.register_initializer(copy)
            for node in inner:
                for index, each in enumerate(node.inputs):
                    if each is value:
                        node.replace_input_with(index, copy)
    path = tmp_path / "model.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(ir.to_proto(source)), path)
    found = forecast(path)
    assert found.kernels() == {kernel: 1}
    assert found.products[0].condition == ("" if own else "same-graph")
    assert [each.kernel for each in gpu_view(path, tmp_path / "program.mxr", runtime).products] == [kernel]


def test_one_scale_that_is_not_a_scalar(tmp_path: Path, runtime: Runtime) -> None:
    """MIGraphX broadcasts it along a longer axis, and rejects the model; the pass prevents it."""
    text = f"{INPUT} e = DequantizeLinear(k, s, z) y = Conv(d, e)"
    source = tiny(
        f"(float[1,4,6,6] x) => (float[i,j,k,l] y) {{ {text} }}",
        opset=19,
        k=GIVEN["k"],
        s=np.full(1, 0.05, np.float32),
        z=np.zeros(1, np.int8),
    )
    path = tmp_path / "model.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(ir.to_proto(source)), path)
    with pytest.raises(MigraphxError, match="succeeding sizes"):
        gpu_view(path, tmp_path / "program.mxr", runtime)
    unblock_scales.run(source, Context())
    onnx.save(onnx.shape_inference.infer_shapes(ir.to_proto(source)), path)
    assert gpu_view(path, tmp_path / "program.mxr", runtime).products[0].kernel == "int8"
    assert forecast(path).kernels() == {"int8": 1}


@pytest.mark.parametrize(
    ("dtype", "able"),
    [
        (ml_dtypes.float8_e4m3fnuz, {"gfx942"}),
        (ml_dtypes.float8_e4m3fn, {"gfx942", "gfx950", "gfx1201"}),
    ],
)
def test_not_every_architecture_multiplies_float8(dtype: Any, able: set[str]) -> None:
    zero, weight = np.zeros((), dtype), np.ones((4, 4), dtype)
    text = f"(float[2,4] x) => (float[2,4] y) {{ {INPUT} {WEIGHT} y = MatMul(d, e) }}"
    source = tiny(text, opset=19, s=np.float32(0.05), z=zero, w=weight)
    for architecture in ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"):
        (product,) = forecast(source, architecture=architecture).products
        assert (product.kernel, product.condition) == (
            ("fp8", "") if architecture in able else ("float", "architecture")
        )
    assert forecast(source).kernels() == {"fp8": 1}


def test_scales_of_another_axis_are_wrong_in_float_too() -> None:
    """Float8 becomes float after MIGraphX has taken them for those of the columns."""
    text = f"""(float[2,4] x) => (float[2,4] y) {{ {INPUT}
        e = DequantizeLinear <axis = 0> (w, v, o) y = MatMul(d, e) }}"""
    float8 = ml_dtypes.float8_e4m3fn
    source = tiny(
        text, opset=19, s=np.float32(0.05), z=np.zeros((), float8), w=np.ones((4, 4), float8), v=GIVEN["v"],
        o=np.zeros(4, float8),
    )  # fmt: skip
    (product,) = forecast(source, architecture="gfx1100").products
    assert product.kernel == "float"
    assert product.wrong


def test_text_and_json(tmp_path: Path) -> None:
    found = onnx_bridge.forecast(written(CASES["uint8"][0], "2,4", tmp_path))
    assert found.summary() == "1 float; saturation lost at 1"
    assert "uint8" in found.products[0].reason
    assert found.to_json()["kernels"] == {"float": 1}
    assert found.lost[0].high == pytest.approx(12.75)
    plain = onnx_bridge.forecast(written("y = Relu(x)", "2,4", tmp_path))
    assert plain.summary() == "no convolutions or matrix products"


def test_models_that_migraphx_rejects(tmp_path: Path, runtime: Runtime) -> None:
    path = written("y = Relu(x)", "2,4", tmp_path)
    proto = onnx.load(path)
    proto.graph.node[0].op_type, proto.graph.node[0].domain = "Unheard", "local"
    onnx.save(proto, path)
    with pytest.raises(MigraphxError, match="Unheard"):
        gpu_view(path, tmp_path / "program.mxr", runtime)


def test_the_program_is_built_once(runtime: Runtime) -> None:
    built = pass_rehearsal(runtime).library
    before = built.stat().st_mtime_ns
    assert pass_rehearsal(runtime).library == built
    assert built.stat().st_mtime_ns == before
