"""``check`` with layers, real inputs and tolerances, from Python and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_bridge
from onnx_bridge.cli.main import app
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.tolerance import PartialTolerance, Tolerance
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.parity.checking.check import _fusion_note
from onnx_bridge.parity.checking.report import CheckReport, Leg
from onnx_bridge.parity.layers.report import Layer, LayerReport
from onnx_bridge.reference.comparison.compare import compare
from tests.passes.harness import model

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((8, 8), np.float32)
TEXT = """(float[8, 8] x, int64[8, 2] i) => (float[8, 2] y, float[8, 8] z) {
    [mul] a = MatMul(x, w) [take] g = GatherElements <axis = 1> (a, i) [end] y = Mul(g, g) [other] z = Relu(a)
}"""
PARTITIONS = """(float[8, 8] x) => (float[8, 8] y) {
    [mul] a = MatMul(x, w) [zero] n = NonZero(a) [cast] f = Cast <to = 1> (n)
    [mean] r = ReduceMean <keepdims = 0> (f) [add] b = Add(a, r) [end] y = MatMul(b, w)
}"""


def save(text: str, path: Path) -> Path:
    onnx.save(ir.to_proto(model(text, opset=18, w=WEIGHT)), path)
    return path


def sample(index: int) -> dict[str, np.ndarray]:
    return {"x": np.full((8, 8), index + 1, np.float32) * WEIGHT, "i": np.tile([[index, 1]], (8, 1))}


def run(*arguments: object) -> int:
    """Run a command in this process; returns its exit code."""
    return app(list(map(str, arguments)), standalone_mode=False) or 0


class TestLayers:
    def test_first_differing_sample_is_compared(self, runtime: Runtime, tmp_path: Path) -> None:
        text = "(float[8, 8] x) => (float[8, 8] y) { [mul] a = MatMul(x, w) [end] y = Relu(a) }"
        other = WEIGHT.copy()
        other[3] += 1  # which only counts where the fourth column is not zero
        onnx.save(ir.to_proto(model(text, w=other)), tmp_path / "other.onnx")
        x = np.ones((8, 8), np.float32)
        x[:, 3] = 0
        report = onnx_bridge.check(
            save(text, tmp_path / "m.onnx"),
            reference=tmp_path / "other.onnx",
            target="ref",
            inputs=[{"x": x}, {"x": x + 1}, {"x": x + 2}],
            layers=True,
        )
        assert not report.passed
        assert report.layers.sample == 1
        assert report.layers.first.node == "mul"
        assert "MatMul mul is the first that differs; cleaning changed it" in report.layers.sentence
        assert report.to_json()["layers"]["first"] == "a"

    def test_partitions_on_the_host(self, runtime: Runtime, tmp_path: Path) -> None:
        report = onnx_bridge.check(save(PARTITIONS, tmp_path / "m.onnx"), target="ref", layers=True)
        assert report.passed
        assert report.layers.passed, report.layers.sentence
        places = {row.node: row.runs_on for row in report.layers.rows}
        assert places["mul"] == places["end"] == "MIGraphX"
        assert places["zero"] == places["mean"] == "ONNX Runtime"
        assert report.layers.segments == 3

    def test_bundle_without_device_partitions(self, runtime: Runtime, tmp_path: Path) -> None:
        text = """(string[3] t) => (string[k] y) {
            [only] y = StringNormalizer <is_case_sensitive = 1, stopwords = ["amber"]> (t)
        }"""
        report = onnx_bridge.check(save(text, tmp_path / "m.onnx"), target="ref", layers=True)
        assert report.passed
        assert [row.node for row in report.layers.rows] == ["only"]

    def test_frozen_inputs(self, runtime: Runtime, tmp_path: Path) -> None:
        path = save(TEXT, tmp_path / "m.onnx")
        report = onnx_bridge.check(path, target="ref", freeze={"i": sample(1)["i"]}, layers=True)
        assert report.layers.passed, report.layers.sentence
        assert {row.tensor for row in report.layers.rows if row.cleaning is not None} >= {"a", "y", "z"}

    def test_fault_that_disappears_when_values_are_fetched(self) -> None:
        right = {"y": np.ones(1)}
        good, bad = Leg("a", (compare(right, right),)), Leg("b", (compare({"y": np.zeros(1)}, right),))
        output = good.comparisons[0].outputs[0]
        agreeing = LayerReport((Layer("n", "Add", "", "y", (), "MIGraphX", None, output, output, "", (), ("n",)),))
        (note,) = _fusion_note([good, bad], agreeing)
        assert "outputs differ though no layer does" in note
        assert _fusion_note([good], agreeing) == _fusion_note([bad], None) == []

    def test_a_difference_that_the_layers_show_does_not_disappear(self) -> None:
        expected = {"y": np.ones(1)}
        bad = Leg("b", (compare({"y": np.zeros(1)}, expected),))
        within = compare({"y": np.zeros(1)}, expected, Tolerance(0.0, 1.0)).outputs[0]  # as behind a quantizer
        shown = LayerReport((Layer("n", "Add", "", "y", (), "MIGraphX", None, within, None, "", (), ("n",)),))
        (note,) = _fusion_note([bad], shown)
        assert "outputs differ though no layer does" not in note

    def test_program_alone_has_no_layers(self, runtime: Runtime, tmp_path: Path) -> None:
        path = save("(float[8, 8] x) => (float[8, 8] y) { y = MatMul(x, w) }", tmp_path / "m.onnx")
        bundle = onnx_bridge.convert(path, tmp_path / "m.mxr", target="ref")
        with pytest.raises(InputError, match="layers are those of the cleaned model.*convert into a folder"):
            onnx_bridge.check(bundle, layers=True)

    def test_on_the_command_line(self, runtime: Runtime, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        options = ["check", save(PARTITIONS, tmp_path / "m.onnx"), "--target", "ref", "--layers"]
        assert run(*options, "--layers-memory", "0.01") == 0
        assert "no layer differs: 6 values agree" in capsys.readouterr().out
        assert run(*options, "--json") == 0
        data = json.loads(capsys.readouterr().out)
        assert data["layers"]["passed"] is True
        assert [row["node"] for row in data["layers"]["rows"]] == ["mul", "zero", "cast", "mean", "add", "end"]


class TestInputs:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return save(TEXT, tmp_path / "m.onnx")

    def test_a_loader_script(
        self, runtime: Runtime, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "loader.py").write_text(
            "import numpy as np\n\ndef load_data():\n    for index in range(3):\n"
            "        yield {'x': np.full((8, 8), index, np.float32), 'i': np.full((8, 2), index)}\n"
        )
        report = onnx_bridge.check(path, target="ref", inputs=tmp_path / "loader.py")
        assert report.passed
        assert [len(leg.comparisons) for leg in report.legs] == [3, 3]
        options = ["check", path, "--target", "ref", "--inputs", f"{tmp_path}/loader.py:load_data"]
        assert run(*options, "--samples", 2) == 0
        assert "parity holds in all 8 comparisons" in capsys.readouterr().out
        with pytest.raises(InputError, match="there are 3 samples, and 4 were asked for"):
            run(*options, "--samples", 4)

    def test_a_function(self, runtime: Runtime, path: Path) -> None:
        report = onnx_bridge.check(path, target="ref", inputs=lambda: (sample(index) for index in range(2)))
        assert report.passed
        assert len(report.samples) == 2
        assert report.seed is None

    def test_nan_in_the_inputs_is_a_note(self, runtime: Runtime, path: Path) -> None:
        bad = sample(0)
        bad["x"] = bad["x"].copy()
        bad["x"][0, 0] = np.nan
        report = onnx_bridge.check(path, target="ref", inputs=bad)
        assert "sample 0, input x: 1 of 64 elements are NaN or Inf" in report.notes

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ([], "there are no samples"),
            ({"logits": np.zeros(2)}, "none of its arrays .logits. is an input"),
            ({"x": sample(0)["x"]}, "input 'i': the input is missing"),
        ],
    )
    def test_invalid_inputs(self, runtime: Runtime, path: Path, given: Any, says: str) -> None:
        with pytest.raises(InputError, match=says):
            onnx_bridge.check(path, target="ref", inputs=given)


class TestTolerances:
    def check(self, path: Path, **options: Any) -> CheckReport:
        return onnx_bridge.check(path, target="ref", reference=path.with_name("other.onnx"), **options)

    @pytest.fixture
    def bundle(self, runtime: Runtime, tmp_path: Path) -> Path:
        """A bundle whose reference has weights that differ by half a percent."""
        save(PARTITIONS, tmp_path / "m.onnx")
        onnx.save(ir.to_proto(model(PARTITIONS, opset=18, w=WEIGHT * np.float32(1.003))), tmp_path / "other.onnx")
        return onnx_bridge.convert(tmp_path / "m.onnx", tmp_path / "bundle", target="ref").path

    def test_by_precision_by_name_and_general(self, bundle: Path) -> None:
        assert [leg.passed for leg in self.check(bundle).legs] == [False, False]
        # passes compute in the dtypes of the model, whatever MIGraphX does
        assert [leg.passed for leg in self.check(bundle, tolerance="fp16").legs] == [False, True]
        assert self.check(bundle, tolerances={"y": PartialTolerance(atol=1.0)}).passed
        assert self.check(bundle, tolerances={"y": Tolerance(0.1, 0.1)}).passed
        assert self.check(bundle, rtol=0.1, atol=0.1).passed
        assert not self.check(bundle, rtol=0.1, atol=0.1, tolerances={"y": PartialTolerance(0.0, 0.0)}).passed

    def test_tolerance_of_an_unknown_output(self, bundle: Path) -> None:
        for layers in (False, True):
            with pytest.raises(InputError, match="output 'yy'.*there is no such output"):
                self.check(bundle, tolerances={"yy": PartialTolerance(1.0)}, layers=layers)
        report = self.check(bundle, rtol=1.0, atol=9.0, tolerances={"b": PartialTolerance(0.0, 0.0)}, layers=True)
        assert report.passed
        assert report.layers.first.tensor == "b"

    def test_on_the_command_line(self, bundle: Path) -> None:
        options = ["check", bundle, "--reference", bundle.with_name("other.onnx")]
        assert run(*options) == 1
        assert run(*options, "--tol", "y:atol=1") == 0
        with pytest.raises(InputError, match="the tolerance does not exist"):
            run(*options, "--tolerance", "fp17")
        with pytest.raises(InputError, match="is not NAME:rtol=NUMBER"):
            run(*options, "--tol", "y=1")
