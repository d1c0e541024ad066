"""ONNX Runtime's real MIGraphX provider, asked without a GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import parser, save

from onnx_bridge.core.errors import RuntimeNotFound
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.provider import environment as environments
from onnx_bridge.provider.environment import Environment
from onnx_bridge.provider.provider import MIGRAPHX, Provider, ProviderError, SessionOptions
from passes.isolation.failure import NativeFailure

HEAD = '<ir_version: 8, opset_import: ["": 17]>'
ADD = HEAD + " g (float[2,3] x) => (float[2,3] y) { [r] a = Relu (x) [s] y = Add (a, x) }"
CAPTURED = HEAD + (
    " g (float[3,3] x) => (float[3,3] y) { a = Relu(x) s = ReduceSum <keepdims = 0> (a) k = Greater(s, s)"
    " y = If (k) <then_branch = t () => (float[3,3] o) { o = Sigmoid(a) },"
    " else_branch = u () => (float[3,3] p) { p = MatMul(a, a) }> }"
)
UNKNOWN = HEAD + " g (float[2,3] x) => (float[2,3] y) { y = Celu(x) }"


def data(text: str) -> bytes:
    return parser.parse_model(text).SerializeToString()


def test_a_session_says_what_it_claims_calls_and_computes(provider: Provider, tmp_path: Path) -> None:
    save(parser.parse_model(ADD), path := tmp_path / "add.onnx")
    (cache := tmp_path / "cache").mkdir()
    options = SessionOptions(provider={"migraphx_model_cache_dir": str(cache)})
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    session = provider.session(path, options)
    assert session.whole and {(node.name, node.provider) for node in session.nodes} == {
        ("r", MIGRAPHX),
        ("s", MIGRAPHX),
    }
    np.testing.assert_array_equal(session.run({"x": x})["y"], np.maximum(x, 0) + x)
    assert [session.calls[call] for call in ("parse", "compile", "save", "load", "run")] == [1, 1, 1, 0, 1]
    again = provider.session(path, options)
    assert [again.calls[call] for call in ("parse", "compile", "load")] == [0, 0, 1]
    assert again.calls.loaded == session.calls.saved == tuple(cache.glob("*.mxr"))
    assert not provider.stubbed or "no GPU" in provider.note


def test_an_onnxruntime_that_is_installed_beside_us_is_not_asked(runtime: Runtime, tmp_path: Path) -> None:
    (tmp_path / "onnxruntime").mkdir()
    (tmp_path / "onnxruntime/__init__.py").write_text("raise ImportError('this is not the provider's')")
    for package in ("onnx_bridge", "passes"):
        shutil.copytree(Path(*sys.modules[package].__path__), tmp_path / package)
    code = (
        "from onnx_bridge.provider import provider\n"
        f"asked = provider.Provider()\nassert provider.__file__.startswith({str(tmp_path)!r})\nprint(asked.version())"
    )
    variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-P", "-c", code]
    shown = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert shown.stdout.strip() == environments.find().version, shown.stderr


def test_an_environment_without_the_provider_is_an_error_and_no_verdict(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Provider(runtime=runtime)
    monkeypatch.setattr(Environment, "python", Path(sys.executable))  # it has another ONNX Runtime
    for ask in (provider.version, lambda: provider.session(data(ADD))):
        with pytest.raises(RuntimeNotFound):
            ask()
    provider.close()


def test_failures_are_typed_and_the_next_session_works(provider: Provider) -> None:
    session = provider.session(data(ADD))
    with pytest.raises((NativeFailure, ProviderError)):
        provider.session(data(CAPTURED))  # its body is fused first, then a pointer is followed that points nowhere
    assert session.run({"x": np.ones((2, 3), np.float32)})["y"].sum() == 12
    with pytest.raises(ProviderError):
        provider.session(data(ADD), SessionOptions(provider={"no_such_option": "1"}))
    with pytest.raises(ProviderError):
        session.run({"x": np.ones((3, 3), np.float32)})


def test_types_that_numpy_does_not_know_and_strings(provider: Provider) -> None:
    model = HEAD + " g (bfloat16[2] x, string[1] s) => (bfloat16[2] y, string[1] t) { y = Identity(x) t = Identity(s) }"
    plain = HEAD + " g (float[] x, string[1] s) => (float[] y, string[1] t) { y = Identity(x) t = Identity(s) }"
    outputs = provider.session(data(plain)).run({"x": np.array(2, np.float32), "s": np.array(["é"], object)})
    assert outputs["t"].tolist() == ["é"]
    narrow = data(model.replace(", string[1] s", "").replace(", string[1] t", "").replace("t = Identity(s)", ""))
    given = np.array([1.5, -2], ml_dtypes.bfloat16)
    result = provider.session(narrow, SessionOptions(on_cpu=True)).run({"x": given})["y"]
    assert result.dtype == given.dtype and result.tolist() == [1.5, -2]


def test_environments_are_named_or_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = tmp_path / "mine"
    (named / "lib/python3.11/site-packages/onnxruntime_migraphx-1.2.3.dist-info").mkdir(parents=True)
    (named / "bin").mkdir()
    (named / "bin/python").touch()
    environment = environments.find({environments.VARIABLE: str(named)})
    assert (environment.version, environment.path) == ("1.2.3", named)
    for variables in ({environments.VARIABLE: str(tmp_path)}, {"ONNX_BRIDGE_CACHE": str(tmp_path)}):
        with pytest.raises(RuntimeNotFound):
            environments.find(variables)


def test_an_installation_without_network_fails_in_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNX_BRIDGE_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    with pytest.raises(RuntimeNotFound) as failure:
        environments.install()
    assert "\n" not in str(failure.value) and not environments.installed()
    assert [path.name for path in (tmp_path / "runtimes").iterdir()] == [".lock"]


def test_the_command_line_lists_it(provider: Provider) -> None:
    command = [sys.executable, "-m", "onnx_bridge", "runtime", "list", "--json"]
    listed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert [entry["version"] for entry in listed["providers"]][:1] == [provider.environment.version]
