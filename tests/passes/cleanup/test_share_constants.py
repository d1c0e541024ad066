"""share-constants: what is equal in every bit, where it can be named, and what must be left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.cleanup.share_constants import ShareConstants
from passes.graphs.tensors import TensorKey
from passes.rewriting.base import Context
from tests.passes.harness import apply, model, reasons, run, stops

ONES = np.ones(2, np.float32)
SCALARS = {"n": np.array(2), "c": np.array(True), "x": np.array([1.0, 2.0], np.float32)}


def initializers(m: ir.Model) -> set[str]:
    return set(m.graph.initializers)


class TestMatches:
    def test_one_for_all(self) -> None:
        m = model("(float[2] x) => (float[2] y) { p = Add(x, a) q = Mul(p, b) y = Sub(q, c) }", a=ONES, b=ONES, c=ONES)
        result = apply(ShareConstants(), m)
        assert initializers(m) == {"a"}
        assert [rewrite.note for rewrite in result.rewrites] == ["b is a", "c is a"]

    def test_twice_in_one_node(self) -> None:
        m = model("(float[2] x) => (float[2] y) { p = Where(c, a, b) y = Add(x, p) }", a=ONES, b=ONES, c=ONES > 0)
        apply(ShareConstants(), m)
        assert initializers(m) == {"a", "c"}

    @pytest.mark.parametrize("size", [1000, 5000, 100_000])
    def test_a_difference_anywhere(self, size: int) -> None:
        """Before and behind the bytes that are read of every tensor."""
        a = np.zeros(size, np.float32)
        for place in (0, size // 2, size - 1):
            b = a.copy()
            b[place] = 1
            m = model(
                f"(float[{size}] x) => (float[{size}] y) {{ p = Add(x, a) q = Mul(p, b) y = Add(q, c) }}", a=a, b=b, c=b
            )
            apply(ShareConstants(), m)
            assert initializers(m) == {"a", "b"}

    def test_before_ir_version_4(self) -> None:
        m = model("(float[2] x) => (float[2] y) { p = Add(x, a) y = Mul(p, b) }", a=ONES, b=ONES, opset=9)
        m.ir_version = 3
        m.graph.inputs.extend(m.graph.initializers.values())
        ShareConstants().run(m, Context())
        proto = ir.to_proto(m)
        onnx.checker.check_model(proto, full_check=True)
        assert [value.name for value in proto.graph.input] == ["x", "a"]
        np.testing.assert_array_equal(run(proto, {"x": 2 * ONES})["y"], 3 * ONES)

    def test_the_budget(self) -> None:
        m = model("(float[2] x) => (float[2] y) { p = Add(x, a) q = Mul(p, b) y = Sub(q, c) }", a=ONES, b=ONES, c=ONES)
        assert stops(ShareConstants(), m, 1) == 1
        assert initializers(m) == {"a", "c"}


class TestBits:
    def test_signs_of_zero(self) -> None:
        zero = np.zeros(2, np.float32)
        m = model("(float[2] x) => (float[2] y, float[2] z) { y = Div(x, a) z = Div(x, b) }", a=zero, b=-zero)
        apply(ShareConstants(), m, inputs={"x": ONES})
        assert initializers(m) == {"a", "b"}

    def test_nan_is_itself_only_with_the_same_bits(self) -> None:
        bits = np.array([0x7FC00000, 0x7FC00001, 0x7FC00000], np.uint32).view(np.float32)
        m = model(
            "(float[1] x) => (float[1] y) { p = Add(x, a) q = Add(p, b) y = Add(q, c) }",
            **{name: bits[index : index + 1] for index, name in enumerate("abc")},
        )
        apply(ShareConstants(), m)
        assert initializers(m) == {"a", "b"}

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (np.zeros(2, np.float32), np.zeros(2, np.int32)),
            (np.zeros(2, np.float16), np.zeros(2, ml_dtypes.bfloat16)),
            (np.zeros((2, 1), np.float32), np.zeros((1, 2), np.float32)),
            (np.zeros((), np.float32), np.zeros(1, np.float32)),
            (np.zeros(0, np.float32), np.zeros((0, 2), np.float32)),
            (np.zeros(4, ml_dtypes.int4), np.zeros(4, ml_dtypes.uint4)),
        ],
    )
    def test_dtype_and_shape_count(self, one: np.ndarray, other: np.ndarray) -> None:
        assert TensorKey(ir.Tensor(one)) != TensorKey(ir.Tensor(other))
        assert TensorKey(ir.Tensor(one)) == TensorKey(ir.Tensor(one.copy()))

    def test_strings(self) -> None:
        def content(*strings: bytes) -> TensorKey:
            return TensorKey(ir.StringTensor(strings, shape=ir.Shape([len(strings)])))

        assert content(b"a", b"bc") == content(b"a", b"bc")
        assert content(b"a", b"bc") != content(b"ab", b"c")
        assert content(b"a\0") != content(b"a")

    def test_elements_that_lie_apart(self) -> None:
        whole = np.arange(20_000, dtype=np.float32).reshape(100, 200)
        assert TensorKey(ir.Tensor(whole.T)) == TensorKey(ir.Tensor(whole.T.copy()))
        assert TensorKey(ir.Tensor(whole.T)) != TensorKey(ir.Tensor(whole.reshape(200, 100)))

    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(st.data())
    def test_as_bytes_are(self, data: st.DataObject) -> None:
        dtype = data.draw(
            st.sampled_from([np.float32, np.int8, np.bool_, np.float64, ml_dtypes.bfloat16, ml_dtypes.int4])
        )
        size = data.draw(st.sampled_from([0, 1, 3, 4096, 5001]))
        one = np.random.default_rng(data.draw(st.integers(0, 1))).integers(0, 2, size).astype(dtype)
        other = one.copy()
        if size and data.draw(st.booleans()):
            index = data.draw(st.integers(0, size - 1))
            other[index] = not other[index]
        same = one.tobytes() == other.tobytes()
        left, right = TensorKey(ir.Tensor(one)), TensorKey(ir.Tensor(other))
        assert (left == right) == same
        assert not same or hash(left) == hash(right)


class TestReading:
    def test_no_further_than_it_takes(self) -> None:
        """A tensor of a shape of its own is not read; one with another beginning, once."""
        read: list[str] = []

        def lazy(name: str, array: np.ndarray[Any, Any]) -> ir.Value:
            def load() -> ir.Tensor:
                read.append(name)
                return ir.Tensor(array)

            tensor = ir.LazyTensor(load, ir.DataType.FLOAT, ir.Shape(array.shape), name=name)
            return ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=tensor.shape, const_value=tensor)

        big = np.zeros(5000, np.float32)
        other = big + 1
        m = model("(float[2] x) => (float[2] y) { y = Neg(x) }")
        for name, array in (("alone", ONES), ("a", big), ("b", big.copy()), ("c", other)):
            m.graph.initializers.add(lazy(name, array))
        ShareConstants().run(m, Context())
        assert initializers(m) == {"alone", "a", "c"}
        assert sorted(read) == ["a", "a", "b", "b", "c"]

    def test_external_data(self, tmp_path: Path) -> None:
        big = np.arange(10_000, dtype=np.float32)
        m = model("(float[10000] x) => (float[10000] y) { p = Add(x, a) y = Mul(p, b) }", a=big, b=big)
        ir.save(m, tmp_path / "m.onnx", external_data="m.data")
        loaded = ir.load(tmp_path / "m.onnx")
        ShareConstants().run(loaded, Context())
        assert initializers(loaded) == {"a"}


class TestScopes:
    TEXT = """(float[2] x, bool c) => (float[2] y) {{ {before} y = If (c) <
        then_branch = t () => (float[2] r) <float[2] {inner} = {{1, 1}}> {{ r = Add(x, {inner}) }},
        else_branch = e () => (float[2] q) <float[2] v = {{1, 1}}, float[2] v2 = {{1, 1}}>
            {{ k = Mul(x, v) q = Sub(k, v2) }}> }}"""

    def apply(self, text: str, **constants: np.ndarray) -> tuple[ir.Model, list[str]]:
        m = model(text, **constants)
        for decision in (True, False):
            inputs = {**SCALARS, "c": np.array(decision)}
            result = apply(ShareConstants(), ir.from_proto(ir.to_proto(m)), inputs={k: inputs[k] for k in ("x", "c")})
        return result.model, reasons(result)

    def test_subgraphs_take_the_outer_one(self) -> None:
        m, skips = self.apply(self.TEXT.format(before="p = Add(x, w)", inner="u"), w=ONES)
        branches = [attribute.as_graph() for attribute in m.graph[1].attributes.values()]
        assert initializers(m) == {"w"}
        assert not any(branch.initializers for branch in branches)
        assert not skips

    def test_siblings_do_not_see_each_other(self) -> None:
        m, _ = self.apply(self.TEXT.format(before="", inner="u"))
        assert sorted(len(each.as_graph().initializers) for each in m.graph[0].attributes.values()) == [1, 1]

    def test_a_name_that_a_subgraph_hides(self) -> None:
        text = """(float[2] x, int64 n, bool c) => (float[2] y) { p = Add(x, a) s = Mul(p, b) y = Loop (n, c, s) <
            body = l (int64 i, bool k, float[2] a) => (bool o, float[2] w) { o = Identity(k) w = Add(a, b) }> }"""
        m = model(text, a=ONES, b=ONES)
        result = apply(ShareConstants(), m, inputs=SCALARS)
        assert initializers(m) == {"a", "b"}
        assert reasons(result) == ["b equals a, whose name other values have as well"]


class TestLeftAlone:
    def test_inputs_with_defaults(self) -> None:
        m = model("(float[2] x) => (float[2] y) { p = Add(x, a) y = Mul(p, b) }", a=ONES, b=ONES)
        m.graph.inputs.append(m.graph.initializers["a"])
        assert not ShareConstants().run(m, Context()).rewrites

    def test_outputs(self) -> None:
        m = model("(float[2] x) => (float[2] y, float[2] a) { y = Add(x, b) }", a=ONES, b=ONES)
        assert not ShareConstants().run(m, Context()).rewrites

    def test_what_quantization_annotations_name(self) -> None:
        proto = ir.to_proto(model("(float[2] x) => (float[2] y) { p = Add(x, a) y = Mul(p, b) }", a=ONES, b=ONES))
        note = proto.graph.quantization_annotation.add(tensor_name="x")
        note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="b")
        m = ir.from_proto(proto)
        assert not ShareConstants().run(m, Context()).rewrites
        assert ir.to_proto(m).graph.quantization_annotation == proto.graph.quantization_annotation
