"""fold-constants: what becomes an initializer, with which numbers, and what is left alone and why."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from passes.cleanup.fold_constants import FoldConstants
from passes.graphs.tensors import constant_of
from passes.graphs.traversal import subgraphs
from passes.rewriting.base import Context
from tests.passes.harness import all_nodes, apply, operators, reasons, run, stops
from tests.passes.helpers import initializers, tiny

W = np.arange(6, dtype=np.float32).reshape(2, 3)


def strings(*values: str) -> ir.StringTensor:
    return ir.StringTensor([value.encode() for value in values], shape=ir.Shape([len(values)]))


class TestIslands:
    @pytest.mark.parametrize("use", ["y = Add(x, a)", "y = Identity(x) o = Identity(a)"])
    def test_one_output_of_a_node_that_stays(self, use: str) -> None:
        """Nodes without effect use the other; its name may be defined only once."""
        outputs = "float[1,3] y, float[1,3] a" if "o =" in use else "float[1,3] y"
        source = tiny(
            f"(float[1,3] x) => ({outputs}) {{ a, b = Split <axis = 0> (w) d = Neg(b) {use} }}", w=W, opset=11
        )
        run_before = run(ir.to_proto(source))
        FoldConstants().run(source, Context())
        after = ir.to_proto(source)
        onnx.checker.check_model(after)
        for name, array in run(after).items():
            np.testing.assert_array_equal(array, run_before[name])

    @pytest.mark.parametrize("text", ["o = Add(r, e)", "k = Constant <value = float[2] {1, 2}> () o = Add(r, k)"])
    def test_a_body_of_before_ir_version_4(self, text: str) -> None:
        """A subgraph has no initializers then."""
        source = tiny(
            f"""(float[2] x) => (float[2] y) {{ y = Loop(n, c, x) <body = b (int64 i, bool g, float[2] r)
            => (bool d, float[2] o) {{ e = Add(v, v) {text} d = Identity(g) }}> }}""",
            ir_version=3,
            opset=8,
            **{"n": np.array(3), "c": np.array(True), "v": np.ones(2, np.float32)},
        )
        for name in list(source.graph.initializers):
            source.graph.inputs.append(source.graph.initializers[name])
        given = {"x": np.zeros(2, np.float32)}
        expected = run(ir.to_proto(source), given)
        FoldConstants().run(source, Context())
        np.testing.assert_array_equal(run(ir.to_proto(source), given)["y"], expected["y"])
        (body,) = subgraphs(source.graph[-1])
        assert not body.initializers

    def test_a_chain(self) -> None:
        source = tiny(
            "(float[2,3] x) => (float[2,3] y) { [a] a = Add(w, v) [b] b = Mul(a, v) [c] y = Add(x, b) }",
            w=W,
            v=W[:1] + 1,
        )
        result = apply(FoldConstants(), source)
        assert operators(source) == ["Add"]
        assert set(initializers(source)) == {"b"}
        np.testing.assert_array_equal(initializers(source)["b"], (W + W[:1] + 1) * (W[:1] + 1))
        value = source.graph.initializers["b"]
        assert (value.dtype, value.shape) == (ir.DataType.FLOAT, ir.Shape([2, 3]))
        assert [rewrite.before for rewrite in result.rewrites] == [("b", "a")]
        assert result.rewrites[0].note == "b is constant"

    def test_several_that_share_and_have_several_outputs(self) -> None:
        source = tiny(
            """(float[1,3] x) => (float[1,3] y, float[1,3] z) {
                a = Neg(w) p, q = Split <axis = 0> (a) s = Exp(p) y = Add(x, s) t = Add(p, q) z = Mul(x, t) }""",
            w=W,
        )
        apply(FoldConstants(), source)
        assert operators(source) == ["Add", "Mul"]
        assert set(initializers(source)) == {"s", "t"}

    def test_weights_that_something_else_uses_stay(self) -> None:
        source = tiny("(float[2,3] x) => (float[3,3] y) { t = Transpose(w) h = Add(x, w) y = MatMul(t, h) }", w=W)
        apply(FoldConstants(), source)
        assert set(initializers(source)) == {"w", "t"}

    def test_several_that_lead_to_one_another(self) -> None:
        source = tiny(
            """(float[2,3] x) => (float[2,3] b, float[2,3] y) {
                [a] a = Neg(w) [b] b = Exp(a) [c] c = Neg(b) [d] d = Exp(c) e = Add(x, c) y = Add(e, d) }""",
            w=W,
        )
        result = apply(FoldConstants(), source)
        assert operators(source) == ["Identity", "Add", "Add"]
        assert [(rewrite.before, rewrite.after) for rewrite in result.rewrites] == [
            (("b", "a"), ("b/Identity",)),
            (("c",), ()),
            (("d",), ()),
        ]

    @pytest.mark.slow
    def test_a_long_one(self) -> None:
        links = " ".join(f"a{i + 1} = Neg(a{i})" for i in range(3000))
        source = tiny(f"(float[2,3] x) => (float[2,3] y) {{ {links} y = Add(x, a3000) }}", a0=W)
        apply(FoldConstants(), source)
        assert operators(source) == ["Add"]

    def test_nothing(self) -> None:
        assert not apply(FoldConstants(), tiny("(float[2,3] x) => (float[2,3] y) { y = Add(x, w) }", w=W)).rewrites

    def test_what_nothing_uses_is_not_computed(self) -> None:
        source = tiny("(float[2,3] x) => (float[2,3] y) { a = Neg(w) y = Exp(x) }", w=W)
        assert not apply(FoldConstants(), source).rewrites


class TestOutputs:
    def test_a_constant_output_is_handed_on(self) -> None:
        source = tiny("(float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Neg(w) z = Add(x, y) }", w=W)
        apply(FoldConstants(), source)
        assert operators(source) == ["Identity", "Add"]
        assert [value.name for value in source.graph.outputs] == ["y", "z"]
        assert set(initializers(source)) == {"y/value"}

    def test_identities_and_constants_may_stay_outputs(self) -> None:
        source = tiny(
            "(float[2] x) => (float[2,3] y, float z) { y = Identity(w) z = Constant <value_float = 2.0> () }", w=W
        )
        assert not apply(FoldConstants(), source).rewrites


class TestConstantNodes:
    @pytest.mark.parametrize(
        ("attribute", "array"),
        [
            ("value_float = 2.5", np.float32(2.5)),
            ("value_floats = [1.0, 2.0]", np.array([1, 2], np.float32)),
            ("value_int = 7", np.int64(7)),
            ("value_ints = [7, 8]", np.array([7, 8])),
            ("value = int8[1] {3}", np.array([3], np.int8)),
            ("value = int64[0] {}", np.zeros(0, np.int64)),
        ],
    )
    def test_lifted(self, attribute: str, array: np.ndarray) -> None:
        source = tiny(f"(bool b) => (o) {{ k = Constant <{attribute}> () o = Where(b, k, k) }}")
        result = FoldConstants().run(source, Context())
        assert [rewrite.note for rewrite in result.rewrites] == ["k is an initializer"]
        found = initializers(source)["k"]
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found, array)

    def test_strings(self) -> None:
        source = tiny(
            """(string[2] x) => (bool[2] y, bool[2] z) {
                a = Constant <value_string = "ü"> () b = Constant <value_strings = ["ü", "b"]> ()
                y = Equal(x, a) z = Equal(x, b) }""",
            opset=19,
        )
        result = apply(FoldConstants(), source, inputs={"x": np.array(["ü", "c"], object)})
        assert len(result.rewrites) == 2
        assert operators(source) == ["Equal", "Equal"]

    def test_they_count_as_constants(self) -> None:
        """Halving in floating point: truncating early would give zero."""
        source = tiny(
            """(float[2] x) => (float[2] y) {
                a = Constant <value_int = 1> () b = Cast <to = 1> (a) h = Constant <value_float = 0.5> ()
                c = Mul(b, h) d = Mul(c, c) y = Add(x, d) }"""
        )
        apply(FoldConstants(), source)
        assert operators(source) == ["Add"]
        assert initializers(source) == {"d": np.float32(0.25)}


class TestTypes:
    @pytest.mark.parametrize(
        "dtype",
        [
            np.float64,
            np.float16,
            np.int8,
            np.uint8,
            np.int16,
            np.uint16,
            np.int32,
            np.uint32,
            np.uint64,
            np.bool_,
            ml_dtypes.bfloat16,
            ml_dtypes.float8_e4m3fn,
            ml_dtypes.float8_e5m2fnuz,
        ],
    )
    def test_arrays_of(self, dtype: Any) -> None:
        w = np.array([[1, 0, 1], [0, 1, 1]]).astype(dtype)
        source = tiny(
            """(bool c) => (y) {
                t = Transpose(w)
                y = If (c) <then_branch = a () => (p) { p = Identity(t) },
                            else_branch = b () => (q) { q = Identity(t) }> }""",
            opset=21,
            w=w,
        )
        FoldConstants().run(source, Context())
        found = source.graph.initializers["t"]
        assert found.const_value is not None
        assert found.dtype == ir.DataType.from_numpy(np.dtype(dtype))
        np.testing.assert_array_equal(
            found.const_value.numpy().view(np.uint8), np.ascontiguousarray(w.T).view(np.uint8)
        )

    def test_four_bits(self) -> None:
        """Neither computed nor broken."""
        w = np.array([[1, -2, 3], [4, -5, 6]]).astype(ml_dtypes.int4)
        source = tiny(
            "(float[3,2] x) => (float[3,2] y) { t = Transpose(w) d = DequantizeLinear(t, s) y = Add(x, d) }",
            opset=21,
            w=w,
            s=np.float32(0.5),
        )
        result = apply(FoldConstants(), source)
        assert not result.rewrites
        assert "INT4" in reasons(result)[0]

    def test_strings(self) -> None:
        source = tiny(
            "(string[2] x) => (string[2] y) { c = StringConcat(w, v) y = StringConcat(x, c) }",
            opset=20,
            w=strings("ü", "b"),
            v=strings("c", ""),
        )
        FoldConstants().run(source, Context())
        assert operators(source) == ["StringConcat"]
        assert run(ir.to_proto(source), {"x": np.array(["1", "2"], object)})["y"].tolist() == ["1üc", "2b"]

    @pytest.mark.parametrize(
        "array", [np.zeros((0, 3), np.float32), np.zeros((0, 3), ml_dtypes.bfloat16), np.float32(2), np.array(True)]
    )
    def test_empty_arrays_and_scalars(self, array: np.ndarray) -> None:
        source = tiny(
            "(bool c) => (y) { t = Squeeze(w) u = Unsqueeze(t, z) y = Where(c, u, u) }",
            w=np.asarray(array)[None],
            z=np.array([0]),
        )
        FoldConstants().run(source, Context())
        found = source.graph.initializers["u"].const_value
        assert found is not None
        assert tuple(found.shape) == (1, *np.shape(array))
        assert found.numpy().dtype == array.dtype

    def test_large_weights_are_fed(self) -> None:
        w = np.random.default_rng(0).standard_normal((64, 64), np.float32)
        source = tiny(
            """(float[2,64] x) => (float[2,64] y) {
                t = Transpose(w) v = Cast <to = 10> (t) c = Cast <to = 1> (v) y = MatMul(x, c) }""",
            w=w,
        )
        apply(FoldConstants(), source)
        np.testing.assert_array_equal(initializers(source)["c"], w.T.astype(np.float16).astype(np.float32))


class TestControlFlow:
    def test_branches_whose_captures_are_constant(self) -> None:
        source = tiny(
            """(float[2,3] x) => (float[2,3] y) {
                n = Neg(w)
                i = If (c) <then_branch = t () => (float[2,3] u) { h = Exp(n) u = Add(h, w) },
                            else_branch = e () => (float[2,3] v) { h = Neg(n) v = Identity(h) }>
                y = Add(x, i) }""",
            w=W,
            c=np.array(True),
        )
        apply(FoldConstants(), source)
        assert operators(source) == ["Add"]

    def test_loops(self) -> None:
        source = tiny(
            """(float[2,3] x) => (float[2,3] y) {
                i = Loop (n, c, w) <body = b (int64 k, bool d, float[2,3] u) => (bool e, float[2,3] v) {
                    e = Identity(d) v = Add(u, w) }>
                y = Add(x, i) }""",
            w=W,
            c=np.array(True),
            n=np.array(3),
        )
        apply(FoldConstants(), source)
        np.testing.assert_array_equal(initializers(source)["i"], 4 * W)

    def test_within_branches(self) -> None:
        """Names may be used again in another branch; what is constant outside is constant within."""
        source = tiny(
            """(float[2,3] x, bool c) => (float[2,3] y) {
                n = Neg(w)
                y = If (c) <then_branch = t () => (float[2,3] u) {
                                h = Exp(n) s = Shape(x) z = ConstantOfShape(s) k = Add(h, z) u = Add(k, x) },
                            else_branch = e () => (float[2,3] v) { h = Abs(n) v = Add(h, x) }> }""",
            w=W,
        )
        apply(FoldConstants(), source)
        assert operators(source) == ["If", "Add", "Add"]
        assert set(initializers(source)) == {"k", "h"}

    def test_constant_results_of_branches(self) -> None:
        source = tiny(
            """(bool c) => (float[2,3] y) {
                y = If (c) <then_branch = t () => (float[2,3] u) { u = Exp(w) },
                            else_branch = e () => (float[2,3] v) {
                                v = Constant <value = float[2,3] {1, 2, 3, 4, 5, 6}> () }> }""",
            w=W,
        )
        apply(FoldConstants(), source)
        assert operators(source) == ["If", "Identity"]


class TestFunctions:
    def test_results_are_constant_nodes(self) -> None:
        source = tiny(
            "(float[2] x) => (float[2] y) { y = local.f <k = 2.0> (x) }",
            functions="""<domain: "local", opset_import: ["": 17]> f <k> (p) => (q) {
                a = Constant <value_float = 2.0> () b = Mul(a, a) c = Add(b, a)
                d = Constant <value_float: float = @k> () e = Elu <alpha: float = @k> (c)
                s = Shape(p) t = Cast <to = 1> (s)
                f = Mul(d, e) g = Add(c, f) h = Add(p, g) q = Mul(h, t) }""",
        )
        apply(FoldConstants(), source)
        function = next(iter(source.functions.values()))
        expected = ["Constant", "Constant", "Elu", "Shape", "Cast", "Mul", "Add", "Add", "Mul"]
        assert [node.op_type for node in function] == expected
        constant = constant_of(function[0])
        assert constant is not None
        assert constant.numpy() == 6
        assert function[0].outputs[0].name == "c"

    def test_a_result_that_leads_to_another(self) -> None:
        source = tiny(
            "(float[1] x) => (float[1] y) { y = local.f(x) }",
            functions="""<domain: "local", opset_import: ["": 17]> f (p) => (q) {
                a = Constant <value_float = 2.0> () b = Neg(a) c = Exp(b) d = Add(p, b) q = Mul(d, c) }""",
        )
        apply(FoldConstants(), source)
        assert operators(source) == ["f", "Add", "Mul"]

    @pytest.mark.parametrize("opset", [7, 8, 9])
    def test_old_opsets_have_no_constants_of_integers(self, opset: int) -> None:
        """What shapes imply, what is computed, and booleans; floats are folded."""
        source = tiny(
            "(float[1,4] x) => (float[4,1] y) { y = local.f(x) }",
            functions=f"""<domain: "local", opset_import: ["": {opset}]> f (p) => (q) {{
                k = Constant <value = float[4,1] {{1, 1, 1, 0}}> () s = Shape(k) c = Cast <to = 7> (k) n = Neg(k)
                b = Cast <to = 9> (k) i = Not(b) j = Cast <to = 1> (i) m = Cast <to = 1> (c)
                a = Reshape(p, s) d = Add(a, j) e = Mul(d, m) q = Add(e, n) }}""",
            opset=opset,
        )
        apply(FoldConstants(), source)
        assert ("Cast" in operators(source)) == ("Shape" in operators(source)) == (opset < 9)
        assert "Neg" not in operators(source)

    def test_calls_are_not_computed(self) -> None:
        source = tiny(
            "(float[2,3] x) => (float[2,3] y) { n = local.Neg(w) y = Add(x, n) }",
            functions='<domain: "local", opset_import: ["": 17]> Neg (p) => (q) { q = Exp(p) }',
            w=W,
        )
        assert not apply(FoldConstants(), source).rewrites


def test_before_ir_version_4() -> None:
    source = tiny(
        "(float[2,3] x, float[2,3] w) => (float[2,3] y) { n = Neg(w) y = Add(x, n) }", opset=9, ir_version=3, w=W
    )
    FoldConstants().run(source, Context())
    assert [node.op_type for node in all_nodes(source)] == ["Add"]
    assert [value.name for value in source.graph.inputs] == ["x", "n"]
    assert set(initializers(source)) == {"n"}


def test_the_budget() -> None:
    text = """(float[2,3] x) => (float[2,3] y) {
        a = Neg(w) b = Add(x, a) c = Exp(w) k = Constant <value_float = 1.0> () d = Add(b, k) y = Add(d, c) }"""
    assert [stops(FoldConstants(), tiny(text, w=W), limit) for limit in range(5)] == [0, 1, 2, 3, 3]
