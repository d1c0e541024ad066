"""explicit-zero-point: which zero points are added."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from passes.quantization.to_int8.explicit_zero_point import explicit_zero_point
from tests.passes.harness import apply, reasons
from tests.passes.helpers import tiny

STEP = explicit_zero_point
S = np.float32(0.05)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_dequantize(dtype: str) -> None:
    source = tiny(f"({dtype}[4] q) => (float[4] y) {{ y = DequantizeLinear(q, s) }}", s=S)
    apply(STEP, source)
    assert source.graph[0].inputs[2].dtype.name == dtype.upper()  # type: ignore[union-attr]


def test_quantize_to_uint8_or_output_dtype() -> None:
    for attribute, dtype in (("", "UINT8"), ("<output_dtype = 3>", "INT8")):
        text = f"(float[4] x) => (float[4] y) {{ q = QuantizeLinear {attribute} (x, s) y = DequantizeLinear(q, s) }}"
        source = tiny(text, opset=21, s=S)
        apply(STEP, source)
        assert source.graph[0].inputs[2].dtype.name == dtype  # type: ignore[union-attr]
        assert "output_dtype" not in source.graph[0].attributes


@pytest.mark.parametrize(
    ("attributes", "scale"), [("output_dtype = 5", S), ("axis = 1, block_size = 2", np.full((4, 2), 0.1, np.float32))]
)
def test_quantize_of_16_bits_and_in_blocks(attributes: str, scale: Any, tmp_path: Path, runtime: Any) -> None:
    from fixtures.gpu_view import gpu_view
    from onnx_bridge.core.errors import WorkerCrashed

    """After Concat, without a zero point, the passes of the gpu target abort."""
    text = f"""(float[2,4] x) => (float[4,4] y) {{
        r = Relu(x) c = Concat <axis = 0> (r, x) q = QuantizeLinear <{attributes}> (c, s) y = Cast <to = 1> (q) }}"""
    source = tiny(text, opset=21, s=scale)
    path = tmp_path / "model.onnx"
    ir.save(source, path)
    with pytest.raises(WorkerCrashed, match="SIGABRT"):
        gpu_view(path, tmp_path / "program.mxr", runtime)
    apply(STEP, source)
    assert source.graph[2].inputs[2].shape == list(scale.shape)  # type: ignore[union-attr]
    ir.save(source, path)
    gpu_view(path, tmp_path / "program.mxr", runtime)


def test_as_many_as_scales() -> None:
    text = "(float[2,3] x) => (float[2,3] y) { d = DequantizeLinear <axis = 0> (w, s) y = Add(x, d) }"
    source = tiny(text, w=np.ones((2, 3), np.int8), s=np.array([1, 2], np.float32))
    apply(STEP, source)
    assert source.graph[0].inputs[2].shape == [2]  # type: ignore[union-attr]


def test_float8_and_int4() -> None:
    for dtype, name in ((ml_dtypes.float8_e4m3fn, "FLOAT8E4M3FN"), (ml_dtypes.int4, "INT4")):
        text = "(float[2,2] x) => (float[2,2] y) { d = DequantizeLinear(w, s) y = Add(x, d) }"
        source = tiny(text, opset=21, w=np.ones((2, 2)).astype(dtype), s=S)
        apply(STEP, source)
        assert source.graph[0].inputs[2].dtype.name == name  # type: ignore[union-attr]


def test_unchanged() -> None:
    texts = {
        "(int32[4] q) => (float[4] y) { y = DequantizeLinear(q, s) }": {"s": S},
        "(int8[4] q) => (float[4] y) { y = DequantizeLinear(q, s, z) }": {"s": S, "z": np.int8(1)},
        "(int8[2,2] q) => (float[2,2] y) { y = DequantizeLinear <axis = 1, block_size = 2> (q, s) }": {
            "s": np.ones((2, 1), np.float32)
        },
    }
    for text, constants in texts.items():
        assert not apply(STEP, tiny(text, opset=21, **constants)).rewrites
    result = apply(
        STEP,
        tiny("(int8[4] q, float[n] s) => (float[4] y) { y = DequantizeLinear <axis = 0> (q, s) }"),
        inputs={"q": np.zeros(4, np.int8), "s": np.ones(4, np.float32)},
    )
    assert "unknown" in reasons(result)[0]
