"""Libraries of custom operators: chosen by the user, or found; recorded, and never loaded by a bundle's word."""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import onnx_bridge
from onnx_bridge.cli.main import app
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.reference import ops_libraries
from onnx_bridge.reference.onnxruntime_errors import OnnxRuntimeError
from onnx_bridge.reference.session import Session

MODEL = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.contrib": 1]> g (float[2] x) => (float[2] y) {
    y = ai.onnx.contrib.Inverse (x) }"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is no library."""
    monkeypatch.setenv(ops_libraries.VARIABLE, "")
    file = tmp_path / "libops.so"
    file.write_bytes(b"no library")
    return file


def test_a_library_that_is_chosen_is_recorded(path: Path) -> None:
    assert ops_libraries.recorded() == {}
    ops_libraries.use([path])
    assert ops_libraries.chosen() == [path]
    assert ops_libraries.recorded() == {"library libops.so": f"sha256 {hashlib.sha256(b'no library').hexdigest()}"}
    with pytest.raises(InputError):
        ops_libraries.use([path.with_name("missing.so")])
    with pytest.raises(OnnxRuntimeError, match="libops"):  # it is loaded
        Session(onnx.parser.parse_model(MODEL.replace("ai.onnx.contrib.Inverse", "Neg")).SerializeToString())


def test_the_library_of_extensions_is_found(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.parser.parse_model(MODEL).SerializeToString()
    with pytest.raises(OnnxRuntimeError) as refused:
        Session(model)
    assert refused.value.domain == "ai.onnx.contrib"
    package = tmp_path / "onnxruntime_extensions"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit")  # it is not imported
    (package / "_extensions_pydll.so").write_bytes(b"no library")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    assert ops_libraries.of_domain("ai.onnx.contrib") == [package / "_extensions_pydll.so"]
    assert ops_libraries.of_domain("com.example") == []
    with pytest.raises(OnnxRuntimeError, match="_extensions_pydll"):
        Session(model)


@pytest.mark.parametrize("verb", ["convert", "check", "run", "doctor"])
def test_the_option_is_that_of_all_verbs_that_run_models(path: Path, verb: str) -> None:
    result = CliRunner().invoke(app, [verb, "model.onnx", "--ops-library", str(path.with_name("missing.so"))])
    assert isinstance(result.exception, InputError)
    assert str(result.exception.where).endswith("missing.so")


def test_text_ahead_of_a_network(runtime: Runtime, tmp_path: Path) -> None:
    """Foreign operators that take text show their shapes in a run, so that the network behind them is on MIGraphX."""
    text = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]>
        g (string[1,4] s, float[1,4] x) => (float[1,2] y) < float[4,2] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
        l = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b"], values_floats = [1.0, 2.0]> (s)
        m = Mul (l, x) y = MatMul (m, w) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    bundle = onnx_bridge.convert(tmp_path / "model.onnx", tmp_path / "out", target="ref")
    sample: dict[str, Any] = {"s": np.array([["a", "b", "a", "b"]], object), "x": np.ones((1, 4), np.float32)}
    np.testing.assert_allclose(bundle(sample)["y"], [[1 + 6 + 5 + 14, 2 + 8 + 6 + 16]], rtol=1e-6)
    assert bundle.manifest.on_migraphx
