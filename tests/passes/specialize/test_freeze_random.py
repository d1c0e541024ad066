"""freeze-random: what draws becomes a function of its inputs and of constants drawn once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.rewriting.base import Context
from passes.specialize.freeze_random import FreezeRandom
from tests.passes.device import Device
from tests.passes.harness import Array, model, operators, reasons, run

SETTINGS = settings(max_examples=20, derandomize=True, deadline=None)
DROPOUT = "Dropout(x, ratio, training)"
TRAINING = {"ratio": np.float32(0.25), "training": np.bool_(True)}


def frozen(
    text: str, inputs: Mapping[str, Array], *, opset: int = 17, seed: int = 0, **constants: Array
) -> list[Array]:
    """The results of a frozen model, which must be the same in each run."""
    source = model(text, opset=opset, **constants)
    result = FreezeRandom(seed=seed).run(source, Context())
    assert result.rewrites, reasons(result)
    assert not FreezeRandom(seed=seed).run(source, Context()).rewrites
    proto = ir.to_proto(source)
    onnx.checker.check_model(proto, full_check=True)
    first, second = run(proto, inputs), run(proto, inputs)
    for name, array in first.items():
        np.testing.assert_array_equal(array, second[name])
    return list(first.values())


def skipped(text: str, *, opset: int = 17, functions: str = "", **constants: Array) -> list[str]:
    """The reason of the only skip."""
    result = FreezeRandom().run(model(text, opset=opset, functions=functions, **constants), Context())
    assert not result.rewrites
    return reasons(result)


class TestGenerators:
    def test_normal(self) -> None:
        (y,) = frozen("() => (float[200,50] y) { y = RandomNormal<shape=[200,50],mean=3.0,scale=2.0>() }", {})
        assert abs(y.mean() - 3) < 0.1 and abs(y.std() - 2) < 0.1

    def test_uniform_like_in_another_dtype(self) -> None:
        text = "(float[200,50] x) => (float16[200,50] y) { y = RandomUniformLike<low=-1.0,high=3.0,dtype=10>(x) }"
        (y,) = frozen(text, {"x": np.zeros((200, 50), np.float32)})
        assert y.dtype == np.float16 and y.min() >= -1 and y.max() <= 3 and abs(y.astype(np.float32).mean() - 1) < 0.1

    def test_seeds(self) -> None:
        text = "() => (float[9] y, float[9] z) {{ y = RandomNormal<shape=[9]{0}>() z = RandomNormal<shape=[9]{0}>() }}"
        y, z = frozen(text.format(""), {})
        assert not np.array_equal(y, z)
        again, _ = frozen(text.format(""), {})
        other, _ = frozen(text.format(""), {}, seed=1)
        assert np.array_equal(y, again) and not np.array_equal(y, other)
        y, z = frozen(text.format(",seed=7.0"), {})
        assert np.array_equal(y, z)


class TestWhatDependsOnInputs:
    def test_bernoulli(self) -> None:
        p = np.repeat(np.array([[0.0], [0.25], [1.0]], np.float32), 4000, axis=1)
        (y,) = frozen("(float[3,4000] p) => (int32[3,4000] y) { y = Bernoulli<dtype=6>(p) }", {"p": p})
        assert set(np.unique(y)) == {0, 1}
        np.testing.assert_allclose(y.mean(axis=1), [0, 0.25, 1], atol=0.03)

    def test_multinomial(self) -> None:
        weights = np.array([[1, 2, 3, 4], [1, 0, 0, 1]], np.float64)
        with np.errstate(divide="ignore"):
            logits = np.log(weights).astype(np.float32) + 5
        (y,) = frozen(
            "(float[2,4] x) => (int64[2,5000] y) { y = Multinomial<sample_size=5000,dtype=7>(x) }", {"x": logits}
        )
        assert y.dtype == np.int64
        for row, wanted in zip(y, weights / weights.sum(axis=1, keepdims=True), strict=True):
            np.testing.assert_allclose(np.bincount(row, minlength=4) / 5000, wanted, atol=0.03)

    def test_dropout(self) -> None:
        x = np.full((40, 50), 3, np.float32)
        y, mask = frozen(
            f"(float[40,50] x) => (float[40,50] y, bool[40,50] m) {{ y, m = {DROPOUT} }}", {"x": x}, **TRAINING
        )
        assert abs(mask.mean() - 0.75) < 0.05
        np.testing.assert_allclose(y, np.where(mask, x / np.float32(0.75), 0), rtol=1e-6)

    def test_a_ratio_that_is_an_input(self) -> None:
        text = "(float16[40,50] x, float ratio) => (float16[40,50] y) { y = Dropout(x, ratio, training) }"
        x = np.full((40, 50), 3, np.float16)
        (y,) = frozen(text, {"x": x, "ratio": np.array(0.75, np.float32)}, training=np.bool_(True))
        assert set(np.unique(y)) == {0, 12} and abs((y != 0).mean() - 0.25) < 0.05

    def test_dropout_of_everything(self) -> None:
        text = f"(float[4] x) => (float[4] y) {{ y = {DROPOUT} }}"
        (y,) = frozen(text, {"x": np.ones(4, np.float32)}, ratio=np.float32(1), training=np.bool_(True))
        assert not y.any()


class TestSkips:
    def test_deterministic_nodes(self) -> None:
        assert skipped("(float[4] x) => (float[4] y) { y = Dropout(x) }") == []
        assert skipped(f"(float[4] x) => (float[4] y) {{ y = {DROPOUT} }}", **TRAINING | {"ratio": np.float32(0)}) == []
        assert (
            skipped(f"(float[4] x) => (float[4] y) {{ y = {DROPOUT} }}", **TRAINING | {"training": np.bool_(False)})
            == []
        )

    def test_an_unknown_shape(self) -> None:
        (reason,) = skipped("(float[n] x) => (float[n] y) { y = RandomNormalLike(x) }")
        assert reason == "the shape of the output is unknown: freeze the dynamic dimensions"

    def test_a_mode_that_is_an_input(self) -> None:
        text = "(float[4] x, float ratio, bool training) => (float[4] y) { y = Dropout(x, ratio, training) }"
        assert skipped(text) == ["training_mode is not constant: freeze training"]

    def test_old_opsets(self) -> None:
        (reason,) = skipped("(float[2,4] x) => (int32[2,1] y) { y = Multinomial(x) }", opset=9)
        assert "needs opset 11, and the model has 9" in reason

    def test_loop_bodies(self) -> None:
        text = (
            "(float[2] x) => (float[2] y) { y = Loop<body = g (int64 i, bool c, float[2] s) => (bool d, float[2] t)"
            " { d = Identity(c) r = RandomNormalLike(s) t = Add(s, r) }>(three, yes, x) }"
        )
        assert skipped(text, three=np.int64(3), yes=np.bool_(True)) == [
            "the node is in a loop body, which draws new numbers in each iteration"
        ]

    def test_functions(self) -> None:
        function = '<domain: "local", opset_import: ["" : 17]> f (a) => (b) { b = RandomNormalLike(a) }'
        (reason,) = skipped("(float[2] x) => (float[2] y) { y = local.f(x) }", functions=function)
        assert reason == "the node is in a function, which draws new numbers in each call: inline-functions comes first"


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    seed=st.integers(-5, 5),
)
@SETTINGS
def test_bernoulli_of_any_kind(shape: list[int], dtype: type, seed: int) -> None:
    p = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    kind = {np.float16: "float16", np.float32: "float", np.float64: "double"}[dtype]
    sizes = ",".join(map(str, shape))
    (y,) = frozen(f"({kind}[{sizes}] p) => ({kind}[{sizes}] y) {{ y = Bernoulli(p) }}", {"p": p}, seed=seed)
    np.testing.assert_array_equal(y, p)


@pytest.mark.parametrize(
    "call", ["RandomNormalLike(x)", "RandomUniformLike(x)", "Bernoulli(x)", "Multinomial<sample_size=3>(x)", DROPOUT]
)
def test_migraphx_computes_the_same(device: Device, call: str) -> None:
    kind = "int32[2,3]" if "Multi" in call else "float[2,5]"
    source = model(f"(float[2,5] x) => ({kind} y) {{ y = {call} }}", **(TRAINING if call is DROPOUT else {}))
    FreezeRandom().run(source, Context())
    x = np.random.default_rng(3).random((2, 5), np.float32)
    proto = ir.to_proto(source)
    (wanted,) = run(proto, {"x": x}).values()
    (actual,) = device.run(proto, {"x": x})
    np.testing.assert_allclose(actual, wanted, rtol=1e-6)


def test_the_operators_after() -> None:
    source = model("(float[4] p) => (float[4] y) { y = Bernoulli(p) }")
    FreezeRandom().run(source, Context())
    assert operators(source) == ["Less", "Cast"]
