"""What a GPU would compute of quantization, seen on ref, by ``check --rehearse gpu``, and as it is forecast."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import onnx_bridge
from fixtures.suites.quantized import run
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.cli.main import app
from onnx_bridge.core import native_code
from onnx_bridge.core.errors import InputError, RuntimeNotFound
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.runtime import Runtime


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    ((_, _, path),) = run.generate(folder, ["residual"], ["qdq-uint8-int8"])
    return path


@pytest.fixture(scope="module")
def bundle(model: Path, runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return onnx_bridge.convert(model, tmp_path_factory.mktemp("bundle"), target="ref")


def test_numbers_and_kernels(model: Path, bundle: Bundle) -> None:
    sample = run.sample("residual", 9)
    seen = onnx_bridge.as_gpu(bundle)
    assert [each.kernel for each in seen.products] == ["int8"] * 3
    gpu, ref = seen(sample)["y"], bundle(sample)["y"]
    assert isinstance(gpu, np.ndarray)
    assert isinstance(ref, np.ndarray)
    assert 0 < np.abs(gpu - ref).max() < 0.05 * np.abs(ref).max()


PARTLY = """
<ir_version: 10, opset_import: ["": 21]> g (float[1,2,4,4] x) => (float[1,2,4,4] y)
<int8[2,2,1,1] w = {3, -4, 5, 6}, float s = {0.1}, int8 z = {0}, float[2,2,1,1] v = {1, -2, 3, 4}> {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) e = DequantizeLinear(w, s, z) c = Conv(d, e)
    y = Conv(c, v)
}
"""


def test_nodes_that_are_left_in_float_are_named(second_runtime: Runtime, tmp_path: Path) -> None:
    """By MIGraphX from 2.16 on, which keeps the names of nodes."""
    parsed = onnx.parser.parse_model(PARTLY)
    parsed.graph.node[-1].name = "plain"
    onnx.save(parsed, tmp_path / "partly.onnx")
    path = str(second_runtime.path)
    bundle = onnx_bridge.convert(tmp_path / "partly.onnx", tmp_path / "out", target="ref", runtime=path)
    seen = onnx_bridge.as_gpu(onnx_bridge.load(bundle.path, runtime=path))
    try:
        names = "debug_symbols" in workers.shared(seen.rehearsal.runtime).features
    except RuntimeNotFound as error:
        pytest.skip(f"{second_runtime.path.name} was unpacked without MIGraphX's headers: {error.what}")
    seen.bundle.open()
    (note,) = seen.kernel_notes
    assert ("1 in float (plain)" if names else "1 in float") in note


def test_check(model: Path, bundle: Bundle) -> None:
    report = onnx_bridge.check(bundle, rehearse="gpu")
    assert report.passed
    assert [leg.name for leg in report.legs][-1] == "rehearsed as gpu, on MIGraphX ref"
    assert "rehearsed as gpu, convolutions and matrix products are computed: 3 in int8" in report.notes
    assert len(onnx_bridge.check(bundle).legs) == 2
    with pytest.raises(InputError, match="did you mean gpu"):
        onnx_bridge.check(bundle, rehearse="tpu")  # type: ignore[arg-type]


def test_what_is_wrong_there_alone(model: Path, runtime: Runtime, tmp_path: Path) -> None:
    """Without the passes, ref is right, and a GPU loses the saturation that was to stand for a Relu."""
    report = onnx_bridge.check(model, rehearse="gpu", pipeline="none", target="ref")
    assert [leg.passed for leg in report.legs] == [True, True, False]


def test_on_the_command_line(model: Path, runtime: Runtime) -> None:
    done = CliRunner().invoke(app, ["check", str(model), "--rehearse", "gpu", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["legs"][-1]["name"].startswith("rehearsed as gpu")
    assert isinstance(CliRunner().invoke(app, ["check", str(model), "--rehearse", "tpu"]).exception, InputError)


def test_bundles_that_are_none_of_ref(model: Path, runtime: Runtime, tmp_path: Path) -> None:
    alone = onnx_bridge.convert(model, tmp_path / "alone.mxr", target="ref")
    with pytest.raises(InputError, match="keeps no cleaned model"):
        onnx_bridge.as_gpu(alone)


def test_without_a_compiler(bundle: Bundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native_code, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(native_code, "_COMPILER", ("no-such-compiler",))
    with pytest.raises(RuntimeNotFound, match="no no-such-compiler"):
        onnx_bridge.check(bundle, rehearse="gpu")


def test_the_forecast_in_inspect_and_in_the_manifest(model: Path, bundle: Bundle, tmp_path: Path) -> None:
    found = bundle.manifest.program.forecast
    assert found["summary"] == "3 int8"
    assert {each["kernel"] for each in found["products"]} == {"int8"}
    assert json.loads((bundle.path / "manifest.json").read_text())["programs"][0]["forecast"] == found
    shown = CliRunner().invoke(app, ["inspect", str(bundle.path)])
    assert "3 int8" in shown.output
    before = onnx_bridge.inspect(model).to_json()["forecast"]
    assert before["kernels"] == {"float": 3}
    assert "saturation lost" in before["summary"]
    shown = CliRunner().invoke(app, ["inspect", str(model)])
    assert "in float: 3 for dtype" in shown.output
    plain = tmp_path / "plain.onnx"
    onnx.save(run.network("residual"), plain)
    assert onnx_bridge.inspect(plain).to_json()["forecast"] == {}
