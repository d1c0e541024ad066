"""The model that is converted: what is looked at, and what is given away."""

from __future__ import annotations

from pathlib import Path

import onnx

from onnx_bridge.conversion.source import Source

TEXT = '<ir_version: 10, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'


def test_a_model_that_was_looked_at_is_given_away_once(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    source = Source(path)
    seen = source.view()
    assert source.view() is seen
    assert source.model() is seen
    assert source.model() is not seen
    assert source.view() is not seen


def test_a_model_in_memory_is_never_given_away(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    given = Source(path).model()
    source = Source(given)
    assert source.view() is not given
    assert source.model() is not given
