"""fold-constants: what is not computed, and why: size, chance, other people's operators, and failures."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from passes.cleanup.fold_constants import FoldConstants
from passes.rewriting.base import Context
from tests.passes.harness import apply, operators, reasons
from tests.passes.helpers import initializers, mentioned, sealed, tiny, weigh

W = np.arange(6, dtype=np.float32).reshape(2, 3)


class TestGrowth:
    @pytest.mark.parametrize(
        "call",
        ["ConstantOfShape(s)", "Expand(w, s)", "Tile(w, s)", "Resize(w, , , s)", "Pad(w, p)"],
    )
    def test_what_would_become_too_large(self, call: str) -> None:
        """Terabytes: it would be noticed if this were computed."""
        huge = np.array([2**20, 2**20])
        constants = {"s": huge, "w": np.ones((1, 1), np.float32), "p": np.array([0, 0, 2**20, 2**20])}
        source = tiny(
            f"(float[a,b] x) => (float[a,b] y) {{ [big] e = {call} [n] h = Neg(e) y = Add(x, h) }}",
            **mentioned(call, constants),
        )
        result = FoldConstants().run(source, Context())
        assert len(operators(source)) == 3
        assert result.skips[0].node == "big"
        assert "larger than max-bytes" in result.skips[0].reason

    def test_more_dimensions_than_there_can_be(self) -> None:
        """ONNX Runtime computes it, and numpy has no such array."""
        text = "(float[2] x) => (float y) { e = Expand(w, s) y = ReduceSum(e) }"
        source = tiny(text, w=W[:1, :1], s=np.ones(65, np.int64))
        result = FoldConstants().run(source, Context())
        assert operators(source) == ["Expand", "ReduceSum"]
        assert "65 dimensions" in result.skips[0].reason

    @pytest.mark.slow
    def test_where_the_size_must_be_computed_first(self) -> None:
        source = tiny(
            """(float[a] x) => (float[a] y) {
                a = Mul(s, s) b = Mul(a, a) [big] e = ConstantOfShape(b) y = Add(x, e) }""",
            s=np.array([1000]),
        )
        result = FoldConstants().run(source, Context())
        assert operators(source) == ["ConstantOfShape", "Add"]
        assert [skip.node for skip in result.skips] == ["big"]
        assert not FoldConstants().run(source, Context()).rewrites

    @pytest.mark.parametrize(("limit", "folded"), [(23, False), (24, True)])
    def test_the_limit(self, limit: int, folded: bool) -> None:
        source = tiny(
            "(float[2,3] x) => (float[2,3] y) { e = Expand(w, s) y = Add(x, e) }", w=W[:1, :1], s=np.array([2, 3])
        )
        result = apply(FoldConstants(max_bytes=limit), source)
        assert bool(result.rewrites) == folded
        assert bool(result.skips) != folded

    def test_what_takes_the_place_of_a_weight_does_not_grow(self) -> None:
        source = tiny("(float[2,2] x) => (float[2,3] y) { t = Neg(w) y = MatMul(x, t) }", w=W)
        apply(FoldConstants(max_bytes=0), source)
        assert operators(source) == ["MatMul"]

    def test_what_is_used_elsewhere_as_well_does_grow(self) -> None:
        source = tiny("(float[2,3] x) => (float[2,3] y) { h = Add(x, w) [t] t = Neg(w) y = Mul(h, t) }", w=W)
        result = apply(FoldConstants(max_bytes=23), source)
        assert operators(source) == ["Add", "Neg", "Mul"]
        assert [skip.node for skip in result.skips] == ["t"]

    def test_what_comes_before_it_is_folded_nevertheless(self) -> None:
        source = tiny(
            "(float[8,3] x) => (float[8,3] y) { n = Neg(w) m = Exp(n) [e] e = Expand(m, s) y = Add(x, e) }",
            w=W[:1],
            s=np.array([8, 3]),
        )
        apply(FoldConstants(max_bytes=20), source)
        assert operators(source) == ["Expand", "Add"]

    def test_an_alias_of_a_weight_is_not_copied(self) -> None:
        source = tiny("(float[2,4096] x) => (float[2,4096] y) { i = Identity(w) h = MatMul(x, i) y = MatMul(h, w) }")
        weigh(source, "w", sealed(4096, 4096))
        assert not FoldConstants().run(source, Context()).rewrites


class TestOneRunIsEnough:
    """A pipeline leaves a second one out where nothing has changed since."""

    def test_weights_that_constant_nodes_hold(self) -> None:
        source = tiny(
            """(float[4] x) => (float[4] y) {
                c = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> () n = Neg(c) y = Add(x, n) }"""
        )
        step = FoldConstants(max_bytes=8)
        step.run(source, Context())
        assert operators(source) == ["Add"]
        assert set(initializers(source)) == {"n"}
        assert not step.run(source, Context()).rewrites

    def test_weights_that_nothing_else_takes_any_more(self) -> None:
        source = tiny(
            """(float[2,3] x) => (float[2,2] y) {
                t = Transpose(w) a = MatMul(x, t) s = ReduceMax <keepdims = 0> (w) y = Mul(a, s) }""",
            w=W,
        )
        step = FoldConstants(max_bytes=8)
        step.run(source, Context())
        assert set(initializers(source)) == {"t", "s"}
        assert not step.run(source, Context()).rewrites

    def test_shapes_that_functions_tell(self) -> None:
        source = tiny(
            "(float[6,4] x) => (int64[n] y) { a = local.f (x) s = Shape (a) y = Neg (s) }",
            functions="""<domain: "local", opset_import: ["": 17]> f (p) => (q) {
                a = Constant <value_ints = [-2, 3, 4]> () s = Abs (a) q = Reshape (p, s) }""",
        )
        step = FoldConstants()
        step.run(source, Context())
        assert operators(source)[0] == "Identity"
        assert not step.run(source, Context()).rewrites


class TestRefusals:
    @pytest.mark.parametrize(
        "call",
        [
            "RandomNormal <shape = [2, 3]> ()",
            "RandomUniform <shape = [2, 3]> ()",
            "RandomNormalLike(w)",
            "RandomUniformLike(w)",
            "Bernoulli(w)",
            "Dropout(w, half, true)",
        ],
    )
    def test_random_operators(self, call: str) -> None:
        constants = {"w": W / 6, "half": np.float32(0.5), "true": np.array(True)}
        source = tiny(
            f"(float[2,3] x) => (float[2,3] y) {{ [r] r = {call} n = Neg(r) y = Add(x, n) }}",
            **mentioned(call, constants),
        )
        result = FoldConstants().run(source, Context())
        assert len(operators(source)) == 3
        assert [(skip.node, skip.reason) for skip in result.skips] == [("r", "it is random")]

    def test_random_operators_in_a_branch(self) -> None:
        source = tiny(
            """(float[2,3] x) => (float[2,3] y) {
                [i] r = If (c) <then_branch = t () => (float[2,3] u) { u = RandomNormalLike(w) },
                                else_branch = e () => (float[2,3] v) { v = Neg(w) }>
                y = Add(x, r) }""",
            w=W,
            c=np.array(True),
        )
        result = FoldConstants().run(source, Context())
        assert operators(source) == ["RandomNormalLike", "Add"]
        assert "it is random" in [skip.reason for skip in result.skips]

    def test_dropout_in_inference(self) -> None:
        source = tiny("(float[2,3] x) => (float[2,3] y) { d = Dropout(w) y = Add(x, d) }", w=W)
        apply(FoldConstants(), source)
        assert operators(source) == ["Add"]

    def test_quantized_constants(self) -> None:
        source = tiny(
            """(float[2,3] x) => (float[2,3] y) {
                q = QuantizeLinear(w, s, z) d = DequantizeLinear(q, s, z) n = Neg(d) y = Add(x, n) }""",
            w=W,
            s=np.float32(0.1),
            z=np.int8(0),
        )
        result = apply(FoldConstants(), source)
        assert not result.rewrites
        assert not result.skips

    def test_operators_of_others(self) -> None:
        source = tiny("(float[2,3] x) => (float[2,3] y) { [g] g = com.microsoft.Gelu(w) y = Add(x, g) }", w=W)
        source.opset_imports["com.microsoft"] = 1
        result = apply(FoldConstants(), source)
        assert reasons(result) == ["com.microsoft::Gelu is no operator of ONNX"]

    def test_sequences(self) -> None:
        source = tiny(
            """(float[2,3] x, int64 i) => (float[2,3] y) {
                s = SequenceConstruct(w, w) a = SequenceAt(s, i) y = Add(x, a) }""",
            w=W,
        )
        result = apply(FoldConstants(), source, inputs={"x": W, "i": np.array(0)})
        assert not result.rewrites

    def test_initializers_that_callers_may_override(self) -> None:
        source = tiny("(float[2,3] x, float[2,3] w) => (float[2,3] y) { n = Neg(w) y = Add(x, n) }", w=W)
        assert not FoldConstants().run(source, Context()).rewrites


class TestFailures:
    def test_one_bad_node_among_good_ones(self) -> None:
        """An integer division by zero ends the session of all."""
        good = " ".join(f"g{i} = Add(w, k{i}) h{i} = Add(x, g{i})" for i in range(9))
        source = tiny(
            f"""(int64[2] x) => (int64[2] y) {{
                {good} a = Neg(w) [bad] b = Mod(a, zero) c = Neg(b) d = Add(x, c) y = Add(d, h8) }}""",
            w=np.array([1, 2]),
            zero=np.array([0, 1]),
            **{f"k{i}": np.array([i, i]) for i in range(9)},
        )
        result = FoldConstants().run(source, Context())
        assert [skip.node for skip in result.skips] == ["bad"]
        assert result.skips[0].reason.startswith("ONNX Runtime could not compute it: ")
        assert [node for node in operators(source) if node != "Add"] == ["Mod", "Neg"]
        assert {f"g{i}" for i in range(9)} | {"a"} <= set(initializers(source))
        assert not FoldConstants().run(source, Context()).rewrites

    def test_kernels_that_onnx_runtime_lacks(self) -> None:
        w = W.astype(ml_dtypes.bfloat16)
        calls = " ".join(f"[n{i}] n{i} = Neg(t{i}) t{i + 1} = Transpose(n{i})" for i in range(30))
        source = tiny(
            f"(bfloat16[2,3] x) => (bfloat16[2,3] y) {{ t0 = Transpose(w) {calls} u = Transpose(t30) y = Add(x, u) }}",
            w=w,
        )
        result = FoldConstants().run(source, Context())
        assert {skip.node for skip in result.skips} == {"n0"}
        assert "Could not find an implementation for Neg" in result.skips[0].reason
        assert set(initializers(source)) == {"t0"}
        np.testing.assert_array_equal(initializers(source)["t0"], w.T)

    @pytest.mark.parametrize(
        ("call", "constants"),
        [
            ("MatMul(a, b)", {"a": np.ones((3, 0), np.float32), "b": np.ones((5, 0, 3), np.float32)}),
            ("MatMul(a, b)", {"a": np.ones((5, 3, 0), np.float32), "b": np.ones(0, np.float32)}),
            ("MatMulInteger(a, b)", {"a": np.ones((3, 0), np.uint8), "b": np.ones((0, 3), np.uint8)}),
            ("ConvInteger(a, b)", {"a": np.ones((1, 0, 4, 4), np.uint8), "b": np.ones((2, 0, 3, 3), np.uint8)}),
            ("Conv(a, b)", {"a": np.ones((1, 0, 4, 4), np.float32), "b": np.ones((2, 0, 3, 3), np.float32)}),
        ],
    )
    def test_sums_without_terms_that_onnx_runtime_leaves_unwritten(
        self, call: str, constants: dict[str, np.ndarray]
    ) -> None:
        """Else the result would be what the memory of the process held before."""
        source = tiny(f"() => (float[n] y) {{ [bad] p = {call} s = Shape(p) y = Cast <to = 1> (p) }}", **constants)
        result = FoldConstants().run(source, Context())
        assert operators(source)[0] == call.partition("(")[0]
        assert {skip.node for skip in result.skips} == {"bad"}

    def test_sums_without_terms_that_onnx_runtime_writes(self) -> None:
        constants = {"a": np.ones((5, 3, 0), np.float32), "b": np.ones((0, 3), np.float32)}
        source = tiny("(float[5,3,3] x) => (float[5,3,3] y) { p = MatMul(a, b) y = Add(x, p) }", **constants)
        FoldConstants().run(source, Context())
        assert operators(source) == ["Add"]
        assert not initializers(source)["p"].any()

    def test_patience_ends(self) -> None:
        calls = " ".join(f"a{i} = Mod(w, z{i}) b{i} = Add(x, a{i})" for i in range(80))
        source = tiny(
            f"(int32[1] x) => (int32[1] y) {{ {calls} y = Add(b0, b1) }}",
            w=np.ones(1, np.int32),
            **{f"z{i}": np.zeros(1, np.int32) for i in range(80)},
        )
        result = FoldConstants().run(source, Context())
        assert len(result.skips) == 65
        assert "no more were tried" in reasons(result)[-1]
