"""What `quantize` refuses, and how it says so."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import nn

import onnx_bridge
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array
from onnx_bridge.quantization import quark
from onnx_bridge.reference.quark.build import INSTALL
from passes.isolation.failure import NativeFailure
from passes.isolation.process import Reason

Data = list[dict[str, Array]]


def refused(*arguments: object, **options: object) -> str:
    with pytest.raises(InputError) as caught:
        onnx_bridge.quantize(*arguments, **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_unknown_names(source: Path, data: Data) -> None:
    assert "the scheme 'int9' does not exist (did you mean int8" in refused(source, scheme="int9", calibration=data)
    assert "the value cannot be 'qark' (did you mean quark?)" in refused(source, with_="qark", calibration=data)
    assert "no node or operator 'Cnov' (did you mean Conv?)" in refused(source, calibration=data, exclude=["Cnov"])


def test_data_that_is_missing_or_does_not_fit(source: Path, data: Data, tmp_path: Path) -> None:
    assert "calibration data is missing" in refused(source, with_="ort")
    assert "has no such input" in refused(source, with_="ort", calibration=[{**data[0], "z": data[0]["x"]}])
    assert "none of its arrays (z)" in refused(source, with_="ort", calibration=[{"z": data[0]["x"]}])
    assert "the shape is [2, 3, 8, 9]" in refused(
        source, with_="ort", calibration=[{"x": np.ones((2, 3, 8, 9), np.float32)}]
    )
    assert "float64" in refused(source, with_="ort", calibration=[{"x": np.ones((2, 3, 8, 8))}])
    assert "NaN or Inf" in refused(source, with_="ort", calibration=[{"x": np.full((2, 3, 8, 8), np.nan, np.float32)}])
    assert "does not exist" in refused(source, with_="ort", calibration=tmp_path / "none.npz")


@pytest.mark.parametrize("quantizer", ["ort", "quark"])
def test_a_model_that_is_quantized_already(source: Path, data: Data, tmp_path: Path, quantizer: str) -> None:
    once = tmp_path / "once.onnx"
    onnx_bridge.quantize(source, once, with_="ort", calibration=data)
    said = refused(once, tmp_path / "twice.onnx", with_=quantizer, calibration=data)
    first = next(node for node in onnx.load(once).graph.node if "quantize" in node.op_type.lower())
    assert f"{first.op_type} {first.name}: the model is quantized already" in said
    assert not (tmp_path / "twice.onnx").exists()


def test_nothing_to_quantize(data: Data) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2,3,8,8] x) => (float[2,3,8,8] y) { y = Cos (x) }"""
    model = ir.from_onnx_text(text)
    assert "nothing in the model was quantized" in refused(model, with_="ort", calibration=data)
    assert "with a constant matrix" in refused(model, with_="ort", scheme="int4-weights")


def test_a_size_that_was_chosen_and_does_not_fit() -> None:
    """Nothing is measured, so that samples are generated, in the smallest sizes."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2,n] x) => (float[2,m] y)
        <int64[4] pads = {0,2,0,2}> { y = Pad <mode = "reflect"> (x, pads) }"""
    said = refused(ir.from_onnx_text(text), with_="ort", scheme="int4-weights")
    assert said.startswith("calibration: ")
    assert "Pad" in said


def test_places_that_cannot_be_written(source: Path, data: Data, tmp_path: Path) -> None:
    assert "its folder does not exist" in refused(source, tmp_path / "no" / "out.onnx", calibration=data)
    before = source.read_bytes()
    assert "overwrite the original" in refused(source, source, with_="ort", calibration=data)
    assert source.read_bytes() == before


def test_inputs_that_quantizers_cannot_feed(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (seq(float[2]) s, float[2] x) => (float[2] y)
        <int64 zero = {0}> { first = SequenceAt (s, zero) y = Add (first, x) }"""
    sample = {"s": [np.ones(2, np.float32)], "x": np.ones(2, np.float32)}
    assert "input 's': quantizers support only tensors, not a sequence" in refused(
        ir.from_onnx_text(text), with_="ort", calibration=[sample]
    )


def test_without_quark(source: Path, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("quark", "quark.onnx", "quark.torch"):
        monkeypatch.setitem(sys.modules, name, None)
    assert refused(nn.Linear(2, 2), args=torch.ones(1, 2)) == f"AMD Quark is not installed ({INSTALL})"
    onnx_bridge.quantize(source, with_="ort", calibration=data)  # which does not need it


LONG = """<ir_version: 8, opset_import: ["": 17]> g (float[2,3,8,8] x) => (float[2,3,8,8] y)
    <int64 most = {1000000000000}, bool yes = {1}, float[8,8] w = {%s}> {
        h = MatMul (x, w)
        y = Loop (most, yes, h) <body = b (int64 i, bool more, float[2,3,8,8] s) => (bool on, float[2,3,8,8] t)
            { on = Identity (more) t = Sin (s) }> }"""


def test_a_model_that_does_not_end(data: Data) -> None:
    """The quantizer runs it, for its ranges, in a process that is ended."""
    model = ir.from_onnx_text(LONG % ",".join(["0.5"] * 64))
    with pytest.raises(NativeFailure) as caught:
        onnx_bridge.quantize(model, with_="ort", calibration=data[:1], timeout=2)
    assert caught.value.reason is Reason.TIMEOUT
    assert "quantizer" in caught.value.what


def test_without_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    with pytest.raises(InputError, match="graph mode needs torchao, which is not installed"):
        quark.require_torchao()
