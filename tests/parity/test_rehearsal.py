"""``check``, ``bisect``, ``reduce`` with ``--rehearse gpu``: what the gpu passes get wrong, without a GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

import onnx_bridge
from onnx_bridge.cli.main import app
from onnx_bridge.migraphx.rehearsal import rehearsal as building
from onnx_bridge.migraphx.runtime import Runtime

TEXT = """
<ir_version: 8, opset_import: ["": 17]> g (float[1,2,4,4] x) => (float[1,2,1,1] y) {
    a = Relu(x) b = Add(a, x) c = LpPool <kernel_shape=[4,4], p=2> (b) y = Tanh(c)
}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "model.onnx"
    parsed = onnx.parser.parse_model(TEXT)
    parsed.graph.node[-1].op_type = "Neg"  # a Tanh hides the difference
    onnx.save(parsed, path)
    return path


def test_check(model: Path, runtime: Runtime) -> None:
    report = onnx_bridge.check(model, rehearse="gpu")
    assert [leg.passed for leg in report.legs] == [True, True, False]
    assert report.legs[-1].name.startswith("rehearsed as gpu")
    assert any("bisect --rehearse gpu" in note for note in report.notes)


def test_bisect(model: Path, runtime: Runtime) -> None:
    done = CliRunner().invoke(app, ["bisect", str(model), "--rehearse", "gpu", "--json"])
    assert done.exit_code == 1, done.output
    fault = json.loads(done.stdout)["fault"]
    assert (fault["component"], fault["group"]) == ("rehearsal", "rewrite_pooling")
    assert [each["operator"] for each in fault["nodes"]] == ["LpPool"]
    assert "rehearsed as gpu, after rewrite_pooling" in json.loads(done.stdout)["summary"]
    assert CliRunner().invoke(app, ["bisect", str(model)]).exit_code == 0


def test_reduce(model: Path, runtime: Runtime, tmp_path: Path) -> None:
    found = onnx_bridge.reduce(model, tmp_path / "out", rehearse="gpu")
    assert found.group == "rewrite_pooling"
    assert found.reproduction is not None
    assert [node.op_type for node in found.reproduction.model.graph] == ["LpPool"]
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "reproduce.cpp" in readme
    assert "rewrite_pooling" in readme
    built = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"reproduce.cpp", "groups.hpp", "unfuse.hpp", "input0.bin"} <= built


@pytest.mark.slow
def test_the_reproduction_shows_it(model: Path, runtime: Runtime, tmp_path: Path) -> None:
    """Built with the runtime's own headers and libraries, in place of ROCm's."""
    passes = building.pass_rehearsal(runtime)
    folder = tmp_path / "out"
    found = onnx_bridge.reduce(model, folder, rehearse="gpu").reproduction
    assert found is not None
    (name,) = found.sample
    compiler = shutil.which("g++")
    assert compiler is not None
    includes = [f"-I{each}" for each in building._headers(passes.runtime, passes.library.parents[1])]
    libraries = [
        str(sorted(each.glob(f"{name}.so*"))[0])
        for name in ("libmigraphx", "libmigraphx_onnx")
        for each in passes.runtime.library_path
        if any(each.glob(f"{name}.so*"))
    ]
    command = [compiler, "-std=c++17", *includes, "reproduce.cpp", "-o", "reproduce", *libraries]
    subprocess.run([*command, "-Wl,--allow-shlib-undefined"], cwd=folder, check=True)
    folders = ":".join(map(str, passes.runtime.library_path))
    loader = [str(passes.runtime.loader), "--library-path", folders] if passes.runtime.loader else []
    environment = {**os.environ, **({} if loader else {"LD_LIBRARY_PATH": folders})}
    count = passes.groups.index("rewrite_pooling")
    outputs = [
        subprocess.run(
            [*loader, "./reproduce", "model.onnx", str(groups), f"{name}=input0.bin"],
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()
        for groups in (0, count, count + 1)
    ]
    assert outputs[0][-1] == outputs[1][-1] != outputs[2][-1]
    assert outputs[2][-2] == "running rewrite_pooling"
