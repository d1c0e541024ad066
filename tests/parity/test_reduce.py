"""Reduction: the fewest nodes, every sample, and a folder that reproduces it without this project."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import typer
from typer.testing import CliRunner

from fixtures.models import small
from fixtures.suites.faults import Plot
from onnx_bridge.cli.faults import reduce as reduce_verb
from onnx_bridge.core.delta_debug import ddmin
from onnx_bridge.core.errors import InputError, Step
from onnx_bridge.emulation.errors import KernelFault
from onnx_bridge.model import io as models
from onnx_bridge.parity.reduce.reduce import Reduction, reduce
from onnx_bridge.parity.reduce.reproduction import Environment, write
from onnx_bridge.parity.symptoms.symptom import Symptom, SymptomKind
from onnx_bridge.reference.reference import Reference

HEAD = '<ir_version: 10, opset_import: ["": 21]>\n'
PAD_CONV = """g (float[2,2,8,8] x) => (float[2,3,8,8] y) <int64[8] p = {0,0,1,1,0,0,1,1}, float v = {2.0}> {
    a = Relu(x)  b = Pad(a, p, v)  c = Conv(b, w)  d = Tanh(c)
    e = Exp(a)  f = ReduceMax<keepdims=0>(e)  y = Mul(d, f) }"""
SCATTER = """g (float[4,3] x, int64[2,1] i, float[2,3] u) => (float[4,3] y) {
    a = Relu(x)  j = Neg(i)  s = ScatterND(a, j, u)  y = Tanh(s) }"""
GATHER = """g (float[3,4] x, int64[3,4] i) => (float[3,4] y) {
    a = Relu(x)  j = Neg(i)  s = GatherElements<axis=1>(a, j)  y = Tanh(s) }"""

OFFICIAL = '''
"""MIGraphX's official module, as far as the three lines need it, in front of the real MIGraphX of the worker."""
import sys, types
from pathlib import Path
import numpy as np
from onnx_bridge.migraphx import runtime, worker
from onnx_bridge.migraphx.program import Tensor

process = worker.Worker(runtime.find())

class Program:
    def __init__(self, program):
        self.program = program
    def compile(self, target):
        self.program.compile(target)
    def run(self, parameters):
        return [each.numpy() for each in self.program.run(parameters)]

module = types.ModuleType("migraphx")
module.parse_onnx = lambda path: Program(process.parse_onnx(Path(path)))
module.get_target = str
module.argument = Tensor.of
module.quantize_fp16 = lambda program: program.program.quantize("fp16")
sys.modules["migraphx"] = module
'''


def model(text: str, **weights: np.ndarray) -> ir.Model:
    proto = onnx.parser.parse_model(HEAD + text)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return ir.from_proto(proto)


def pad_conv() -> ir.Model:
    return model(PAD_CONV, w=np.random.default_rng(0).normal(size=(3, 2, 3, 3)).astype(np.float32))


def operators(found: Reduction) -> list[str]:
    assert found.path is not None
    return [node.op_type for node in onnx.load(found.path / "model.onnx").graph.node]


def replayed(folder: Path) -> subprocess.CompletedProcess[str]:
    """The Python of the README, run in the folder in a process of its own."""
    text = (folder / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(code.strip().splitlines()) == 3
    path = [str(Path(__file__).parents[2]), *sys.path]
    script = f"import sys; sys.path[:0] = {path!r}\n{textwrap.dedent(OFFICIAL)}\n{code}"
    return subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=False)


def test_ddmin() -> None:
    asked = []

    def shows(items: list[int]) -> bool:
        asked.append(items)
        return {3, 40, 77} <= set(items)

    assert ddmin(list(range(100)), shows) == [3, 40, 77]
    assert len(asked) < 80


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Reduction:
    return reduce(pad_conv(), tmp_path_factory.mktemp("reduced") / "out", pipeline="none", samples=2)


class TestWrongNumbers:
    def test_two_nodes_remain(self, found: Reduction) -> None:
        assert operators(found) == ["Pad", "Conv"]
        assert found.nodes_before == 7
        assert "MIGraphX computes Pad with Conv wrongly: 7 → 2 nodes" in found.summary
        json.dumps(found.to_json(), allow_nan=False)

    def test_sizes_and_elements_are_small(self, found: Reduction) -> None:
        assert found.reproduction is not None
        assert all(array.size <= 4 for array in found.reproduction.sample.values())
        assert found.path is not None
        weights = {each.name: each for each in onnx.load(found.path / "model.onnx").graph.initializer}
        assert np.prod(weights["w"].dims) <= 18

    def test_the_files_agree_with_the_reference(self, found: Reduction) -> None:
        assert found.path is not None
        assert sorted(each.name for each in found.path.iterdir()) == [
            "README.md",
            "expected.npz",
            "inputs.npz",
            "model.onnx",
        ]
        with np.load(found.path / "inputs.npz") as given, np.load(found.path / "expected.npz") as right:
            computed = Reference(found.path / "model.onnx").run(dict(given))
            for name, array in computed.items():
                np.testing.assert_array_equal(array, right[name])  # type: ignore[arg-type]

    def test_three_lines_show_it_on_stock_migraphx(self, found: Reduction) -> None:
        assert found.path is not None
        assert found.reproduction is not None
        shown = replayed(found.path)
        assert shown.returncode == 0, shown.stderr
        (right,) = found.reproduction.expected.values()
        numbers = [float(each) for each in re.findall(r"-?\d+\.\d*(?:e[-+]\d+)?", shown.stdout)]
        assert len(numbers) == right.size
        assert not np.allclose(numbers, right.ravel(), rtol=1e-3, atol=1e-3)

    def test_readme_has_no_local_paths(self, found: Reduction) -> None:
        assert found.path is not None
        text = (found.path / "README.md").read_text()
        assert "| MIGraphX | 2." in text
        assert "onnxruntime" in text
        assert str(Path.home()) not in text
        assert str(Path(__file__).parents[2]) not in text


def test_a_crash(tmp_path: Path) -> None:
    given = {"x": np.ones((4, 3), np.float32), "i": np.array([[1], [0]]), "u": np.ones((2, 3), np.float32)}
    found = reduce(model(SCATTER), tmp_path / "out", pipeline="none", inputs=[given])
    assert operators(found) == ["ScatterND"]
    assert found.reproduction is not None
    assert found.reproduction.symptom.kind is SymptomKind.CRASHES
    shown = replayed(tmp_path / "out")
    assert shown.returncode != 0
    assert "SIGABRT" in shown.stderr


def test_a_rejection(tmp_path: Path) -> None:
    text = "g (float[4] x) => (float[4] y) { a = Exp(x) b = Cast<to=6>(a) c = BitwiseNot(b) y = Cast<to=1>(c) }"
    found = reduce(model(text), tmp_path / "out", pipeline="none")
    assert operators(found) == ["BitwiseNot"]
    shown = replayed(tmp_path / "out")
    assert shown.returncode != 0
    assert "Unknown operator: BitwiseNot" in shown.stderr


@pytest.mark.parametrize("address", [0x555591C56600, 0x55559200BC10, 0x7F0000000000])
def test_a_rejection_at_another_address_is_the_same(address: int) -> None:
    """Whether the digits of the address are letters does not matter."""
    places = (0x555591CD6960, address)
    faults = (KernelFault("reaches outside its memory", "k", "load v3", place, (0, 0, 0)) for place in places)
    first, second = (Symptom.of_failure(fault, Step.RUN, 0) for fault in faults)
    assert first.message != second.message
    assert first.matches(second)
    other = KernelFault("exceeds the limit of instructions", "k", "load v3", address, (0, 0, 0))
    assert not first.matches(Symptom.of_failure(other, Step.RUN, 0))


@pytest.mark.parametrize(
    ("text", "sample"),
    [
        ("g (float[3] x) => (string[3] y) { a = Relu(x) b = Neg(a) y = Cast<to=8>(b) }", {}),
        ("g (string[2] x) => (string[2] y) { y = StringConcat(x, x) }", {"x": np.array(["a", "bé"], object)}),
    ],
)
def test_strings(tmp_path: Path, text: str, sample: dict[str, np.ndarray]) -> None:
    reduce(model(text), tmp_path / "out", pipeline="none", inputs=[sample] if sample else None)
    with np.load(tmp_path / "out" / "inputs.npz") as given, np.load(tmp_path / "out" / "expected.npz") as right:
        (array,) = Reference(tmp_path / "out" / "model.onnx").run(dict(given)).values()
        np.testing.assert_array_equal(np.asarray(array, str), right["y"])
    shown = replayed(tmp_path / "out")
    assert shown.returncode != 0
    assert "MigraphxError" in shown.stderr


def test_a_folder_of_which_nothing_can_be_written_is_not_left(tmp_path: Path, found: Reduction) -> None:
    assert found.reproduction is not None
    symptom = replace(found.reproduction.symptom, message="\ud800")
    for mine in (False, True):
        if mine:
            (tmp_path / "out").mkdir()
        with pytest.raises(UnicodeEncodeError):
            write(replace(found.reproduction, symptom=symptom), tmp_path / "out", Environment("ref", None, "2"))
        assert (tmp_path / "out").exists() is mine


def test_an_overflow_in_half_precision(tmp_path: Path) -> None:
    text = """g (float[8] x) => (float[8] y) <float high = {6.0e4}, float back = {1.0e-5}> {
        a = Exp(x)  b = Mul(a, high)  c = Abs(b)  y = Mul(c, back) }"""
    found = reduce(model(text), tmp_path / "out", pipeline="none", precision="fp16")
    assert operators(found) == ["Mul"]
    assert "quantize_fp16(program)" in (tmp_path / "out" / "README.md").read_text()
    shown = replayed(tmp_path / "out")
    assert shown.returncode == 0, shown.stderr
    assert "inf" in shown.stdout


def test_symptom_of_the_last_sample(tmp_path: Path) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    samples = [{"x": x, "i": -np.abs(index)} for index in (np.zeros((3, 4), np.int64), np.ones((3, 4), np.int64))]
    given = [samples[0], samples[0], {"x": x, "i": np.ones((3, 4), np.int64)}]
    found = reduce(model(GATHER), tmp_path / "out", pipeline="none", inputs=given)
    assert operators(found) == ["GatherElements"]
    assert found.reproduction is not None
    assert (found.reproduction.sample["j"] < 0).any()


def test_one_node_of_a_large_model(tmp_path: Path) -> None:
    fault = Plot("deep", small.deep(200)).fault("wrong", seed=2)
    assert fault is not None
    plant = fault.options["pipeline"]
    found = reduce(fault.model, tmp_path / "out", pipeline=plant)
    assert operators(found) == ["GatherElements"]


def test_nothing_to_reduce(tmp_path: Path) -> None:
    found = reduce(small.mlp(), tmp_path / "out")
    assert found.path is None
    assert not (tmp_path / "out").exists()
    assert found.summary == "mlp: nothing diverges on MIGraphX, so there is nothing to reduce"


def test_output_path_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(InputError, match="a file already"):
        reduce(pad_conv(), tmp_path / "out", pipeline="none")
    assert (tmp_path / "out").read_text() == "mine"


def test_the_command_line(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(reduce_verb.reduce)
    models.save(pad_conv(), tmp_path / "m.onnx")
    arguments = [str(tmp_path / "m.onnx"), "-o", str(tmp_path / "out")]

    said = CliRunner().invoke(app, [*arguments, "--pipeline", "none", "--json"])
    assert said.exit_code == 0, said.output
    assert json.loads(said.stdout)["nodes"] == ["Pad Pad_0", "Conv Conv_0"]
    said = CliRunner().invoke(app, arguments)  # by the default pipeline the padding goes into the convolution's input
    assert said.exit_code == 1
    assert "nothing diverges on MIGraphX" in said.stdout
