"""Operators that draw run on the host, where every run draws anew, unless the user has their numbers frozen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_bridge
from onnx_bridge.conversion.diagnosis.explain import explain
from onnx_bridge.core.errors import RuntimeFailure
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.reference.reference import Reference
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from passes.graphs.scopes import Scope
from passes.probing.probe import Probe
from passes.rewriting.base import Status
from passes.shapes import inference

X = {"x": np.full((4, 32), 0.5, np.float32)}
TRAINING = "half = Constant<value = float {0.5}>() yes = Constant<value = bool {1}>()"
DRAWS = {
    "RandomNormal": "r = RandomNormal<shape=[4,32]>()",
    "RandomNormalLike": "r = RandomNormalLike(x)",
    "RandomUniform": "r = RandomUniform<shape=[4,32]>()",
    "RandomUniformLike": "r = RandomUniformLike<seed=1.0>(x)",
    "Bernoulli": "r = Bernoulli(x)",
    "Multinomial": "c = Multinomial<sample_size=32>(x) r = Cast<to=1>(c)",
    "Dropout": f"{TRAINING} r = Dropout(x, half, yes)",
}


def save(folder: Path, draw: str, opset: int = 17) -> Path:
    text = f"(float[4,32] x) => (float[4,32] y) {{ {draw} s = Softmax(x) e = Exp(r) y = Mul(s, e) }}"
    path = folder / "m.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> g {text}'), path)
    return path


@pytest.mark.parametrize(("operator", "opset"), [*((name, 17) for name in DRAWS), ("Bernoulli", 22), ("Dropout", 22)])
def test_each_run_draws_new_numbers(runtime: Runtime, tmp_path: Path, operator: str, opset: int) -> None:
    """Also where ONNX Runtime has the kernels for an earlier opset only."""
    bundle = onnx_bridge.convert(save(tmp_path, DRAWS[operator], opset), tmp_path / "b", target="ref")
    draw, rest = bundle.manifest.partitions
    (node,) = draw.host
    assert node.operator == (operator.removesuffix("Like") if operator.startswith("Random") else "RandomUniform")
    assert not draw.inputs and not rest.host and "draws new numbers in each run" in node.reason
    first, second = (bundle(X)["y"] for _ in range(2))
    assert not np.array_equal(first, second)
    assert not np.array_equal(onnx_bridge.load(bundle.path)(X)["y"], second)


@pytest.mark.parametrize("operator", DRAWS)
def test_numbers_that_are_frozen_run_on_migraphx(runtime: Runtime, tmp_path: Path, operator: str) -> None:
    path = save(tmp_path, DRAWS[operator])
    bundle = onnx_bridge.convert(path, tmp_path / "b", target="ref", pipeline="freeze-random{seed=3},default")
    assert bundle.wholly_on_migraphx
    np.testing.assert_array_equal(bundle(X)["y"], bundle(X)["y"])


def test_a_dropout_that_drops_nothing_runs_on_migraphx(runtime: Runtime, tmp_path: Path) -> None:
    path = save(tmp_path, DRAWS["Dropout"].replace("{0.5}", "{0}"))
    assert onnx_bridge.convert(path, tmp_path / "b", target="ref").wholly_on_migraphx


def test_bernoulli_is_one_with_the_probability_that_is_given(runtime: Runtime, tmp_path: Path) -> None:
    """The body that ONNX Runtime takes for it gives 0 with that."""
    path = tmp_path / "m.onnx"
    text = "(float[40,50] x) => (float[40,50] y) { y = Bernoulli(x) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 15]> g {text}'), path)
    given = {"x": np.full((40, 50), 0.1, np.float32)}
    assert Reference(path).run(given)["y"].mean() > 0.85
    assert onnx_bridge.convert(path, tmp_path / "b", target="ref")(given)["y"].mean() < 0.15


def test_notes_on_random_nodes(runtime: Runtime, tmp_path: Path) -> None:
    path = save(tmp_path, DRAWS["Bernoulli"])
    said = "draws new numbers in each run, and a compiled program would draw them once: freeze-random"
    with pytest.raises(
        RuntimeFailure, match=f"1 of .* nodes cannot run on MIGraphX: RandomUniform .*RandomUniform {said}"
    ):
        onnx_bridge.convert(path, tmp_path / "b", target="ref", host=False)
    (node,) = (each for each in onnx_bridge.doctor(path).nodes if each.operator == "Bernoulli")
    assert (node.verdict, node.action) == ("wrong", "host partition") and node.message.startswith(f"Bernoulli {said}")
    found = explain("legalize", path)
    (rewrite,), (skip,) = found.rewrites, found.skips
    assert rewrite.note.startswith(f"draw-first, since Bernoulli {said}")
    assert skip.node == "Bernoulli_0/RandomUniform" and skip.reason.startswith(f"RandomUniform {said}")


@pytest.mark.parametrize("draw", ["NormalLike", "NormalLike<seed = 1.0>"])
def test_a_loop_that_draws(runtime: Runtime, tmp_path: Path, draw: str) -> None:
    """Its turns are written out, each with a draw of its own, unless they go on from a common seed."""
    body = f"g (int64 i, bool c, float[4,32] s) => (bool d, float[4,32] t) {{ d = Identity(c) t = Random{draw}(s)"
    loop = f"three = Constant<value = int64 {{3}}>() yes = Constant<value = bool {{1}}>() a, r = Loop<body = {body}"
    path = tmp_path / "m.onnx"
    nodes = f"{loop} u = Mul(t, t) }}>(three, yes, x)".replace("float[4,32] t)", "float[4,32] t, float[4,32] u)")
    text = f"(float[4,32] x) => (float[4,32] a, float[3,4,32] r) {{ {nodes} }}"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 17]> g {text}'), path)
    bundle = onnx_bridge.convert(path, tmp_path / "b", target="ref")
    hosted = [node.operator for partition in bundle.manifest.partitions for node in partition.host]
    assert hosted == (["Loop"] if "seed" in draw else ["RandomNormal"] * 3)
    first, second = (bundle(X)["r"] for _ in range(2))
    assert len(np.unique([*first, *second], axis=0)) == 6


def test_random_nodes_of_unknown_shape_stay_on_the_host(runtime: Runtime, tmp_path: Path) -> None:
    """What cannot be asked about is tried with the rest, but for what is known to be wrong."""
    text = (
        "(float[4,32] x) => (float[a,b] y) { n = NonZero(x) f = Cast<to=1>(n) r = RandomNormalLike(f) y = Add(r, f) }"
    )
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 17]> g {text}'), path)
    bundle = onnx_bridge.convert(path, tmp_path / "b", target="ref")
    assert "RandomNormalLike draws new numbers" in bundle.manifest.host_reasons()


def test_verdicts_cannot_detect_randomness(runtime: Runtime) -> None:
    """MIGraphX takes it, and all of its runs give the same numbers."""
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 17]> g () => (float[9] y) { y = RandomNormal<shape=[9]>() }'
    )
    inference.infer(model)
    scope = Scope(model, model.graph)
    (verdict,) = ProbedRuntime(runtime, cache=False).verdicts([Probe.of(list(model.graph), scope)])
    assert verdict.status is Status.REJECTED and "draws new numbers" in verdict.message


def test_the_reference_of_a_newer_opset(tmp_path: Path) -> None:
    reference = Reference(save(tmp_path, DRAWS["RandomNormalLike"], 23))
    assert not np.array_equal(reference.run(X)["y"], reference.run(X)["y"])
