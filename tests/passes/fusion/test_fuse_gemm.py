"""fuse-gemm: products with a bias that become a Gemm, and those of which that would not leave fewer nodes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from passes.fusion.fuse_gemm import fuse_gemm
from passes.graphs import lineage
from passes.rewriting.base import Context
from passes.rewriting.pipeline import Pipeline
from tests.passes.harness import apply, model, operators, reasons, stops


def weight(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


W, B = weight(4, 5), weight(5)
PROJECTIONS = "p = MatMul(h, w) q = Add(p, b) y = Reshape(q, s) r = MatMul(h, v) t = Add(b, r) z = Reshape(t, s)"


class TestMatrices:
    @pytest.mark.parametrize("bias", [(5,), (1, 5), (1,), (), (1, 1)])
    @pytest.mark.parametrize("order", ["m, b", "b, m"])
    @pytest.mark.parametrize("rows", ["3", "n"])
    def test_a_bias(self, bias: tuple[int, ...], order: str, rows: str) -> None:
        m = model(f"(float[{rows},4] x) => (float[] y) {{ m = MatMul(x, w) y = Add({order}) }}", w=W, b=weight(*bias))
        apply(fuse_gemm, m)
        assert operators(m) == ["Gemm"]
        assert [value.name for value in m.graph[0].inputs if value is not None] == ["x", "w", "b"]

    @pytest.mark.parametrize("dtype", [np.float16, np.float64])
    def test_other_floats(self, dtype: Any) -> None:
        kind = np.dtype(dtype).name if dtype is np.float16 else "double"
        m = model(
            f"({kind}[3,4] x) => ({kind}[] y) {{ m = MatMul(x, w) y = Add(m, b) }}",
            w=weight(4, 5, dtype=dtype),
            b=weight(5, dtype=dtype),
        )
        apply(fuse_gemm, m, rtol=1e-2, atol=1e-2)
        assert operators(m) == ["Gemm"]

    def test_names_and_origins(self) -> None:
        m = model("(float[3,4] x) => (float[] z) { m = MatMul(x, w) y = Add(m, b) z = Neg(y) }", w=W, b=B)
        for node, name in zip(m.graph, ("product", "sum", "neg"), strict=True):
            node.name = name
        apply(fuse_gemm, m)
        assert m.graph[0].outputs[0].name == "y"
        assert set(json.loads(m.graph[0].metadata_props[lineage.ORIGIN])) == {"product", "sum"}

    def test_a_subgraph(self) -> None:
        m = model(
            """(float[3,4] x, bool c) => (float[3,5] y) { y = If (c) <
            then_branch = t () => (float[3,5] r) { m = MatMul(x, w) r = Add(m, b) },
            else_branch = f () => (float[3,5] q) { q = MatMul(x, w) }> }""",
            w=W,
            b=B,
        )
        apply(fuse_gemm, m, inputs={"x": weight(3, 4), "c": np.array(True)})
        assert operators(m) == ["If", "Gemm", "MatMul"]


class TestBiasOfZero:
    @pytest.mark.parametrize("shape", ["3,4", "2,3,4", "n,2,3,4"])
    @pytest.mark.parametrize("bias", [(5,), (1, 5), (1,), ()])
    @pytest.mark.parametrize("order", ["m, b", "b, m"])
    def test_the_product_is_left(self, shape: str, bias: tuple[int, ...], order: str) -> None:
        m = model(
            f"(float[{shape}] x) => (float[] y) {{ m = MatMul(x, w) y = Add({order}) }}", w=W, b=-np.zeros(bias, "f")
        )
        apply(fuse_gemm, m)
        assert operators(m) == ["MatMul"]
        assert m.graph.outputs[0].name == "y"

    def test_another_number(self) -> None:
        b = np.array([0, 0, np.nan, 0, 0], np.float32)
        m = model("(float[2,3,4] x) => (float[] y) { m = MatMul(x, w) y = Add(m, b) }", w=W, b=b)
        assert apply(fuse_gemm, m).skips
        assert operators(m) == ["MatMul", "Add"]

    def test_more_axes_than_the_product(self) -> None:
        m = model(
            "(float[2,3,4] x) => (float[] y) { m = MatMul(x, w) y = Add(m, b) }", w=W, b=np.zeros((2, 1, 1, 5), "f")
        )
        apply(fuse_gemm, m)
        assert operators(m) == ["MatMul", "Add"]

    def test_a_product_that_is_used_again(self) -> None:
        m = model(
            "(float[3,4] x) => (float[] y, float[] z) { m = MatMul(x, w) y = Add(m, b) z = Neg(m) }",
            w=W,
            b=np.zeros(5, "f"),
        )
        apply(fuse_gemm, m)
        assert operators(m) == ["MatMul", "Add", "Neg"]


class TestMoreDimensions:
    @pytest.mark.parametrize("batch", ["2", "n"])
    def test_between_reshapes(self, batch: str) -> None:
        m = model(
            f"""(float[{batch},12] x) => (float[] y)
            {{ h = Reshape(x, a) p = MatMul(h, w) q = Add(p, b) y = Reshape(q, s) }}""",
            a=ints(-1, 3, 4),
            s=ints(-1, 15),
            w=W,
            b=B,
        )
        apply(fuse_gemm, m)
        assert operators(m) == ["Reshape", "Gemm", "Reshape"]
        assert m.graph[2].inputs[1] is m.graph.initializers["s"]

    def test_a_shape_that_copies(self) -> None:
        m = model(
            "(float[2,12] x) => (float[] y) { h = Reshape(x, a) p = MatMul(h, w) q = Add(p, b) y = Reshape(q, s) }",
            a=ints(2, 3, 4),
            s=ints(0, -1),
            w=W,
            b=B,
        )
        apply(fuse_gemm, m)
        assert operators(m) == ["Reshape", "Gemm", "Reshape"]
        shape = m.graph[2].inputs[1]
        assert shape is not None
        assert shape.const_value is not None
        assert list(shape.const_value.numpy()) == [2, 15]

    def test_projections_of_one_input(self) -> None:
        """The products share a Reshape, which eliminate-common-subexpressions finds."""
        m = model(
            f"(float[6,4] x) => (float[] y, float[] z) {{ h = Reshape(x, a) {PROJECTIONS} }}",
            a=ints(2, 3, 4),
            s=ints(6, 5, 1),
            w=W,
            v=-W,
            b=B,
        )
        apply(fuse_gemm, m)
        assert operators(m).count("Gemm") == 2
        Pipeline.parse("share-constants,eliminate-common-subexpressions").run(m, Context())
        assert operators(m) == ["Reshape", "Gemm", "Reshape", "Gemm", "Reshape"]


class TestSkips:
    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (
                "h = Neg(x) p = MatMul(h, w) q = Add(p, b) y = Reshape(q, s)",
                "a Reshape of h would take the place of an Add",
            ),
            ("h = Reshape(x, a) p = MatMul(h, w) y = Add(p, b)", "takes and gives matrices"),
            ("h = Reshape(x, a) p = MatMul(h, w) y = Add(p, b) z = Reshape(y, s)", "takes and gives matrices"),
            ("h = Reshape(x, a) p = MatMul(h, w) q = Add(p, b) y = Reshape(q, k)", "is not known"),
            (
                "h = Reshape(x, a) p = MatMul(h, w) q = Add(p, b) y = Reshape(q, s) z = Neg(h)",
                "take the place of an Add",
            ),
        ],
    )
    def test_nothing_to_gain(self, body: str, reason: str) -> None:
        values = {"a": ints(2, 3, 4), "s": ints(6, 5), "w": W, "b": B}
        used = {name: value for name, value in values.items() if f", {name})" in body}
        m = model(f"(float[2,3,4] x, int64[2] k) => (float[] y) {{ {body} }}", **used)
        result = apply(fuse_gemm, m, inputs={"x": weight(2, 3, 4), "k": ints(6, 5)})
        assert not result.rewrites
        assert reason in reasons(result)[0]

    def test_projections_of_what_is_no_reshape(self) -> None:
        """As in an attention, of which MIGraphX makes one product with one bias."""
        m = model(
            f"(float[2,3,4] x) => (float[] y, float[] z) {{ h = Neg(x) {PROJECTIONS} }}",
            s=ints(6, 5, 1),
            w=W,
            v=-W,
            b=B,
        )
        assert not apply(fuse_gemm, m).rewrites

    @pytest.mark.parametrize(
        ("body", "constants"),
        [
            ("m = MatMul(x, v) y = Add(m, b)", {"b": B}),
            ("m = MatMul(x, w) y = Add(m, o)", {"w": W}),
            ("m = MatMul(x, w) y = Add(m, b)", {"w": W, "b": weight(3, 5)}),
            ("m = MatMul(x, w) y = Add(m, b)", {"w": W, "b": weight(3, 1)}),
            ("m = MatMul(x, w) y = Add(m, b)", {"w": W, "b": weight(1, 1, 5)}),
            ("m = MatMul(x, w) y = Add(m, m)", {"w": W}),
            ("m = MatMul(x, w) y = Sub(m, b)", {"w": W, "b": B}),
            ("m = MatMul(x, w) y = Add(m, b) z = Neg(m)", {"w": W, "b": B}),
            ("m = MatMul(x, w) y = Add(m, b)", {"w": weight(2, 4, 5), "b": B}),
            ("m = MatMul(x, w) y = Add(m, b)", {"w": weight(4, 1), "b": B}),
        ],
    )
    def test_no_such_product(self, body: str, constants: dict[str, np.ndarray]) -> None:
        m = model(f"(float[3,4] x, float[4,5] v, float[5] o) => (float[] y) {{ {body} }}", **constants)
        assert not apply(fuse_gemm, m).rewrites

    def test_integers(self) -> None:
        m = model(
            "(int32[3,4] x) => (int32[] y) { m = MatMul(x, w) y = Add(m, b) }",
            w=np.ones((4, 5), np.int32),
            b=np.ones(5, np.int32),
        )
        assert not apply(fuse_gemm, m).rewrites

    def test_a_vector(self) -> None:
        m = model("(float[4] x) => (float[] y) { m = MatMul(x, w) y = Add(m, b) }", w=W, b=B)
        assert not apply(fuse_gemm, m).rewrites

    def test_an_output(self) -> None:
        m = model("(float[3,4] x) => (float[] m, float[] y) { m = MatMul(x, w) y = Add(m, b) }", w=W, b=B)
        assert not apply(fuse_gemm, m).rewrites

    def test_a_quantized_weight(self) -> None:
        m = model(
            """(float[3,4] x) => (float[] y)
            { d = DequantizeLinear(w, c, z) m = MatMul(x, d) y = Add(m, b) }""",
            w=np.ones((4, 5), np.int8),
            c=np.array(0.1, np.float32),
            z=np.array(0, np.int8),
            b=B,
        )
        assert not apply(fuse_gemm, m).rewrites

    def test_an_unknown_rank(self) -> None:
        functions = """<domain: "local", opset_import: ["": 17]> f (x) => (y) {
            w = Constant<value = float[2,2] {1, 2, 3, 4}>() b = Constant<value = float[2] {1, 2}>()
            m = MatMul(x, w) y = Add(m, b) }"""
        m = model("(float[3,2] x) => (float[] y) { y = local.f(x) }", functions=functions)
        assert "number of dimensions" in reasons(apply(fuse_gemm, m))[0]

    def test_the_budget(self) -> None:
        body = " ".join(f"m{i} = MatMul(x, w) y{i} = Add(m{i}, b)" for i in range(3))
        m = model(f"(float[3,4] x) => (float[] y0, float[] y1, float[] y2) {{ {body} }}", w=W, b=B)
        assert stops(fuse_gemm, m, 2) == 2
        assert operators(m).count("MatMul") == 1
