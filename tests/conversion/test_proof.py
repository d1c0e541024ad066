"""Proofs of conversions: what is compared with the reference, how, and what a difference does."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from typer.testing import CliRunner

import onnx_bridge
import passes
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.bundle.manifest.proof import BundleProof, together
from onnx_bridge.cli import main
from onnx_bridge.conversion.proving import comparison
from onnx_bridge.conversion.steps import clean
from onnx_bridge.core.errors import NOT_DETERMINED, InputError, ParityError
from onnx_bridge.core.progress import Stage
from onnx_bridge.core.schema import read_as
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.model import io as models
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.reference.evaluations import NoReference, run_file
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from onnx_bridge.verdicts.proof_counts import ProofCounts
from passes.rewriting.base import Context, Exactness, Pass, Proof, Result, Rewrite
from tests.passes.helpers import tiny


def write(path: Path, text: str, **weights: Any) -> Path:
    """A model from its text, of opset 17."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
    onnx.save(model, path)
    return path


def conv(path: Path, shape: str = "N, 3, H, W") -> Path:
    """A convolution and what follows it, with open sizes or fixed ones."""
    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    body = "c = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w) y = Relu(c)"
    return write(path, f"(float[{shape}] x) => (float[a, 4, b, c] y) {{ {body} }}", w=weights)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return conv(tmp_path / "m.onnx")


SIZES = {"N": 4, "H": 96, "W": 96}


def test_integers_that_the_reference_takes(runtime: Runtime, tmp_path: Path) -> None:
    """Generated indices are below the number of rows, and twice as large afterwards."""
    text = "(int64[2] i, float[3] x) => (float[2,3] y) { j = Add(i, i) r = Gather(w, j) y = Mul(r, x) }"
    path = write(tmp_path / "m.onnx", text, w=np.arange(9).reshape(3, 3))
    assert onnx_bridge.convert(path, tmp_path / "out", target="ref").proof.level is Proof.RUN
    assert onnx_bridge.check(path).unproven == ()


BLIND = "(float[1,3,16,16] x) => (float[1,4,14,14] y) { c = Conv(x, w, b) y = Sigmoid(c) }"
NOTHING = "the same numbers on all inputs that were generated"


def test_a_witness_that_takes_too_long_is_named(runtime: Runtime, model: Path, tmp_path: Path) -> None:
    """The inputs can be smaller, but not by enough."""
    bundle = onnx_bridge.convert(model, tmp_path / "out", target="ref", dims=SIZES, prove_budget=1e-9)
    assert "no witness: with x [" in bundle.proof.unproven
    assert "it would still take about" in bundle.proof.unproven


class TestInputsThatProveNothing:
    """Outputs that are constant within their tolerance, whatever is generated."""

    @pytest.mark.parametrize("bias", [-60, -200])
    def test_other_inputs_are_chosen(self, runtime: Runtime, tmp_path: Path, bias: int) -> None:
        """On noise, every score is below 1e-9, and so is that of a bundle that computes zeros."""
        weights = np.abs(np.random.default_rng(0).standard_normal((4, 3, 3, 3)))
        path = write(tmp_path / "m.onnx", BLIND, w=weights, b=np.full(4, bias))
        proof = onnx_bridge.convert(path, tmp_path / "out", target="ref").proof
        assert (proof.level, proof.samples) == (Proof.RUN, 2)

    def test_small_inputs_saturate_nothing(self, runtime: Runtime, tmp_path: Path) -> None:
        """A class that wins on all noise, as of images of numbers below 1."""
        text = "(float[1,8] x) => (float[1,3] y) { s = ReduceSumSquare<axes=[1]>(x) a = Mul(s, k) y = Softmax(a) }"
        path = write(tmp_path / "m.onnx", text, k=np.array([[0, 100, 0]]))
        assert onnx_bridge.convert(path, tmp_path / "out", target="ref").proof.level is Proof.RUN
        assert onnx_bridge.check(path).unproven == ()

    def test_features_lie_around_the_thresholds_of_trees(self, runtime: Runtime, tmp_path: Path) -> None:
        """A tree of a year and an amount, on whose other side no normal number is."""
        nodes = "nodes_treeids=[0,0,0,0,0], nodes_nodeids=[0,1,2,3,4], nodes_featureids=[1,0,0,0,0],"
        nodes += "nodes_values=[1980.5,3000.0,0.0,0.0,0.0], nodes_truenodeids=[2,3,0,0,0], "
        nodes += 'nodes_falsenodeids=[1,4,0,0,0], nodes_modes=["BRANCH_LEQ","BRANCH_LT","LEAF","LEAF","LEAF"],'
        leaves = "class_treeids=[0,0,0], class_nodeids=[2,3,4], class_ids=[0,0,0], class_weights=[0.1,0.7,0.9]"
        tree = f"ai.onnx.ml.TreeEnsembleClassifier<{nodes} {leaves}, classlabels_int64s=[0,1]>"
        opsets = '<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 1]>'
        text = f"{opsets} m (float[1,3] x) => (int64[1] y, float[1,2] p) {{ y, p = {tree}(x) }}"
        path = tmp_path / "m.onnx"
        onnx.save(onnx.parser.parse_model(text), path)
        assert onnx_bridge.convert(path, tmp_path / "out", target="ref").proof.level is Proof.RUN
        assert onnx_bridge.check(path).unproven == ()

    @pytest.mark.parametrize(
        "text",
        [
            "(float[2,3] x) => (float[2,3] y) { a = Mul(x, k) b = Add(a, w) y = Softmax(b) }",
            "(float[2,3] x) => (float[2,3] y) { a = Mul(x, k) b = Add(a, w) y = Clip(b, low, high) }",
            "(float[2,3] x) => (float[2,3] z, float[2,3] y) { z = Neg(x) a = Mul(x, k) b = Add(a, w) y = Tanh(b) }",
            "(float[2,3] x) => (y) { a = Mul(x, k) b = Add(a, w) c = Sigmoid(b) y = SequenceConstruct(c, c) }",
            "(float[2,3] x) => (int64[2,1] y) { a = Mul(x, k) b = Add(a, w) y = ArgMax <axis = 1> (b) }",
            "(float[2,3] x) => (bool[2,3] y) { a = Mul(x, k) b = Add(a, w) y = Greater(b, low) }",
            "(float[2,3] x) => (int64[2,n] y) { a = Mul(x, k) b = Sub(a, low) c = Less(b, low) y = NonZero(c) }",
        ],
    )
    def test_outputs_that_saturate(self, runtime: Runtime, tmp_path: Path, text: str) -> None:
        """They are no single number, but the same for all inputs, beside others that are not."""
        given = {"k": 1e-6, "w": np.array([-99.0, 99, -50]), "low": -1.0, "high": 1.0}
        path = write(tmp_path / "m.onnx", text, **{name: array for name, array in given.items() if name in text})
        proof = onnx_bridge.convert(path, tmp_path / "out", target="ref").proof
        assert (proof.level, NOTHING in proof.unproven) == (Proof.NONE, True)
        for subject in (path, tmp_path / "out"):
            report = onnx_bridge.check(subject)
            assert report.passed
            assert [name.partition("[")[0] for name in report.unproven[:1]] == ["y"]
            assert "unproven" in report.summary
        samples = tmp_path / "real.npz"
        np.savez(samples, x=np.float32([[1e8, 2e8, 3e8], [-1e8, 0, 1e8]]))
        assert onnx_bridge.check(path, inputs=samples).unproven == ()

    def test_a_limit_of_the_other_runs_is_named(
        self, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What was not run has not given the same numbers."""
        path = write(tmp_path / "m.onnx", "(float[2,4] x) => (float[2,4] y) { y = Mul(x, k) }", k=0.0)
        runs = list[str]()

        def first_alone(*given: Any, **options: Any) -> Any:
            runs.append("run")
            if len(runs) > 1:
                raise NoReference("the run exceeded its limit", is_limit=True)
            return run_file(*given, **options)

        monkeypatch.setattr(comparison, "run_file", first_alone)
        proof = onnx_bridge.convert(path, tmp_path / "out", target="ref", reuse=False).proof
        assert (proof.level, len(runs)) == (Proof.NONE, 2)
        assert "its limit" in proof.unproven
        assert NOTHING not in proof.unproven

    @pytest.mark.parametrize("op", ["Mul", "Pow"])
    def test_if_there_are_none_the_bundle_says_so(self, runtime: Runtime, tmp_path: Path, op: str) -> None:
        path = write(tmp_path / "m.onnx", f"(float[2,4] x) => (float[2,4] y) {{ y = {op}(x, k) }}", k=0.0)
        bundle = onnx_bridge.convert(path, tmp_path / "out", target="ref")
        assert (bundle.proof.level, bundle.proof.comparable) == (Proof.NONE, True)
        assert NOTHING in bundle.proof.unproven

    @pytest.mark.parametrize(
        "body",
        ["s = Shape(x) y = Cast<to=1>(s)", "y = ReduceSum<keepdims=0>(x)", "y = ArgMax(x)", "y = Greater(x, k)"],
    )
    def test_outputs_that_are_constants_by_nature_are_proven(self, runtime: Runtime, tmp_path: Path, body: str) -> None:
        kind = {"ArgMax": "int64", "Greater": "bool"}.get(body.split()[2].split("(")[0], "float")
        path = write(tmp_path / "m.onnx", f"(float[2,4] x) => ({kind} y) {{ {body} }}", k=100.0)
        proto = onnx.load(path)
        proto.graph.output[0].type.tensor_type.ClearField("shape")
        onnx.save(proto, path)
        assert onnx_bridge.convert(path, tmp_path / "out", target="ref").proof.level is Proof.RUN


class TestLevels:
    def test_a_small_model_is_run_at_real_size(self, runtime: Runtime, model: Path, tmp_path: Path) -> None:
        bundle = onnx_bridge.convert(model, tmp_path / "out", target="ref", dims={"N": 1, "H": 8, "W": 8})
        proof = bundle.proof
        assert (proof.level, proof.samples, proof.unproven) == (Proof.RUN, 1, "")
        assert proof.error is not None
        assert proof.error < 1e-5
        assert bundle.manifest.timings[Stage.PROVE] > 0
        assert proof.nodes.run == 2, "the convolution and the Relu"
        written = json.loads((tmp_path / "out/manifest.json").read_text())["proof"]
        assert read_as(BundleProof, written) == proof == onnx_bridge.load(tmp_path / "out").proof

    def test_a_larger_one_by_smaller_sizes_of_its_open_dimensions(
        self, runtime: Runtime, model: Path, tmp_path: Path
    ) -> None:
        bundle = onnx_bridge.convert(model, tmp_path / "out", target="ref", dims=SIZES, prove_budget=0.01)
        assert bundle.proof.level is Proof.WITNESS
        assert "x [2, 3, 32, 32]" in bundle.proof.what
        assert bundle.proof.unproven
        assert bundle.inputs[0].shape == (4, 3, 96, 96)
        assert sorted(each.name for each in bundle.path.iterdir()) == ["m.mxr", "m.onnx", "manifest.json"]

    def test_nodes_of_a_witness_are_not_run_at_its_size(
        self, runtime: Runtime, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is compared as a whole."""
        budgets: list[float | None] = []

        def recorded(*arguments: Any, budget: float | None, **options: Any) -> ProbedRuntime:
            budgets.append(budget)
            return ProbedRuntime(*arguments, budget=budget, **options)

        monkeypatch.setattr(clean, "ProbedRuntime", recorded)
        bundle = onnx_bridge.convert(model, tmp_path / "out", target="ref", dims=SIZES, prove_budget=0.01)
        assert (bundle.proof.level, budgets) == (Proof.WITNESS, [None, 0.0])

    def test_one_with_fixed_sizes_by_smaller_ones(self, runtime: Runtime, tmp_path: Path) -> None:
        fixed = conv(tmp_path / "m.onnx", "4, 3, 96, 96")
        bundle = onnx_bridge.convert(fixed, tmp_path / "out", target="ref", prove_budget=0.01)
        assert bundle.proof.level is Proof.WITNESS
        assert "x [2, 3, 32, 32]" in bundle.proof.what

    def test_what_only_its_size_lets_be_rewritten_is_rewritten_in_the_witness(
        self, runtime: Runtime, tmp_path: Path
    ) -> None:
        """MIGraphX before 2.16 makes a table of more than a million indices of the large Resize alone."""
        text = '(float[4,3,96,96] x) => (y) { c = Conv<pads=[1,1,1,1]>(x, w) y = Resize<mode="nearest">(c, , s) }'
        weights = np.random.default_rng(0).normal(size=(8, 3, 3, 3)).astype(np.float32)
        path = write(tmp_path / "m.onnx", text, w=weights, s=[1, 1, 2, 2])
        bundle = onnx_bridge.convert(path, tmp_path / "out", target="ref", prove_budget=0.1)
        assert bundle.proof.level is Proof.WITNESS
        assert bundle.model_path is not None
        operators = [node.op_type for node in onnx.load(bundle.model_path).graph.node]
        assert operators == ["Conv", *(["Resize"] if runtime.release >= (2, 16) else ["Gather", "Gather"])]

    def test_the_levels_of_a_pyramid_keep_their_proportions(self, runtime: Runtime, tmp_path: Path) -> None:
        text = (
            "(float[1,3,80,96] low, float[1,3,40,48] middle, float[1,3,20,24] high) => (float[1,3,80,96] y)"
            ' { a = Resize<mode="nearest">(high, , s) b = Add(a, middle) c = Resize<mode="nearest">(b, , s)'
            " y = Add(c, low) }"
        )
        pyramid = write(tmp_path / "m.onnx", text, s=[1, 1, 2, 2])
        bundle = onnx_bridge.convert(pyramid, tmp_path / "out", target="ref", prove_budget=0.005)
        assert bundle.proof.level is Proof.WITNESS
        assert bundle.proof.what.endswith("low [1, 3, 48, 32], middle [1, 3, 24, 16], high [1, 3, 12, 8]")

    def test_a_constant_that_names_a_size_leaves_no_witness(self, runtime: Runtime, tmp_path: Path) -> None:
        text = (
            "(float[4, 64, 64] x) => (float[4, 4096] y) <int64[2] s = {4, 4096}> { r = Sigmoid(x) y = Reshape(r, s) }"
        )
        bundle = onnx_bridge.convert(
            write(tmp_path / "m.onnx", text), tmp_path / "out", target="ref", prove_budget=1e-4
        )
        assert bundle.proof.level is Proof.NONE
        assert bundle.proof.unproven
        assert bundle.proof.comparable

    def test_always_runs_at_real_size(self, runtime: Runtime, model: Path, tmp_path: Path) -> None:
        bundle = onnx_bridge.convert(
            model, tmp_path / "out", target="ref", dims=SIZES, prove="always", prove_budget=1e-4
        )
        assert bundle.proof.level is Proof.RUN

    def test_never_runs_nothing(self, runtime: Runtime, model: Path, tmp_path: Path) -> None:
        bundle = onnx_bridge.convert(model, tmp_path / "out", target="ref", dims=SIZES, prove="never")
        assert bundle.proof.level is Proof.NONE
        assert bundle.proof.unproven
        assert Stage.PROVE not in bundle.manifest.timings

    def test_random_numbers_are_not_compared(self, runtime: Runtime, tmp_path: Path) -> None:
        text = "(float[2, 3] x) => (float[2, 3] y) { r = RandomNormalLike(x) y = Add(x, r) }"
        path = write(tmp_path / "m.onnx", text)
        bundle = onnx_bridge.convert(path, tmp_path / "out", target="ref")
        assert bundle.proof.level is Proof.NONE
        assert "RandomNormalLike" in bundle.proof.unproven

    def test_host_partitions_frozen_inputs_and_models_in_memory(self, runtime: Runtime, tmp_path: Path) -> None:
        text = (
            "(float[n, 4] x, int64[1] k) => (float[a, 4] y, int64[b] z)"
            "{ t, i = TopK<axis=0>(x, k) y = Exp(t) f = Cast<to=1>(i) z = NonZero(f) }"
        )
        text = text.replace("int64[b] z", "int64[2, b] z")
        import onnx_ir as ir

        loaded = ir.load(write(tmp_path / "m.onnx", text))
        bundle = onnx_bridge.convert(loaded, tmp_path / "out", target="ref", dims={"n": 5}, freeze={"k": "[3]"})
        assert not bundle.wholly_on_migraphx
        assert bundle.proof.level is Proof.RUN

    def test_a_program_alone(self, runtime: Runtime, model: Path, tmp_path: Path) -> None:
        bundle = onnx_bridge.convert(model, tmp_path / "m.mxr", target="ref", dims={"N": 1, "H": 8, "W": 8})
        assert bundle.proof.level is Proof.RUN

    @pytest.mark.parametrize("precision", ["fp16", "int8"])
    def test_other_precisions_have_their_tolerances(
        self, runtime: Runtime, model: Path, tmp_path: Path, precision: str
    ) -> None:
        bundle = onnx_bridge.convert(
            model, tmp_path / "out", target="ref", dims={"N": 1, "H": 16, "W": 16}, precision=precision
        )
        assert bundle.proof.level is Proof.RUN
        assert bundle.proof.error

    def test_a_time_out_is_no_error(self, runtime: Runtime, tmp_path: Path) -> None:
        """MIGraphX is stopped in its run at real size; a witness takes its place."""
        text = "(float[1, 4, a, b] x, float[4, 4, 3, 3] w) => (float[1, 4, c, d] y) { y = Conv(x, w) }"
        path = write(tmp_path / "m.onnx", text)
        limits: dict[str, Any] = {"prove": "always", "prove_budget": 1.0, "timeout": 3.0}
        bundle = onnx_bridge.convert(path, tmp_path / "out", target="ref", dims={"a": 1500, "b": 1500}, **limits)
        assert bundle.proof.level is Proof.WITNESS
        assert "3 s" in bundle.proof.unproven

    @pytest.mark.parametrize("budget", [2.0, 1e-9])
    def test_a_model_that_the_reference_does_not_run(self, runtime: Runtime, tmp_path: Path, budget: float) -> None:
        """ONNX Runtime's CPU provider has no convolution of doubles."""
        weights = numpy_helper.from_array(np.ones((1, 1, 1, 1)), "w")
        text = "(double[1, 1, 4, 4] x) => (double[1, 1, 4, 4] y) { y = Conv(x, w) }"
        model = onnx.load(write(tmp_path / "m.onnx", text))
        model.graph.initializer.append(weights)
        onnx.save(model, tmp_path / "m.onnx")
        bundle = onnx_bridge.convert(tmp_path / "m.onnx", tmp_path / "out", target="ref", prove_budget=budget)
        assert bundle.proof.level is Proof.NONE
        assert bundle.proof.unproven
        assert not bundle.proof.comparable

    def test_no_comparison_is_advised_that_the_reference_refuses(
        self, runtime: Runtime, model: Path, tmp_path: Path
    ) -> None:
        """MIGraphX takes an opset that ONNX Runtime does not know."""
        newer = onnx.load(model)
        newer.opset_import[0].version = 99
        onnx.save(newer, tmp_path / "newer.onnx")
        shown = {}
        for path in (model, tmp_path / "newer.onnx"):
            words = ["convert", str(path), "-o", str(tmp_path / path.stem), "--dim", "H=8", "--dim", "W=8"]
            done = CliRunner().invoke(main.app, words)
            assert done.exit_code == (0 if path == model else NOT_DETERMINED), done.output
            shown[path] = done.stdout
        assert "proven" in shown[model]
        assert "check" in shown[model]
        assert re.search("^proven", shown[path], re.MULTILINE) is None
        assert "next: " not in shown[path]

    @pytest.mark.parametrize(
        ("words", "code"),
        [
            (["convert", "-o", "out"], NOT_DETERMINED),
            (["convert", "-o", "out", "--prove", "never"], 0),
            (["convert", "other.onnx", "-o", "many"], NOT_DETERMINED),
        ],
    )
    def test_a_sample_that_the_reference_refuses_is_no_proof(
        self, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], code: int
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for name in ("m.onnx", "other.onnx"):  # no square is 12
            write(Path(name), "(float[3, 4] x, int64[1] i) => (float[n] y) { s = Mul(i, i) y = Reshape(x, s) }")
        done = CliRunner().invoke(main.app, [words[0], "m.onnx", *words[1:]])
        assert done.exit_code == code, done.output
        assert ("proven: 2 none" if "many" in words else "unproven") in done.stdout


class WrongConstant(Pass):
    """A pass with a defect: it says that it changes nothing, and doubles a constant."""

    name = "wrong-constant"
    exactness = Exactness.BITWISE

    def run(self, model: Any, context: Context) -> Result:
        import onnx_ir as ir

        weight = model.graph.initializers["w"]
        weight.const_value = ir.tensor(weight.const_value.numpy() * 2, name="w")
        return Result(model, [Rewrite((), note="w")])


class RoundsOtherwise(Pass):
    """A pass that changes weights by one unit in the last place."""

    name = "rounds-otherwise"
    exactness = Exactness.ROUNDING

    def run(self, model: Any, context: Context) -> Result:
        import onnx_ir as ir

        array = model.graph.initializers["w"].const_value.numpy()
        signs = np.random.default_rng(5).integers(0, 2, array.shape) * 2 - 1
        moved = np.nextafter(array, np.float32(np.inf) * signs.astype(np.float32))
        model.graph.initializers["w"].const_value = ir.tensor(moved, name="w")
        return Result(model, [Rewrite((), note="w")])


class OnlyLarge(Pass):
    """A pass that decides by size: it makes an Identity in models with at least 64 columns."""

    name = "only-large"
    exactness = Exactness.BITWISE

    def run(self, model: Any, context: Context) -> Result:
        import onnx_ir as ir

        if model.graph.inputs[0].shape[3] < 64:
            return Result(model)
        output = model.graph.outputs[0]
        node = ir.node("Abs", [output], version=None)
        node.outputs[0].name, node.name = f"{output.name}/abs", "abs"
        node.outputs[0].type, node.outputs[0].shape = output.type, output.shape
        model.graph.append(node)
        model.graph.outputs[0] = node.outputs[0]
        node.outputs[0].name, output.name = output.name, f"{output.name}/before"
        return Result(model, [Rewrite((), ("abs",))])


class TestDifferences:
    @pytest.fixture(autouse=True)
    def registered(self) -> None:
        passes.register(WrongConstant)
        passes.register(OnlyLarge)

    @pytest.mark.parametrize("budget", [30.0, 0.01])
    def test_a_difference_is_an_error_and_the_earlier_bundle_stays(
        self, runtime: Runtime, model: Path, tmp_path: Path, budget: float
    ) -> None:
        out = tmp_path / "out"
        onnx_bridge.convert(model, out, target="ref", dims=SIZES, prove="never")
        before = {each.name: each.read_bytes() for each in out.iterdir()}
        with pytest.raises(ParityError) as caught:
            onnx_bridge.convert(
                model, out, target="ref", dims=SIZES, pipeline="wrong-constant,legalize", prove_budget=budget
            )
        error = caught.value
        assert error.output == "y"
        assert error.error is not None
        assert error.tolerance is not None
        assert error.error > 100 * error.tolerance
        assert error.hint is not None
        for word in ("bisect", str(model), "--pipeline", "--dim"):
            assert word in error.hint
        assert {each.name: each.read_bytes() for each in out.iterdir()} == before

    def test_a_difference_in_float16_that_is_one_in_float32_too(self, runtime: Runtime, tmp_path: Path) -> None:
        text = "(float16[2,8] x) => (float16[2,8] y) { y = MatMul(x, w) }"
        path, weights = tmp_path / "model.onnx", np.random.default_rng(0).standard_normal((8, 8)).astype(np.float16)
        models.save(tiny(text, w=weights), path)
        assert onnx_bridge.convert(path, tmp_path / "right", target="ref").wholly_on_migraphx
        with pytest.raises(ParityError) as caught:
            onnx_bridge.convert(path, tmp_path / "out", target="ref", pipeline="wrong-constant,legalize")
        assert caught.value.output == "y"
        assert not (tmp_path / "out").exists()

    def test_the_command_fails(
        self,
        runtime: Runtime,
        model: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def command(*more: str) -> tuple[int, dict[str, Any]]:
            dims = [f"--dim={name}=8" for name in SIZES]
            words = ["convert", str(model), "-o", str(tmp_path / "out"), "--target", "ref", *dims, *more, "--json"]
            monkeypatch.setattr("sys.argv", ["onnx-bridge", *words])
            with pytest.raises(SystemExit) as left:
                main.main()
            return int(left.value.code or 0), json.loads(capsys.readouterr().out)

        wrong = ["--pipeline", "wrong-constant,legalize"]
        code, answer = command(*wrong)
        assert (code, answer["error"]["kind"]) == (ParityError.exit_code, "ParityError")
        assert not (tmp_path / "out").exists()
        code, answer = command(*wrong, "--prove", "never")
        assert (code, answer["proof"]["level"]) == (0, Proof.NONE.value)
        code, answer = command()
        assert (code, answer["proof"]["level"]) == (0, Proof.RUN.value)

    def test_other_decisions_are_no_proof(self, runtime: Runtime, model: Path, tmp_path: Path) -> None:
        bundle = onnx_bridge.convert(
            model, tmp_path / "out", target="ref", dims=SIZES, pipeline="only-large,legalize", prove_budget=0.01
        )
        assert bundle.proof.level is Proof.NONE
        assert "decisions" in bundle.proof.unproven


class TestUndetermined:
    """What the reference changes itself when its inputs change by one unit in the last place is no difference."""

    def test_a_choice_between_equal_values(
        self, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """ArgMax of numbers that are equal but for rounding, where weights are off by one unit in the last place.

        Another evaluator may choose as MIGraphX does, which proves nothing: `check` does not ask it either.
        """
        monkeypatch.setattr(comparison, "second_opinion", lambda _, __, outputs, *___: compare(outputs, outputs))
        passes.register(RoundsOtherwise)
        rng = np.random.default_rng(0)
        column = rng.standard_normal((64, 1)).astype(np.float32)
        columns = column * (1 + rng.integers(-2, 3, (64, 24)).astype(np.float32) * np.float32(2**-23))
        text = "(float[32, 64] x) => (int64[32] y) { p = MatMul(x, w) y = ArgMax<axis=1, keepdims=0>(p) }"
        path = write(tmp_path / "m.onnx", text, w=columns)
        bundle = onnx_bridge.convert(path, tmp_path / "out", target="ref", pipeline="rounds-otherwise,legalize")
        assert bundle.proof.level is Proof.NONE
        assert "y" in bundle.proof.unproven

    def test_a_sample_that_contradicts_the_model(self, runtime: Runtime, tmp_path: Path) -> None:
        """The model declares ten numbers, whatever its input says."""
        text = "(int64 n) => (float[10] y) { y = HannWindow<periodic=0>(n) }"
        bundle = onnx_bridge.convert(write(tmp_path / "m.onnx", text), tmp_path / "out", target="ref")
        assert bundle.proof.level is Proof.NONE


class TestRequests:
    def test_wrong_ways(self, model: Path, tmp_path: Path) -> None:
        for wrong in ({"prove": "maybe"}, {"prove_budget": 0.0}):
            with pytest.raises(InputError):
                onnx_bridge.convert(model, tmp_path / "out", **wrong)

    @pytest.mark.parametrize(
        ("level", "asked", "wanted", "enough"),
        [
            (Proof.NONE, "never", "never", True),
            (Proof.NONE, "never", "auto", False),
            (Proof.NONE, "auto", "auto", True),
            (Proof.WITNESS, "auto", "always", False),
            (Proof.RUN, "auto", "always", True),
            (Proof.NONE, "always", "always", True),
            (Proof.RUN, "always", "never", True),
        ],
    )
    def test_which_bundles_are_proven_enough(self, level: Proof, asked: str, wanted: str, enough: bool) -> None:
        assert BundleProof(level).satisfies(asked, wanted) is enough

    def test_several_are_as_weak_as_the_weakest(self) -> None:
        strong = BundleProof(Proof.RUN, "compared", 1e-6, 1, 2.0, nodes=ProofCounts(run=3))
        weak = BundleProof(Proof.WITNESS, "by a witness", 1e-7, 1, 1.0, "too large", ProofCounts(1, 2, {"why": 1}))
        both = together({"a": strong, "b": weak})
        assert (both.level, both.error, both.samples, both.seconds) == (Proof.WITNESS, 1e-6, 2, 3.0)
        assert "b" in both.unproven
        assert both.nodes == ProofCounts(4, 2, {"why": 1})
        assert together({"a": strong}).level is Proof.RUN
        assert both.comparable
        assert not together({"a": strong, "b": BundleProof(comparable=False)}).comparable

    def test_buckets_share_the_budget_and_have_one_proof(self, runtime: Runtime, model: Path, tmp_path: Path) -> None:
        out, buckets = tmp_path / "out", {"H": [8, 16]}
        rest: dict[str, Any] = {"dims": {"N": 1, "W": 8}, "target": "ref"}
        made = onnx_bridge.convert(model, out, buckets=buckets, prove="never", **rest)
        assert made.proof.level is Proof.NONE
        made = onnx_bridge.convert(model, out, buckets=buckets, **rest)
        assert made.proof.level is Proof.RUN
        assert [onnx_bridge.load(each.path).proof.level for each in made.programs] == [Proof.RUN, Proof.RUN]
        before = (out / "H=8/manifest.json").read_text()
        onnx_bridge.convert(model, out, buckets=buckets, prove="never", **rest)
        assert (out / "H=8/manifest.json").read_text() == before, "what is proven more is kept"

    def test_a_manifest_without_a_proof_is_damaged(self, runtime: Runtime, model: Path, tmp_path: Path) -> None:
        bundle = onnx_bridge.convert(model, tmp_path / "out", target="ref", dims={"N": 1, "H": 4, "W": 4})
        values = bundle.manifest.to_json()
        with pytest.raises(InputError):
            Manifest.parse(json.dumps({**values, "proof": {"level": "magic"}}), "there")
        changed = replace(bundle.manifest, proof=replace(bundle.proof, seconds=1.0))
        assert Manifest.parse(json.dumps(changed.to_json()), "there") == changed


def test_channels_are_not_made_smaller(runtime: Runtime, tmp_path: Path) -> None:
    """Inference accepts any number of channels of a fixed input, ONNX Runtime only the right one."""
    weights = np.random.default_rng(0).standard_normal((4, 16, 3, 3)).astype(np.float32)
    text = "(float[1, 16, 64, 64] x) => (float[1, 4, b, c] y) { y = Conv(x, w) }"
    path = write(tmp_path / "m.onnx", text, w=weights)
    bundle = onnx_bridge.convert(path, tmp_path / "out", target="ref", prove_budget=0.05)
    assert bundle.proof.level is Proof.WITNESS
    assert "x [1, 16, 32, 32]" in bundle.proof.what


@pytest.mark.parametrize("dims", [{"rows": 96_000}, {"rows": 96_000, "features": 64}])
def test_a_size_that_follows_from_the_model_is_not_made_smaller(
    runtime: Runtime, tmp_path: Path, dims: dict[str, int]
) -> None:
    weights = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    text = "(float[rows, features] x) => (float[a, b] y) { m = MatMul(x, w) y = Relu(m) }"
    path = write(tmp_path / "m.onnx", text, w=weights)
    bundle = onnx_bridge.convert(path, tmp_path / "out", target="ref", dims=dims, prove_budget=0.01)
    assert bundle.proof.level is Proof.WITNESS
