"""Bundles of partitions: what MIGraphX cannot run runs on ONNX Runtime, and the whole still computes the same."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_bridge
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.manifest.manifest import FORMAT
from onnx_bridge.bundle.manifest.work_share import WorkShare
from onnx_bridge.cli import main
from onnx_bridge.conversion.compiling.compiler import Compiler
from onnx_bridge.conversion.compiling.partition import partition, with_inferred_types
from onnx_bridge.conversion.steps import run as steps
from onnx_bridge.core.errors import BridgeError, InputError, RuntimeFailure
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.architectures import ARCHITECTURES
from onnx_bridge.migraphx.gpu.compiler import gpu_compiler
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from passes.probing import long_partitions
from passes.probing.probe import Probe
from passes.rewriting.base import Status, Verdict
from tests.passes.harness import model
from tests.passes.helpers import mentioned
from tests.passes.legalize.contrib_nodes import node_model, random

RNG = np.random.default_rng(0)
CONSTANTS = {
    "w": RNG.standard_normal((16, 16), np.float32),
    "v": RNG.standard_normal((16, 16), np.float32),
    "one": np.array(1),
    "most": np.array([5]),
    "half": np.array([0.3], np.float32),
}

MODELS = {
    "strings before": (
        """(string[4] t, float[16, 16] x) => (float[16, 16] y, string[k] words) {
            words = StringNormalizer <is_case_sensitive = 1, stopwords = ["amber"]> (t)
            n = Shape(words) f = Cast <to = 1> (n)
            a = MatMul(x, w) b = Mul(a, f) y = MatMul(b, v)
        }""",
        "ONNX Runtime → MIGraphX",
    ),
    "a data-dependent middle": (
        """(float[16, 16] x) => (float[16, 16] y, int64[two, n] i) {
            a = MatMul(x, w) p = Relu(a) i = NonZero(p) f = Cast <to = 1> (i) r = ReduceMean <keepdims = 0> (f)
            b = Add(p, r) y = MatMul(b, v)
        }""",
        "MIGraphX → ONNX Runtime → MIGraphX",
    ),
    "boxes at the end": (
        """(float[1, 16, 16] x) => (int64[n, 3] y) {
            a = MatMul(x, w) s = Sigmoid(a) b = Slice(s, begin, four, last) t = Transpose <perm = [0, 2, 1]> (s)
            y = NonMaxSuppression(b, t, most, half)
        }""",
        "MIGraphX → ONNX Runtime",
    ),
    "a sequence out": (
        """(float[16, 16] x) => (seq(float[n, 16]) y, float[16, 16] a) {
            a = MatMul(x, w) y = SplitToSequence <axis = 0, keepdims = 1> (a)
        }""",
        "MIGraphX → ONNX Runtime",
    ),
    "a sequence in": (
        "(seq(float[16, 16]) s, int64 at) => (float[16, 16] y) { e = SequenceAt(s, at) a = MatMul(e, w) y = Relu(a) }",
        "ONNX Runtime → MIGraphX",
    ),
    "an optional in": (
        """(optional(float[16, 16]) o, float[16, 16] x) => (float[16, 16] y, optional(float[16, 16]) o2) {
            has = OptionalHasElement(o) o2 = Identity(o)
            q = If (has) <then_branch = t () => (float[16, 16] p) { p = OptionalGetElement(o) },
                          else_branch = e () => (float[16, 16] r) { r = Neg(x) }>
            y = MatMul(q, w)
        }""",
        "ONNX Runtime → MIGraphX",
    ),
    "captures and a shared weight": (
        """(float[16, 16] x, bool c) => (float[16, 16] y) {
            a = MatMul(x, w)
            z = If (c) <then_branch = t () => (float[m, 16] p) { k = Compress <axis = 0> (a, c1) p = MatMul(k, w) },
                        else_branch = e () => (float[n, 16] q) { q = Neg(a) }>
            r = ReduceSum <keepdims = 0> (z) s = Add(a, r) y = MatMul(s, w)
        }""",
        "MIGraphX → ONNX Runtime → MIGraphX",
    ),
    "nothing for MIGraphX": (
        '(string[3] t) => (string[k] y) { y = StringNormalizer <is_case_sensitive = 1, stopwords = ["amber"]> (t) }',
        "ONNX Runtime",
    ),
}
EXTRA = {
    "begin": np.array([0]),
    "four": np.array([4]),
    "last": np.array([2]),
    "labels": np.arange(16),
    "weights": np.ones(16, np.float32),
    "c1": RNG.integers(0, 2, 16).astype(bool),
}


def build(name: str) -> onnx.ModelProto:
    text = MODELS[name][0]
    return ir.to_proto(model(text, opset=18, **mentioned(text, CONSTANTS | EXTRA)))


def save(proto: onnx.ModelProto, folder: Path, name: str = "m") -> Path:
    onnx.save(proto, folder / f"{name}.onnx")
    return folder / f"{name}.onnx"


def same(bundle: Bundle, original: Path, samples: Sequence[Mapping[str, Any]]) -> None:
    reference = Reference(original)
    for sample in samples:
        found = compare(bundle(sample), reference.run(sample))
        assert found.passed, [each.to_json() for each in found.outputs]


@pytest.mark.parametrize("name", MODELS)
def test_partitions(runtime: Runtime, tmp_path: Path, name: str) -> None:
    path = save(build(name), tmp_path)
    one_program = steps.run(path, tmp_path / "out", ConvertRequest(target="ref"))  # no bucket for each value of c
    bundle = onnx_bridge.load(one_program.path)
    sides = ["MIGraphX" if each.program else "ONNX Runtime" for each in bundle.manifest.partitions]
    assert not bundle.wholly_on_migraphx
    expected = MODELS[name][1]
    assert " → ".join(sides) == expected
    samples = samplers.generate(onnx_bridge.model.io.load(path), samples=3)
    if name == "an optional in":
        samples.append({**samples[0], "o": None})
    if name == "a sequence in":
        samples = [{**sample, "at": np.array(index)} for index, sample in enumerate(samples[:2])]
    same(bundle, path, samples)
    report = onnx_bridge.check(bundle, inputs=samples)
    assert report.passed, report.to_json()
    assert len(report.legs) == 2


@pytest.fixture(scope="module")
def made(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model with two partitions on MIGraphX, and its bundle."""
    folder = tmp_path_factory.mktemp("made")
    path = save(build("a data-dependent middle"), folder)
    return path, onnx_bridge.convert(path, folder / "out", target="ref").path


class TestBundle:
    def test_manifest(self, made: tuple[Path, Path]) -> None:
        manifest = json.loads((made[1] / "manifest.json").read_text())
        assert {path.name for path in made[1].iterdir()} == {
            "manifest.json",
            "m.onnx",
            "m.partition0.mxr",
            "m.partition2.mxr",
        }
        assert manifest["format"] == FORMAT
        (program,) = manifest["programs"]
        assert [each["runs_on"] for each in program["partitions"]] == ["MIGraphX", "ONNX Runtime", "MIGraphX"]
        first, host, last = program["partitions"]
        assert first["inputs"] == [{"name": "x", "dtype": "float32", "shape": [16, 16]}]
        assert [each["operator"] for each in host["host"]] == ["NonZero", "Cast", "ReduceMean"]
        assert "shape" in host["host"][0]["reason"]
        assert {"name": "i", "dtype": "int64", "shape": [2, None]} in host["outputs"]
        assert {each["name"] for each in last["inputs"]} == {each["name"] for each in first["outputs"]} | {"r"}
        assert manifest["share"]["nodes"] == pytest.approx(4 / 7)
        assert 0.8 < manifest["share"]["work"]["value"] < 1
        assert manifest["share"]["work"]["bound"] == "at most"  # how many indices there are is not known
        assert manifest["outputs"][1] == {"name": "i", "dtype": "int64", "shape": [2, None]}
        assert any(note.startswith("3 of 7 nodes") for note in manifest["notes"])

    def test_a_model_wholly_on_migraphx_is_one_partition(self, runtime: Runtime, tmp_path: Path) -> None:
        text = "(float[16, 16] x) => (float[16, 16] y) { a = MatMul(x, w) y = Relu(a) }"
        path = save(ir.to_proto(model(text, w=CONSTANTS["w"])), tmp_path)
        bundle = onnx_bridge.convert(path, tmp_path / "out", target="ref")
        manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
        assert manifest["format"] == FORMAT
        assert "share" not in manifest
        (partition,) = manifest["programs"][0]["partitions"]
        assert (partition["program"]["file"], partition["nodes"]) == ("m.mxr", 2)
        assert bundle.manifest.partition_line == ""
        assert bundle.wholly_on_migraphx
        assert bundle.manifest.host_reasons() == ""
        assert (bundle.manifest.node_share, bundle.manifest.work_share) == (1.0, WorkShare(1.0))

    def test_a_model_in_several_programs_is_wholly_on_migraphx(
        self, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A leg of `check` and a suite took it for one with a part on ONNX Runtime."""
        monkeypatch.setattr(long_partitions, "_largest", lambda total, growth: 2)
        monkeypatch.setattr(long_partitions, "RUNS", 0)
        text = "(float[16, 16] x) => (float[16, 16] y) { a = MatMul(x, w) b = Tanh(a) c = MatMul(b, w) y = Tanh(c) }"
        path = save(ir.to_proto(model(text, w=CONSTANTS["w"])), tmp_path)
        bundle = onnx_bridge.convert(path, tmp_path / "out", target="ref")
        assert len(bundle.manifest.partitions) > 1
        assert bundle.wholly_on_migraphx
        assert " → MIGraphX (1 node)" in bundle.manifest.partition_line
        same(bundle, path, [{"x": np.ones((16, 16), np.float32)}])
        report = onnx_bridge.check(bundle)
        assert report.passed
        assert {leg.name for leg in report.legs} == {"cleaned on ONNX Runtime", "MIGraphX ref"}

    def test_survives_the_end_of_its_worker(self, made: tuple[Path, Path]) -> None:
        bundle = onnx_bridge.load(made[1])
        x = {"x": RNG.standard_normal((16, 16), np.float32)}
        before = bundle(x)
        assert bundle.program.worker is not None
        bundle.program.worker.close()
        assert compare(bundle(x), before).passed
        bundle.close()
        assert compare(bundle(x), before).passed

    def test_moved_and_damaged(self, made: tuple[Path, Path], tmp_path: Path) -> None:
        moved = tmp_path / "moved"
        shutil.copytree(made[1], moved)
        same(onnx_bridge.load(moved), made[0], [{"x": np.ones((16, 16), np.float32)}])
        with (moved / "m.onnx").open("ab") as file:
            file.write(b"x")
        with pytest.raises(BridgeError, match=r"m.onnx: the model is not the one that the manifest describes"):
            onnx_bridge.load(moved)
        (moved / "m.onnx").unlink()
        with pytest.raises(BridgeError, match="the model is missing from the bundle"):
            onnx_bridge.load(moved)

    def test_files_of_an_earlier_bundle_are_removed(self, made: tuple[Path, Path], tmp_path: Path) -> None:
        out = tmp_path / "out"
        shutil.copytree(made[1], out)
        onnx_bridge.convert(save(build("nothing for MIGraphX"), tmp_path, "other"), out, target="ref")
        assert {path.name for path in out.iterdir()} == {"manifest.json", "other.onnx"}
        (tmp_path / "m.partition0.mxr").write_text("mine")
        with pytest.raises(InputError, match="a file that no conversion wrote"):
            onnx_bridge.convert(made[0], tmp_path, target="ref")

    def test_a_program_alone_has_no_partitions(self, made: tuple[Path, Path], tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"3 of 7 nodes.*NonZero.*give a folder"):
            onnx_bridge.convert(made[0], tmp_path / "m.mxr", target="ref")
        assert not list(tmp_path.iterdir())

    def test_without_a_host(self, made: tuple[Path, Path], tmp_path: Path) -> None:
        with pytest.raises(RuntimeFailure, match=r"3 of 7 nodes cannot run.*NonZero.*Cast.*ReduceMean") as caught:
            onnx_bridge.convert(made[0], tmp_path / "out", target="ref", host=False)
        assert caught.value.exit_code == 3
        assert not list(tmp_path.iterdir())

    def test_arrays_that_partitions_cannot_take(self, made: tuple[Path, Path]) -> None:
        with pytest.raises(InputError, match=r"the shape is \[2, 16\]"):
            onnx_bridge.load(made[1])({"x": np.zeros((2, 16), np.float32)})


def test_types_that_no_pass_inferred(runtime: Runtime, tmp_path: Path) -> None:
    """Values between partitions have types in the bundle's model, though the source has none and nothing is run."""
    proto = build("a data-dependent middle")
    del proto.graph.value_info[:]
    path = save(proto, tmp_path)
    bundle = onnx_bridge.convert(path, tmp_path / "out", target="ref", pipeline="none")
    assert len(bundle.manifest.partitions) == 3
    assert onnx_bridge.check(onnx_bridge.load(tmp_path / "out"), reference=path).passed


def test_external_data_in_both_partitions(runtime: Runtime, tmp_path: Path) -> None:
    """The weights lie beside the model, and neither kind of partition has a copy of them in the bundle."""
    text = "(float[256, 256] x) => (float[m] y) { a = MatMul(x, big) i = NonZero(a) b = MatMul(a, big) p = Transpose(i)"
    text += " q = MatMul(x, big) z = GatherND(b, p) y = Relu(z) }"
    big = RNG.standard_normal((256, 256), np.float32) / 16
    path = tmp_path / "m.onnx"
    onnx.save(
        ir.to_proto(model(text, big=big)), path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    bundle = onnx_bridge.convert(path, tmp_path / "out", target="ref")
    assert bundle.manifest.partition_line.startswith("MIGraphX (2 nodes) → ONNX Runtime (4 nodes)")
    same(bundle, path, samplers.generate(onnx_bridge.model.io.load(path)))


ENDS = {
    "the model's order": ("(float[2] x) => (float[2] b, float[2] a) { a = Neg(x) b = Abs(x) }", True),
    "an input as output": ("(float[2] x, float[2] z) => (float[2] b, float[2] z) { b = Abs(x) }", True),
    "nothing but an input": ("(float[2] x) => (float[2] x) { }", True),
    "strings that nothing uses": ("(float[2] x, string[2] s) => (float[2] b) { b = Neg(x) }", True),
    "strings handed through": ("(float[2] x, string[2] s) => (float[2] b, string[2] s) { b = Neg(x) }", False),
    "a sequence handed through": ("(seq(float[2]) x) => (seq(float[2]) x) { }", False),
    "constant strings": (
        '(float[2] x) => (float[2] b, string[1] s) { b = Neg(x) s = Constant <value_strings = ["q"]> () }',
        False,
    ),
    "a scalar between partitions": (
        "(float[16, 16] x) => (float t, int64[m, n] i)"
        "{ t = ReduceSum <keepdims = 0> (x) z = Mul(x, t) i = NonZero(z) }",
        False,
    ),
    "strings beside bfloat16": (
        "(float[16, 16] x, string[2] s) => (bfloat16[16, 16] b, string[2] t)"
        "{ d = MatMul(x, x) t = Identity(s) b = Cast <to = 16> (d) }",
        False,
    ),
    "a dtype that MIGraphX does not read": (
        "(float8e4m3fn[16] q, float[16, 16] x) => (float[16, 16] b)"
        "{ c = Cast <to = 1> (q) d = Mul(x, c) b = MatMul(d, d) }",
        False,
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_inputs_and_outputs(runtime: Runtime, tmp_path: Path, name: str) -> None:
    text, wholly = ENDS[name]
    path = save(ir.to_proto(model(text, opset=19)), tmp_path)
    bundle = onnx_bridge.convert(path, tmp_path / "out", target="ref")
    assert bundle.wholly_on_migraphx == wholly
    (sample,) = samplers.generate(onnx_bridge.model.io.load(path))
    assert compare(bundle(sample), Reference(path).run(sample)).passed


def test_a_program_that_cannot_be_read_back(runtime: Runtime, tmp_path: Path) -> None:
    """The partition is cut out of the cleaned model again, and compiled."""
    text = "(int8[16, 16] x) => (int32[16, 16] y, int64[m, n] i) { y = MatMulInteger(x, k) i = NonZero(y) }"
    path = save(ir.to_proto(model(text, k=RNG.integers(-9, 9, (16, 16)).astype(np.int8))), tmp_path)
    bundle = onnx_bridge.load(onnx_bridge.convert(path, tmp_path / "out", target="ref").path)
    assert bundle.manifest.partition_line.startswith("MIGraphX (1 node) → ONNX Runtime (1 node)")
    assert "compiled again from the cleaned model" in bundle.notes[0]
    same(bundle, path, samplers.generate(onnx_bridge.model.io.load(path)))


def test_a_node_that_nothing_can_run(runtime: Runtime, tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18, "acme": 1]> g (float[2] x) => (float[2] y)'
        "{ a = Relu(x) [odd] b = acme.Frobnicate(a) y = Neg(b) }"
    )
    with pytest.raises(RuntimeFailure, match=r"node odd: neither.*Unknown operator: Frobnicate.*acme"):
        onnx_bridge.convert(save(proto, tmp_path), tmp_path / "out", target="ref")
    assert not (tmp_path / "out").exists()


class TooKind(ProbedRuntime):
    """Verdicts that find nothing wrong with any node, for what a runtime says of the whole."""

    def verdicts(self, probes: Sequence[Probe], *, run: bool = True) -> list[Verdict]:
        return [Verdict(Status.OK) for _ in probes]


FAILING = {
    "rejected": ("b = Compress <axis = 0> (a, c1) r = ReduceMax <keepdims = 0> (b)", {"Compress"}),
    "a crash": (
        'r = NegativeLogLikelihoodLoss <reduction = "sum", ignore_index = 99> (a, labels, weights)',
        {"NegativeLogLikelihoodLoss"},
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_partition_that_fails_as_a_whole(runtime: Runtime, name: str) -> None:
    """The nodes at fault are found by bisection; only these, and nodes that depend on them, move to the host."""
    middle, guilty = FAILING[name]
    text = f"(float[16, 16] x) => (float[16, 16] y) {{ n = Neg(x) m = MatMul(n, v) a = Relu(m) {middle}"
    text += " e = Add(a, r) f = MatMul(e, v) y = Relu(f) }"
    source = with_inferred_types(model(text, **mentioned(text, CONSTANTS | EXTRA)))
    compiler = Compiler(source, workers.shared(runtime), "ref")
    partitioned = partition(source, TooKind(runtime), compiler=compiler)
    assert partitioned.error is None
    assert guilty <= {node.op_type for node in partitioned.plan.reasons} <= guilty | {"ReduceMax"}
    assert any("although it accepts each node" in note for note in partitioned.notes)
    assert [program is None for program in partitioned.programs].count(True) == 1
    stern = partition(source, TooKind(runtime), compiler=compiler, host=False)
    assert all(name in str(stern.problem) for name in guilty)


def test_a_partition_that_fails_for_a_gpu_elsewhere(runtime: Runtime) -> None:
    """What ``ref`` takes and the compiler for the GPU does not moves to the host of both programs."""
    text = "(float[16, 16] x) => (float[16, 16] y) { n = Neg(x) u = Cast <to = 13> (n) b = BitwiseAnd(u, u)"
    text += " e = Cast <to = 1> (b) f = MatMul(e, v) y = Relu(f) }"
    source = with_inferred_types(model(text, opset=18, **mentioned(text, CONSTANTS)))
    gpu, compiler = gpu_compiler(runtime, ARCHITECTURES["gfx942"]), Compiler(source, workers.shared(runtime), "ref")

    def elsewhere(environment: Mapping[str, str]) -> Compiler:
        return replace(compiler, worker=gpu.worker(environment), target=gpu.target, gpu=gpu)

    partitioned = partition(source, TooKind(runtime), compiler=compiler, elsewhere=elsewhere)
    assert partitioned.error is None
    assert {"BitwiseAnd"} <= {node.op_type for node in partitioned.plan.reasons} <= {"BitwiseAnd", "Cast"}
    assert any("for gfx942, although it accepts each node" in note for note in partitioned.notes)
    assert (len(partitioned.programs), len(partitioned.elsewhere)) == (3, 2)
    stern = partition(source, TooKind(runtime), compiler=compiler, elsewhere=elsewhere, host=False)
    assert "BitwiseAnd" in str(stern.problem)


def test_unknown_shapes_move_no_node_to_the_host(runtime: Runtime, tmp_path: Path) -> None:
    """ONNX infers nothing behind an operator of another domain; MIGraphX, which knows it, does."""
    proto = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18, "com.microsoft": 1]> g (float[2, 16] x, float[16] b) => (float y)'
        "{ a = com.microsoft.FastGelu(x, b) c = Relu(a) d = Mul(c, c) y = ReduceSum <keepdims = 0> (d) }"
    )
    bundle = onnx_bridge.convert(save(proto, tmp_path), tmp_path / "out", target="ref", pipeline="minimal")
    assert bundle.wholly_on_migraphx, bundle.manifest.partition_line
    assert onnx_bridge.check(bundle).passed


Bridge = Callable[..., tuple[int, str]]


@pytest.fixture
def bridge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bridge:
    """A command in this process; its exit code and what it printed."""

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["onnx-bridge", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main.main()
        return int(str(caught.value.code)), capsys.readouterr().out

    return run


class TestCommandLine:
    def test_convert_inspect_run_check(self, runtime: Runtime, bridge: Bridge, tmp_path: Path) -> None:
        path, out = save(build("strings before"), tmp_path), tmp_path / "out"
        done = bridge("convert", path, "-o", out, "--target", "ref")
        assert done[0] == 0, done
        assert "ONNX Runtime" in done[1]
        seen = bridge("inspect", out, "--json")
        assert [each["runs_on"] for each in json.loads(seen[1])["programs"][0]["partitions"]] == [
            "ONNX Runtime",
            "MIGraphX",
        ]
        assert "partitions" in bridge("inspect", out)[1]
        words = np.array(["amber", "brook", "cedar", "amber"])
        np.savez(tmp_path / "x.npz", t=words, x=np.ones((16, 16), np.float32))
        done = bridge("run", out, "--inputs", tmp_path / "x.npz", "-o", tmp_path / "y.npz", "--json")
        assert done[0] == 0, done
        assert json.loads(done[1])["outputs"]["words"] == {"dtype": "string", "shape": [2]}
        assert "ONNX Runtime" in json.loads(done[1])["partitions"]
        with np.load(tmp_path / "y.npz") as results:
            assert results["words"].tolist() == ["brook", "cedar"]
        done = bridge("check", out, "--json")
        assert done[0] == 0, done[1]
        report = json.loads(done[1])
        assert report["passed"]
        assert report["legs"][1]["name"] == "MIGraphX ref with ONNX Runtime"
        assert report["notes"][0].startswith("partitions: ONNX Runtime")

    def test_refusals(self, runtime: Runtime, bridge: Bridge, tmp_path: Path) -> None:
        path = save(build("a sequence out"), tmp_path)
        done = bridge("convert", path, "-o", tmp_path / "out", "--no-host", "--json")
        error = json.loads(done[1])["error"]
        assert (done[0], error["exit_code"]) == (3, 3)
        assert "SplitToSequence" in error["what"]
        assert "--no-host" in error["hint"]

    def test_sequences_in_files(self, runtime: Runtime, bridge: Bridge, tmp_path: Path) -> None:
        """A sequence in an .npz is its arrays, one by one."""
        text = "(seq(float[2]) s, optional(float[2]) o) => (seq(float[2]) y, bool has, optional(float[2]) p)"
        text += "{ y = SequenceInsert(s, v) has = OptionalHasElement(o) p = Identity(o) }"
        path = save(ir.to_proto(model(text, v=np.zeros(2, np.float32))), tmp_path)
        onnx_bridge.convert(path, tmp_path / "out", target="ref")
        np.savez(tmp_path / "x.npz", **{"s[0]": np.ones(2, np.float32), "s[1]": np.full(2, 2, np.float32)})
        done = bridge("run", tmp_path / "out", "--inputs", tmp_path / "x.npz", "-o", tmp_path / "y.npz")
        assert done[0] == 0, done
        with np.load(tmp_path / "y.npz") as results:
            assert set(results.files) == {"y[0]", "y[1]", "y[2]", "has"}
            assert results["y[1]"].tolist() == [2, 2]
            assert not results["has"]
        assert bridge("check", tmp_path / "out")[0] == 0


def test_freezing_moves_nodes_to_the_device(runtime: Runtime, tmp_path: Path) -> None:
    text = """(int64 s, float[4, 16] x) => (float[4, 16] y) {
        r = Range(none, s, one) f = Cast <to = 1> (r) t = ReduceSum <keepdims = 0> (f) y = Mul(x, t)
    }"""
    path = save(ir.to_proto(model(text, none=np.array(0), one=np.array(1))), tmp_path)
    loose = onnx_bridge.convert(path, tmp_path / "loose", target="ref")
    assert "Range" in loose.manifest.host_reasons()
    x = RNG.standard_normal((4, 16), np.float32)
    np.testing.assert_allclose(loose({"s": np.array(5), "x": x})["y"], 10 * x, 1e-6)
    for value in (np.array(5), "5"):
        bundle = onnx_bridge.convert(path, tmp_path / "out", target="ref", freeze={"s": value})
        assert bundle.wholly_on_migraphx
        assert [each.name for each in bundle.inputs] == ["x"]
        assert "s=5" in bundle.manifest.program.pipeline
        np.testing.assert_allclose(bundle({"x": x})["y"], 10 * x, 1e-6)
        report = onnx_bridge.check(bundle)
        assert report.passed, report.to_json()


def test_a_note_names_causes_first(runtime: Runtime) -> None:
    """Nodes that only follow from others, and are earlier in the graph, come after these."""
    text = """(float[16, 16] x) => (float[16, 16] y, float[m] z) {
        i = NonZero(x) a = Cast <to = 1> (i) b = Neg(a) c = Abs(b) z = ReduceMean <axes = [0], keepdims = 0> (c)
        t = MatMul(x, v) k, o = TopK(t, four) n = NonZero(t) q = Cast <to = 1> (n) r = ReduceMax <keepdims = 0> (q)
        y = Add(t, r) }"""
    found = onnx_bridge.doctor(model(text, **mentioned(text, CONSTANTS | EXTRA)))
    (note,) = [each for each in found.notes if "run on ONNX Runtime" in each]
    listed = note.partition("run on ONNX Runtime: ")[2]
    assert [each.split()[0] for each in listed.split("; ")[:2]] == ["NonZero", "NonZero"]


def test_a_note_gives_the_reason_of_the_rule(runtime: Runtime) -> None:
    """Not only that MIGraphX does not know the operator, but why nothing else is written for it."""
    weights = {"w1": random(4, 8, 8), "b1": None, "w2": random(4, 8, 8)}
    inputs = {"x": random(3, 8), "router": random(3, 4), **weights}
    proto = node_model("MoE", inputs, ("y",), {"k": 2, "use_sparse_mixer": 1}, constants=("w1", "w2"))
    (note,) = [each for each in onnx_bridge.doctor(ir.from_proto(proto)).notes if "ONNX Runtime" in each]
    assert "the mixer is sparse" in note


def test_products_on_the_host_are_no_kernels_of_a_gpu(runtime: Runtime, tmp_path: Path) -> None:
    text = """(float[16, 16] x) => (float[16, 16] y, float[m, 4] z) {
        y = MatMul(x, v) i = NonZero(x) a = Cast <to = 1> (i) z = MatMul(a, u) }"""
    source = model(text, **mentioned(text, CONSTANTS), u=np.ones((1, 4), np.float32))
    source.graph.outputs[1].shape = None
    assert onnx_bridge.doctor(source).kernels == {"float": 1}
