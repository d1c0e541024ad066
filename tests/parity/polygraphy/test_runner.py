"""Polygraphy: its command with our runner, its classes with our results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import parser
from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from polygraphy.comparator import Comparator, DataLoader, RunResults
from polygraphy.exception import PolygraphyException

from onnx_bridge.core.errors import InputError
from onnx_bridge.parity.polygraphy.runner import MigraphxRunner, plain, save_results

pytestmark = pytest.mark.usefixtures("runtime")

COMMAND = Path(sys.executable).with_name("polygraphy")
PLAIN = """<ir_version: 8, opset_import: ["": 17]> g (float[2,3] x, float[2,3] z) => (float[2,3] y) {
    a = Relu (x) b = Add (a, z) c = Erf (b) y = Mul (c, a)
}"""
OPEN = """<ir_version: 8, opset_import: ["": 17]> g (float[n,3] x) => (float[n,3] y) { y = Relu (x) }"""
REJECTED = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (float[2,2] x) => (float[2,2] y) {
    a = Sigmoid (x) b = com.microsoft.Inverse (a) y = Tanh (b)
}"""
"""MIGraphX rejects the second node unless a pass rewrites it."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved(PLAIN, tmp_path / "model.onnx")


def saved(text: str, path: Path) -> Path:
    onnx.save(parser.parse_model(text), path)
    return path


def polygraphy(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    path = f"{COMMAND.parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [COMMAND, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )


class TestCommand:
    def test_run_compares_with_onnx_runtime(self, model: Path, tmp_path: Path) -> None:
        """With a change that Polygraphy makes to the model first: other outputs."""
        run = ("run", model, "--onnxrt", "--migraphx", "--onnx-outputs", "b", "y", "--save-outputs", "o.json")
        done = polygraphy(*run, folder=tmp_path)
        assert done.returncode == 0, done.stdout
        assert "migraphx-runner" in done.stdout
        assert "All outputs matched | Outputs: ['b', 'y']" in done.stdout
        reference, found = RunResults.load(str(tmp_path / "o.json")).values()
        np.testing.assert_allclose(found[0]["y"], reference[0]["y"], rtol=1e-5)

    def test_options_reach_the_runner_and_symbolic_shapes_follow_the_inputs(self, tmp_path: Path) -> None:
        saved(OPEN, tmp_path / "open.onnx")
        options = "--migraphx-target ref --migraphx-pipeline minimal --migraphx-timeout 60 --migraphx-memory 8"
        run = ("run", "open.onnx", "--migraphx", *options.split(), "--input-shapes", "x:[4,3]")
        done = polygraphy(*run, folder=tmp_path)
        assert done.returncode == 0, done.stdout
        assert "y [dtype=float32, shape=(4, 3)]" in done.stdout
        script = polygraphy(*run, "--migraphx-no-host", "--gen-script", "-", folder=tmp_path).stdout
        assert "from onnx_bridge.parity.polygraphy.runner import MigraphxRunner" in script
        for argument in ("target='ref'", "pipeline='minimal'", "timeout=60.0", "memory=8.0", "host=False"):
            assert argument in script

    def test_a_failure_is_one_message(self, tmp_path: Path) -> None:
        saved(REJECTED, tmp_path / "rejected.onnx")
        run = ["run", "rejected.onnx", "--migraphx", "--migraphx-pipeline", "none", "--migraphx-no-host"]
        done = polygraphy(*run, folder=tmp_path)
        assert done.returncode != 0
        assert "1 of 3 nodes cannot run on MIGraphX: Inverse" in done.stdout
        assert "Traceback" not in done.stdout

    def test_debug_reduce(self, tmp_path: Path) -> None:
        """With our runner as the check, the node that MIGraphX rejects remains."""
        saved(REJECTED, tmp_path / "rejected.onnx")
        check = "polygraphy run polygraphy_debug.onnx --migraphx --migraphx-pipeline none --migraphx-no-host"
        reduce = ("debug", "reduce", "rejected.onnx", "-o", "reduced.onnx", "--mode=bisect", "--check")
        done = polygraphy(*reduce, *check.split(), folder=tmp_path)
        assert done.returncode == 0, done.stdout
        left = onnx.load(tmp_path / "reduced.onnx").graph.node
        assert [node.op_type for node in left] == ["Inverse"]

    def test_inspect_data_reads_what_we_save(self, tmp_path: Path) -> None:
        y = np.array([[1.5, 2.5]], np.float32)
        save_results(tmp_path / "r.json", {"ONNX Runtime": [{"y": y}], "MIGraphX ref": [{"y": y}]})
        done = polygraphy("inspect", "data", "r.json", "--show-values", folder=tmp_path)
        assert done.returncode == 0, done.stdout
        assert "Run Results (2 runners)" in done.stdout
        assert "MIGraphX ref" in done.stdout
        assert "[[1.5 2.5]]" in done.stdout


class TestRunner:
    def test_with_the_comparator(self, model: Path) -> None:
        runners = [OnnxrtRunner(SessionFromOnnx(str(model))), MigraphxRunner(model, name="ours")]
        results = Comparator.run(runners, data_loader=DataLoader(iterations=2))
        assert [len(each) for each in results.values()] == [2, 2]
        assert bool(Comparator.compare_accuracy(results))
        assert results["ours"][0].runtime > 0

    def test_a_model_in_memory_and_a_function(self, model: Path) -> None:
        x = {"x": np.ones((2, 3), np.float32), "z": np.zeros((2, 3), np.float32)}
        for source in (onnx.load(model), lambda: onnx.load(model), lambda: str(model)):
            with MigraphxRunner(source) as runner:
                np.testing.assert_allclose(runner.infer(x)["y"], 0.8427008, rtol=1e-6)

    def test_new_shapes_are_converted_on_first_use(self, tmp_path: Path) -> None:
        with MigraphxRunner(saved(OPEN, tmp_path / "open.onnx")) as runner:
            assert runner.get_input_metadata(use_numpy_dtypes=False)["x"].shape[0] is None
            for rows in (2, 5, 2):
                x = np.full((rows, 3), -1, np.float32)
                assert runner.infer({"x": x})["y"].shape == (rows, 3)
            assert len(runner._bundles) == 2

    def test_runner_can_be_activated_again(self, model: Path) -> None:
        runner = MigraphxRunner(model)
        for _ in range(2):
            with runner:
                folder = Path(runner._folder.name)
                assert folder.exists()
            assert not folder.exists()

    def test_bad_input_is_polygraphys_error(self, model: Path, tmp_path: Path) -> None:
        with (
            pytest.raises(PolygraphyException, match="the file does not exist"),
            MigraphxRunner(tmp_path / "nowhere.onnx"),
        ):
            pass
        with pytest.raises(PolygraphyException, match="pipeline"), MigraphxRunner(model, pipeline="no-such-pass"):
            pass
        with MigraphxRunner(model) as runner, pytest.raises(PolygraphyException, match="z"):
            runner.infer({"x": np.ones((2, 3), np.float32)})


class TestResults:
    def test_results_load_again(self, tmp_path: Path) -> None:
        samples = [{"y": np.float32([index]), "s": [np.int64([1]), np.int64([2, 3])], "o": None} for index in (1, 2)]
        save_results(tmp_path / "r.json", {"ONNX Runtime": samples, "MIGraphX": samples})
        loaded = RunResults.load(str(tmp_path / "r.json"))
        assert list(loaded.keys()) == ["ONNX Runtime", "MIGraphX"]
        assert list(loaded["MIGraphX"][1].keys()) == ["y", "s[0]", "s[1]"]
        assert loaded["MIGraphX"][1]["y"] == [2]
        assert bool(Comparator.compare_accuracy(loaded))
        assert [each.name for each in tmp_path.iterdir()] == ["r.json"]

    def test_dtypes_unknown_to_polygraphy_keep_their_values(self, tmp_path: Path) -> None:
        values = np.array([1, 0, -2])
        arrays = {
            "bf16": values.astype(ml_dtypes.bfloat16),
            "fp8": values.astype(ml_dtypes.float8_e4m3fn),
            "int4": values.astype(ml_dtypes.int4),
            "uint4": np.abs(values).astype(ml_dtypes.uint4),
            "half": values.astype(np.float16),
            "bool": values.astype(bool),
            "text": np.array(["a", "bc"], object),
        }
        found = plain(arrays)
        kinds = {
            "bf16": "float32",
            "fp8": "float32",
            "int4": "int8",
            "uint4": "uint8",
            "half": "float16",
            "bool": "bool",
        }
        assert {name: found[name].dtype.name for name in kinds} == kinds
        for name in ("bf16", "fp8", "int4", "half"):
            assert found[name].tolist() == [1, 0, -2]
        save_results(tmp_path / "r.json", {"run": [arrays]})
        loaded = RunResults.load(str(tmp_path / "r.json"))["run"][0]
        assert loaded["text"].tolist() == ["a", "bc"]
        assert loaded["bf16"].tolist() == [1, 0, -2]

    def test_unwritable_path(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="cannot be written"):
            save_results(tmp_path / "nowhere" / "r.json", {})


def test_missing_polygraphy_is_an_error_with_a_hint() -> None:
    code = "import sys; sys.modules['polygraphy'] = None; import onnx_bridge.parity.polygraphy.runner"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Polygraphy is not installed" in done.stderr
    assert "pip install 'onnx-bridge[polygraphy]'" in done.stderr
