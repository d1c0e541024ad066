"""Bisection: each component, each kind of failure, the number of runs, and errors."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import typer
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

import passes
from fixtures.models import small
from fixtures.suites.faults import Plot
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.cli.faults import bisect as bisect_verb
from onnx_bridge.conversion.convert import convert
from onnx_bridge.core.errors import InputError
from onnx_bridge.model import io as models
from onnx_bridge.parity.bisect.bisect import bisect
from onnx_bridge.parity.bisect.bisection import Bisection, Component
from onnx_bridge.parity.bisect.bundle_request import source_request
from onnx_bridge.parity.reduce.reduce import reduce
from onnx_bridge.parity.symptoms.symptom import SymptomKind
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests.parity import BisectRequest
from onnx_bridge.views.terminal.view import render

HEAD = '<ir_version: 10, opset_import: ["": 21]>\n'
SCATTER = """g (float[4] x, int64[2,1] i, float[2] u) => (float[4] y) {
    a = Relu(x)  j = Neg(i)  s = ScatterND(a, j, u)  y = Tanh(s) }"""
SCATTER_INPUTS = {
    "x": np.arange(4, dtype=np.float32),
    "i": np.array([[1], [0]]),
    "u": np.ones(2, np.float32),
}
PAD_CONV = """g (float[1,1,4,4] x) => (float[1,1,4,4] y)
    <int64[8] p = {0,0,1,1,0,0,1,1}, float v = {2.0}, float[1,1,3,3] w = {1,2,3,4,5,6,7,8,9}> {
    a = Relu(x)  b = Pad(a, p, v)  c = Conv(b, w)  y = Tanh(c) }"""


def model(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(HEAD + text))


def sentence(found: Bisection) -> str:
    console = Console(file=io.StringIO(), width=10_000)
    console.print(render(found))
    json.dumps(found.to_json(), allow_nan=False)
    return str(console.file.getvalue().splitlines()[0])  # type: ignore[attr-defined]


class TestNothing:
    @pytest.mark.parametrize("name", ["mlp", "branches", "quantized"])
    def test_diverges_in_a_sound_model(self, name: str) -> None:
        found = bisect(small.MODELS[name](), samples=2)
        assert found.passed
        assert sentence(found) == f"{name}: nothing diverges in 2 samples (passes, MIGraphX)"

    def test_diverges_where_the_host_runs_what_migraphx_cannot(self) -> None:
        found = bisect(model(SCATTER), inputs=[SCATTER_INPUTS], pipeline="none")
        assert found.passed
        assert any("crashes" in note for note in found.notes)


class TestExport:
    def test_expected_outputs_that_differ(self, tmp_path: Path) -> None:
        mlp = small.mlp()
        x = np.ones((4, 16), np.float32)
        (right,) = Reference(mlp).run({"x": x}).values()
        assert isinstance(right, np.ndarray)
        np.savez(tmp_path / "right.npz", y=right)
        np.savez(tmp_path / "wrong.npz", y=right + np.float32(0.5))

        assert bisect(mlp, inputs=[{"x": x}], outputs=tmp_path / "right.npz").passed
        found = bisect(mlp, inputs=[{"x": x}], outputs=tmp_path / "wrong.npz")
        assert found.fault is not None
        assert found.fault.component is Component.EXPORT
        assert found.fault.error == pytest.approx(0.5, rel=1e-3)
        assert "the export is at fault" in sentence(found)

    def test_several_samples_are_stacked(self, tmp_path: Path) -> None:
        mlp = small.mlp()
        samples = [{"x": np.full((4, 16), value, np.float32)} for value in (0.1, 0.2, 0.3)]
        right = [Reference(mlp).run(sample)["y"] for sample in samples]
        wrong = [*right[:2], np.zeros((4, 16), np.float32)]
        np.savez(tmp_path / "y.npz", y=np.stack(wrong))  # type: ignore[arg-type]
        found = bisect(mlp, inputs=samples, outputs=tmp_path / "y.npz").fault
        assert found is not None
        assert found.sample == 2

    @pytest.mark.parametrize(
        ("outputs", "says"),
        [
            ([{"z": np.zeros(1)}], "no such output"),
            ([{}], "the output is missing"),
            ([{"y": np.zeros(1)}] * 2, "outputs are given for 2 samples, and 1"),
            ("nowhere.npz", "the file does not exist"),
        ],
    )
    def test_outputs_of_another_model(self, outputs: Any, says: str) -> None:
        with pytest.raises(InputError, match=says):
            bisect(small.mlp(), outputs=outputs)


class TestPasses:
    @pytest.fixture(params=["weight", "attribute", "operands", "nan"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def test_one_application_of_one_pass(self, kind: str) -> None:
        fault = Plot("convnet", small.convnet()).fault(kind, seed=2)
        assert fault is not None
        found = bisect(fault.model, **fault.options)
        assert fault.named(found), found.summary
        assert f"the pass plant is at fault in its application {fault.application} of " in sentence(found)

    def test_pass_that_ignores_the_budget(self, tmp_path: Path) -> None:
        """Its applications cannot be separated, but the values of both models can be compared."""
        (tmp_path / "careless.py").write_text(
            "from dataclasses import dataclass\n"
            "import onnx_ir as ir, passes\n"
            "from passes.rewriting.base import Pass, Result, Rewrite\n"
            "@passes.register\n@dataclass(frozen=True)\nclass Careless(Pass):\n"
            "    name = 'careless'\n"
            "    def run(self, model, context):\n"
            "        result = Result(model)\n"
            "        for index, node in enumerate(each for each in model.graph if each.op_type == 'LeakyRelu'):\n"
            "            node.attributes['alpha'] = ir.AttrFloat32('alpha', 0.9 if index == 3 else 0.3)\n"
            "            node.attributes['axis'] = ir.AttrInt64('axis', 0)\n"
            "            del node.attributes['axis']\n"
            "            result.rewrites.append(Rewrite((node.name,), (node.name,)))\n"
            "        return result\n"
        )
        passes.load_file(tmp_path / "careless.py")
        found = bisect(small.mlp(), pipeline="minimal,careless,default").fault
        assert found is not None
        assert (found.component, found.pass_name, found.application) == (Component.PASSES, "careless", 0)
        assert [node.name for node in found.nodes] == ["leakyrelu_7"]

    def test_pass_whose_model_onnx_runtime_rejects(self, tmp_path: Path) -> None:
        (tmp_path / "mangle.py").write_text(
            "from dataclasses import dataclass\n"
            "import passes\n"
            "from passes.rewriting.base import Pass, Result, Rewrite\n"
            "@passes.register\n@dataclass(frozen=True)\nclass Mangle(Pass):\n"
            "    name = 'mangle'\n"
            "    def run(self, model, context):\n"
            "        node = next(each for each in model.graph if each.op_type == 'Softmax')\n"
            "        if not context.budget.take():\n"
            "            return Result(model)\n"
            "        node.op_type = 'Sofdmax'\n"
            "        return Result(model, [Rewrite((node.name,), (node.name,))])\n"
        )
        passes.load_file(tmp_path / "mangle.py")
        found = bisect(small.mlp(), pipeline="minimal,mangle").fault
        assert found is not None
        assert (found.component, found.kind, found.pass_name) == (Component.PASSES, SymptomKind.REJECTED, "mangle")
        assert "Sofdmax" in found.message


def test_edited_model() -> None:
    fault = Plot("attention", small.attention()).fault("edited", seed=1)
    assert fault is not None
    found = bisect(fault.model, **fault.options)
    assert fault.named(found), found.summary
    assert found.fault is not None
    assert found.fault.component is Component.MODEL


class TestMigraphx:
    def test_two_nodes_that_are_wrong_together(self) -> None:
        found = bisect(model(PAD_CONV), pipeline="none", host=False)
        assert found.fault is not None
        assert (found.fault.component, found.fault.kind) == (Component.MIGRAPHX, SymptomKind.WRONG)
        assert [node.operator for node in found.fault.nodes] == ["Pad", "Conv"]
        assert "MIGraphX computes Pad Pad and Conv Conv wrongly together (run): c: " in sentence(found)

    def test_a_crash(self) -> None:
        found = bisect(model(SCATTER), inputs=[SCATTER_INPUTS], pipeline="none", host=False).fault
        assert found is not None
        assert (found.kind, found.step) == (SymptomKind.CRASHES, "run")
        assert [node.operator for node in found.nodes] == ["ScatterND"]
        assert "SIGABRT" in found.message

    def test_a_rejection(self) -> None:
        text = "g (float[4] x) => (float[4] y) { a = Exp(x) b = Cast<to=6>(a) c = BitwiseNot(b) y = Cast<to=1>(c) }"
        found = bisect(model(text), pipeline="none", host=False).fault
        assert found is not None
        assert (found.kind, found.step, found.message) == (
            SymptomKind.REJECTED,
            "parse",
            "Unknown operator: BitwiseNot",
        )
        assert [node.operator for node in found.nodes] == ["BitwiseNot"]

    def test_timeout(self) -> None:
        text = """g (float[1,48,48,48] x, float[2] z) => (float[1,48,48,48] y, float[2] v)
            <float[48,48,9,9] w> { a = Relu(x)  b = Conv<pads=[4,4,4,4]>(a, w)  y = Tanh(b)  u = Exp(z) v = Neg(u) }"""
        proto = onnx.parser.parse_model(HEAD + text)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((48, 48, 9, 9), np.float32), "w"))
        found = bisect(ir.from_proto(proto), pipeline="none", host=False, timeout=1.0).fault
        assert found is not None
        assert (found.kind, found.step) == (SymptomKind.TIMEOUT, "run")
        assert [node.operator for node in found.nodes] == ["Conv"]

    def test_the_pass_that_made_the_node(self) -> None:
        fault = Plot("mlp", small.mlp()).fault("wrong", seed=0)
        assert fault is not None
        assert fault.named(bisect(fault.model, **fault.options))

    def test_wrong_values_that_do_not_reach_the_outputs_are_ignored(self) -> None:
        """In fp16 the mask becomes −65504, of which softmax makes the same 0; the overflow comes after it."""
        text = """g (float[2,4] x) => (float[2,4] y)
            <float low = {-3.4e38}, float high = {1.0e18}, float back = {1.0e-18}> {
            m = Greater(x, x)  masked = Where(m, x, low)  n = Not(m)  kept = Where(n, x, masked)  s = Softmax(kept)
            big = Mul(s, high)  same = Abs(big)  y = Mul(same, back) }"""
        found = bisect(model(text), pipeline="none", precision="fp16").fault
        assert found is not None
        assert found.component is Component.PRECISION
        assert [node.operator for node in found.nodes] == ["Mul"]

    def test_the_last_of_several_samples(self) -> None:
        given = [{**SCATTER_INPUTS, "i": np.array([[0], [-1]])}, SCATTER_INPUTS]
        found = bisect(model(SCATTER), inputs=given, pipeline="none", host=False).fault
        assert found is not None
        assert found.sample == 1
        assert [node.operator for node in found.nodes] == ["ScatterND"]


@pytest.fixture(scope="module")
def plot() -> Plot:
    return Plot("deep", small.deep(1000))


class TestRuns:
    """⌈log₂ 1000⌉ + 2: the whole, ten halvings, and the node alone."""

    @pytest.mark.parametrize("kind", ["attribute", "wrong"])
    def test_a_thousand_nodes_take_at_most_twelve(self, plot: Plot, kind: str) -> None:
        fault = plot.fault(kind, seed=5)
        assert fault is not None
        found = bisect(fault.model, **fault.options)
        assert fault.named(found), found.summary
        assert found.fault is not None
        runs = found.runs[found.fault.component]
        assert math.ceil(math.log2(1000)) + 2 == 12
        assert runs.migraphx <= 12
        assert runs.reference <= 12


class TestErrors:
    def test_a_model_that_onnx_runtime_cannot_run(self) -> None:
        with pytest.raises(InputError, match="Nonsense"):
            bisect(model("g (float[2] x) => (float[2] y) { y = Nonsense(x) }"), pipeline="none")

    def test_no_samples(self) -> None:
        with pytest.raises(InputError, match="sample"):
            bisect(small.mlp(), inputs=[])

    def test_unknown_input(self) -> None:
        with pytest.raises(InputError, match="are these the inputs of another model"):
            bisect(small.mlp(), inputs=[{"y": np.zeros((4, 16), np.float32)}])

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"nowhere\.onnx"):
            bisect(tmp_path / "nowhere.onnx")

    def test_nan_in_the_inputs_is_a_note(self) -> None:
        found = bisect(small.mlp(), inputs=[{"x": np.full((4, 16), np.nan, np.float32)}])
        assert any("NaN" in note for note in found.notes)

    def test_a_program_without_a_manifest(self, tmp_path: Path) -> None:
        (tmp_path / "m.mxr").write_bytes(b"")
        with pytest.raises(InputError, match="it has no manifest"):
            bisect(tmp_path / "m.mxr")


class TestModules:
    """A factory of a PyTorch module is exported first; PyTorch's outputs are the expected ones."""

    FACTORIES = """import torch

def good():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh()).eval(), (torch.randn(2, 4),)

class Values(torch.nn.Module):
    def forward(self, x):
        return torch.linalg.svd(x)[1]

def bad():
    return Values().eval(), (torch.randn(3, 3),)

def bare():
    return torch.nn.Tanh()
"""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        (tmp_path / "net.py").write_text(self.FACTORIES)
        return tmp_path / "net.py"

    def test_all_legs(self, file: Path) -> None:
        found = bisect(f"{file}:good")
        assert found.passed, found.summary
        assert list(found.runs) == [Component.EXPORT, Component.PASSES, Component.MIGRAPHX]
        assert found.samples == 2

    def test_what_cannot_be_exported(self, file: Path) -> None:
        found = bisect(f"{file}:bad")
        assert found.fault is not None
        assert found.fault.component is Component.EXPORT
        assert "bad: the export is at fault: the module cannot be exported: " in sentence(found)

    def test_it_brings_inputs_and_outputs(self, file: Path) -> None:
        with pytest.raises(InputError, match="leave `inputs`"):
            bisect(f"{file}:good", inputs=[{}])
        with pytest.raises(InputError, match="without arguments"):
            bisect(f"{file}:bare")
        with pytest.raises(InputError, match="has no 'nothing'"):
            bisect(f"{file}:nothing")


class TestBundles:
    """The model that a bundle was converted from goes the same way again."""

    TEXT = """g (float[n, 4] x, int64[1] k) => (float[n, m] y, int64[n, m] i) {
        [first] r = Relu(x) [top] y, i = TopK(r, k)
    }"""

    @pytest.fixture
    def bundle(self, tmp_path: Path) -> Path:
        models.save(model(self.TEXT), tmp_path / "m.onnx")
        options = {"dims": {"n": 3}, "freeze": {"k": "[2]"}, "pipeline": "minimal", "target": "ref"}
        return convert(tmp_path / "m.onnx", tmp_path / "bundle", **options).path

    def test_settings_are_those_of_the_bundle(self, bundle: Path) -> None:
        found = bisect(bundle)
        assert found.passed, found.summary
        assert found.model == "m.onnx"
        recorded = source_request(Bundle(bundle), BisectRequest())[1].conversion
        assert (recorded.dims, recorded.freeze, recorded.target) == ({"n": 3}, {"k": "[2]"}, "ref")
        assert "freeze" not in recorded.pipeline
        assert "legalize" not in recorded.pipeline

    def test_a_fault_of_migraphx(self, tmp_path: Path) -> None:
        text = "g (float[4, 4] x) => (float y) { [one] r = Relu(x) [odd] d = Det(r) [end] y = Relu(d) }"
        models.save(model(text), tmp_path / "m.onnx")
        bundle = convert(tmp_path / "m.onnx", tmp_path / "bundle", pipeline="none", target="ref").path
        found = bisect(bundle, host=False)
        assert found.fault is not None
        assert [node.name for node in found.fault.nodes] == ["odd"]
        assert reduce(bundle, tmp_path / "reduced").reproduction is not None
        with pytest.raises(InputError, match="which precision"):
            bisect(bundle, precision="fp16")

    def test_a_lower_precision_has_its_tolerances(self, tmp_path: Path) -> None:
        models.save(small.mlp(), tmp_path / "m.onnx")
        bundle = convert(tmp_path / "m.onnx", tmp_path / "bundle", precision="fp16", target="ref")
        found = bisect(bundle.path)
        assert found.passed, found.summary
        assert not bisect(tmp_path / "m.onnx", pipeline=bundle.manifest.program.pipeline, rtol=1e-6).passed

    def test_other_settings_are_rejected(self, bundle: Path) -> None:
        with pytest.raises(InputError, match="has its own pipeline"):
            bisect(bundle, pipeline="none")
        with pytest.raises(InputError, match="has its own dims"):
            reduce(bundle, bundle / "reduced", dims={"n": 2})

    def test_missing_or_changed_model(self, bundle: Path) -> None:
        source = bundle.parent / "m.onnx"
        source.write_bytes(source.read_bytes() + b"\x3a\x00")
        with pytest.raises(InputError, match="was changed since"):
            bisect(bundle)
        source.unlink()
        with pytest.raises(InputError, match="is gone.*`pipeline='none'`"):
            bisect(bundle)


class TestCommandLine:
    """The verb, its exit codes, and one JSON document."""

    @pytest.fixture
    def invoke(self) -> Callable[..., Result]:
        app = typer.Typer()
        app.command()(bisect_verb.bisect)
        return lambda *arguments: CliRunner().invoke(app, [str(each) for each in arguments])

    def test_nothing(self, invoke: Callable[..., Result], tmp_path: Path) -> None:
        models.save(small.mlp(), tmp_path / "m.onnx")
        said = invoke(tmp_path / "m.onnx")
        assert said.exit_code == 0, said.output
        assert said.stdout.splitlines()[0] == "m.onnx: nothing diverges in 1 sample (passes, MIGraphX)"

    def test_a_fault(self, invoke: Callable[..., Result], tmp_path: Path) -> None:
        models.save(model(PAD_CONV), tmp_path / "m.onnx")
        said = invoke(tmp_path / "m.onnx", "--pipeline", "none", "--no-host", "--json")
        assert said.exit_code == 1
        fault = json.loads(said.stdout)["fault"]
        assert (fault["component"], fault["kind"], fault["step"]) == ("MIGraphX", "wrong", "run")
        assert [node["name"] for node in fault["nodes"]] == ["Pad_0", "Conv_0"]

    def test_right_outputs_and_inputs_from_files(self, invoke: Callable[..., Result], tmp_path: Path) -> None:
        models.save(small.mlp(), tmp_path / "m.onnx")
        np.savez(tmp_path / "x.npz", x=np.ones((4, 16), np.float32))
        np.savez(tmp_path / "y.npz", y=np.ones((4, 16), np.float32))
        said = invoke(tmp_path / "m.onnx", "--inputs", tmp_path / "x.npz", "--outputs", tmp_path / "y.npz")
        assert said.exit_code == 1
        assert "the export is at fault" in said.stdout.splitlines()[0]
