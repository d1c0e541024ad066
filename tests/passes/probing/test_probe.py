"""Probes: what is cut out of a model, what makes two of them the same, and what cannot be asked at all."""

from __future__ import annotations

from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from passes.graphs.cost import Work
from passes.graphs.scopes import Scope, name_nodes
from passes.probing.fusion_clusters import fusion_clusters
from passes.probing.probe import Probe
from passes.probing.witness import witness
from passes.rewriting.edit import Edit
from passes.shapes import inference
from tests.passes.helpers import sealed, tiny, weigh


def scope_of(text: str, *, opset: int = 17, functions: str = "", **constants: Any) -> Scope:
    model = tiny(text, opset=opset, functions=functions, **constants)
    inference.infer(model)
    scope = Scope(model, model.graph)
    name_nodes(scope)
    return scope


def last(text: str, **given: Any) -> Probe:
    """The probe of a graph's last node."""
    scope = scope_of(text, **given)
    return Probe.of([scope.graph[-1]], scope)


def operators(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def run(probe: Probe, *inputs: Any, full: bool = False) -> list[Any]:
    proto = probe.to_proto(full=full)
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return session.run(None, dict(zip(names, inputs, strict=True)))


class TestWhatIsCutOut:
    def test_a_node_takes_its_inputs_as_inputs(self) -> None:
        probe = last("(float[2,3] x) => (float[3,2] z) { y = Relu(x) z = Transpose(y) }")
        assert operators(probe.to_proto()) == ["Transpose"]
        assert [value.name for value in probe.inputs] == ["y"]
        assert [value.name for value in probe.outputs] == ["z"]
        assert probe.shape(probe.outputs[0]) == (3, 2) and probe.dtype(probe.outputs[0]) == ir.DataType.FLOAT
        np.testing.assert_array_equal(run(probe, np.arange(6, dtype=np.float32).reshape(2, 3))[0][1], [1, 4])

    def test_the_constant_cone_comes_along_to_shapes_and_initializers(self) -> None:
        probe = last(
            "(float[2,6] x) => (v, i) { y = Relu(x) s = Shape(y) n = Gather(s, one) h = Div(n, two)"
            " k = Unsqueeze(h, zero) v, i = TopK(y, k) }",
            one=np.int64(1),
            two=np.int64(2),
            zero=np.array([0]),
        )
        assert operators(probe.to_proto()) == ["Shape", "Gather", "Div", "Unsqueeze", "TopK"]
        assert [value.name for value in probe.inputs] == ["y"]
        values, _ = run(probe, np.arange(12, dtype=np.float32).reshape(2, 6))
        assert values.shape == (2, 3)

    def test_what_depends_on_a_size_that_varies_is_an_input(self) -> None:
        probe = last("(float[n,6] x, float[4,6] z) => (y) { s = Shape(x) y = Reshape(z, s) }")
        assert operators(probe.to_proto()) == ["Reshape"] and len(probe.inputs) == 2

    def test_the_cone_may_need_shapes_of_what_the_nodes_themselves_make(self) -> None:
        scope = scope_of(
            "(float[2,6] x, float[12] z) => (y) { a = Relu(x) s = Shape(a) r = Reshape(z, s) y = Add(a, r) }"
        )
        relu, _, reshape, add = scope.graph
        probe = Probe.of([relu, reshape, add], scope)
        assert operators(probe.to_proto()) == ["Relu", "Shape", "Reshape", "Add"]
        assert [value.name for value in probe.inputs] == ["x", "z"]

    def test_a_random_operand_is_no_constant(self) -> None:
        probe = last("(float[2] x) => (y) { r = RandomUniform<shape=[2]>() y = Add(x, r) }")
        assert operators(probe.to_proto()) == ["Add"] and len(probe.inputs) == 2

    def test_large_computed_constants_become_inputs_unless_in_full(self) -> None:
        probe = last(
            "(float[4,64] x) => (y) { w = DequantizeLinear(q, scale, zero) y = MatMul(x, w) }",
            q=np.ones((64, 64), np.int8),
            scale=np.float32(0.5),
            zero=np.int8(0),
        )
        assert operators(probe.to_proto()) == ["MatMul"] and not probe.has_all_data
        assert operators(probe.to_proto(full=True)) == ["DequantizeLinear", "MatMul"]
        assert run(probe, np.ones((4, 64), np.float32), full=True)[0][0, 0] == 32

    def test_subgraphs_bring_what_they_capture(self) -> None:
        probe = last(
            "(bool c, float[2] x) => (y) { a = Neg(x) y = If<"
            "then_branch = g1 () => (float[2] t) { t = Add(a, w) },"
            "else_branch = g2 () => (float[2] e) { e = Relu(a) }>(c) }",
            w=np.array([10, 20], np.float32),
        )
        assert {value.name for value in probe.inputs} == {"c", "a"}
        x = np.array([1, -1], np.float32)
        by_name = {"c": np.array(True), "a": x}
        np.testing.assert_array_equal(run(probe, *(by_name[str(value.name)] for value in probe.inputs))[0], [11, 19])

    def test_names_that_are_shadowed_in_subgraphs_do_not_clash(self) -> None:
        probe = last(
            "(bool c, float[2] x) => (y) { a = Neg(x) y = If<"
            "then_branch = g1 () => (float[2] t) { b = Add(a, a) t = Relu(b) },"
            "else_branch = g2 () => (float[2] e) { b = Mul(a, a) e = Neg(b) }>(c) }"
        )
        names = [
            name for node in probe.to_proto().graph.node[0].attribute for inner in node.g.node for name in inner.output
        ]
        assert len(names) == len(set(names)) == 4

    def test_functions_that_are_called_come_along(self) -> None:
        probe = last(
            "(float[2] x) => (float[2] y) { y = local.f(x) }",
            functions='<domain: "local", opset_import: ["" : 17, "local": 1]>'
            "f (a) => (b) { c = local.g(a) b = Neg(c) }"
            '<domain: "local", opset_import: ["" : 17]> g (a) => (b) { b = Abs(a) }',
        )
        assert [function.name for function in probe.to_proto().functions] == ["g", "f"]
        assert ("", "Abs") in probe.operators
        (y,) = ReferenceEvaluator(probe.to_proto()).run(None, {"v0": np.array([1, -2], np.float32)})
        np.testing.assert_array_equal(y, [-1, -2])

    def test_unused_outputs_are_not_asked_for(self) -> None:
        probe = last("(float[1,1,4,4] x) => (y) { y, i = MaxPool<kernel_shape=[2,2]>(x) }")
        assert [value.name for value in probe.outputs] == ["y"]
        assert list(probe.to_proto().graph.node[0].output) == ["v1", "v2"]

    def test_outputs_that_nothing_uses_are_asked_for_where_there_are_no_others(self) -> None:
        scope = scope_of("(float[2] x) => (float[2] z) { y = Neg(x) z = Abs(x) }")
        assert [value.name for value in Probe.of([scope.graph[0]], scope).outputs] == ["y"]

    def test_a_proposal_that_is_in_no_graph(self) -> None:
        scope = scope_of("(float[2,3] x) => (y) { y = Softplus(x) }")
        edit = Edit(scope, scope.graph[0])
        total = edit.op("Add", [edit.op("Exp", [scope.graph.inputs[0]]), edit.constant(np.float32(1))])
        result = edit.op("Log", [total])
        probe = Probe.of(edit.nodes, scope, [result])
        assert probe.problem is None and probe.outputs == (result,)
        (y,) = run(probe, np.ones((2, 3), np.float32))
        np.testing.assert_allclose(y[0], np.log(np.exp(1) + 1), rtol=1e-6)
        single = Probe.of([edit.nodes[1]], scope)
        assert [value.shape for value in single.inputs] == [ir.Shape([2, 3])]
        assert probe.work.moved == 12 + 13 + 12


class TestConstants:
    def test_weights_are_neither_read_nor_copied(self) -> None:
        model = tiny("(float[4,1024] x) => (float[4,1024] y) { y = MatMul(x, w) }")
        weigh(model, "w", sealed(1024, 1024))
        scope = Scope(model, model.graph)
        probe = Probe.of([scope.graph[0]], scope)
        assert probe.signature and not probe.has_all_data and probe.data_bytes == 4 << 20
        proto = probe.to_proto()
        assert [value.name for value in proto.graph.input] == ["v0", "w1"] and not proto.graph.initializer

    def test_full_carries_them(self) -> None:
        w = np.arange(64, dtype=np.float32).reshape(8, 8)
        probe = last("(float[2,8] x) => (y) { y = MatMul(x, w) }", w=w)
        assert not probe.to_proto().graph.initializer
        np.testing.assert_array_equal(run(probe, np.eye(2, 8, dtype=np.float32), full=True)[0], w[:2])

    def test_small_ones_keep_their_elements(self) -> None:
        probe = last("(float[2,8] x) => (y) { y = Reshape(x, s) }", s=np.array([4, 4]))
        assert probe.has_all_data
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(probe.to_proto().graph.initializer[0]), [4, 4])

    def test_unusual_dtypes_are_carried_since_an_input_of_them_says_nothing(self) -> None:
        w = ir.tensor(np.ones((64, 64), np.int8), dtype=ir.DataType.INT4)
        probe = last("(int8[2] x) => (y) { y = Cast<to=1>(w) }", opset=21, w=w)
        assert probe.has_all_data and len(probe.to_proto().graph.initializer) == 1


class TestSignature:
    BASE = "(float[2,3] x) => (y) { y = Softmax<axis=1>(x) }"

    @pytest.mark.parametrize(
        "text",
        [
            "(float[2,3] other) => (result) { result = Softmax<axis=1>(other) }",
            "(float[2,3] x) => (y) { z = Softmax<axis=1>(x) y = Neg(z) }",
        ],
    )
    def test_names_and_neighbours_do_not_matter(self, text: str) -> None:
        scope = scope_of(text)
        assert Probe.of([scope.graph[0]], scope).signature == last(self.BASE).signature

    @pytest.mark.parametrize(
        "text",
        [
            "(float[2,3] x) => (y) { y = LogSoftmax<axis=1>(x) }",
            "(float[2,3] x) => (y) { y = Softmax<axis=0>(x) }",
            "(float[2,4] x) => (y) { y = Softmax<axis=1>(x) }",
            "(double[2,3] x) => (y) { y = Softmax<axis=1>(x) }",
        ],
    )
    def test_operators_attributes_types_and_shapes_matter(self, text: str) -> None:
        assert last(text).signature != last(self.BASE).signature

    def test_opsets_matter_also_the_highest_of_any_domain(self) -> None:
        assert last(self.BASE, opset=13).signature != last(self.BASE).signature
        scope = scope_of(self.BASE)
        scope.model.opset_imports["com.example"] = 99
        probe = Probe.of([scope.graph[0]], scope)
        assert probe.signature != last(self.BASE).signature
        assert {each.domain: each.version for each in probe.to_proto().opset_import} == {"": 17, "com.example": 99}

    def test_small_constants_matter_and_weights_by_their_kind(self) -> None:
        reshape = "(float[2,8] x) => (y) { y = Reshape(x, s) }"
        assert last(reshape, s=np.array([4, 4])).signature != last(reshape, s=np.array([16, 1])).signature
        scale = "(float[2,8] x) => (y) { y = Mul(x, s) }"
        assert last(scale, s=np.float32(0)).signature != last(scale, s=np.float32(1)).signature
        product = "(float[2,8] x) => (y) { y = MatMul(x, w) }"
        zeros, ones = (last(product, w=np.full((8, 8), each, np.float32)) for each in (0, 1))
        assert zeros.signature == ones.signature
        assert zeros.signature != last("(float[2,8] x, float[8,8] w) => (y) { y = MatMul(x, w) }").signature

    def test_subgraphs_and_captured_types_matter(self) -> None:
        text = (
            "(bool c, float[{}] x) => (y) {{ y = If<then_branch = g1 () => (float[{}] t) {{ t = {}(x) }},"
            " else_branch = g2 () => (float[{}] e) {{ e = Relu(x) }}>(c) }}"
        )
        signatures = {last(text.format(n, n, op, n)).signature for n in (2, 3) for op in ("Neg", "Abs")}
        assert len(signatures) == 4

    def test_functions_matter_by_their_bodies(self) -> None:
        body = '<domain: "local", opset_import: ["" : 17]> f (a) => (b) {{ b = {}(a) }}'
        text = "(float[2] x) => (float[2] y) { y = local.f(x) }"
        assert last(text, functions=body.format("Neg")).signature != last(text, functions=body.format("Abs")).signature

    def test_an_output_that_is_used_matters(self) -> None:
        one = last("(float[1,1,4,4] x) => (y) { y, i = MaxPool<kernel_shape=[2,2]>(x) }")
        both = last("(float[1,1,4,4] x) => (y, i) { y, i = MaxPool<kernel_shape=[2,2]>(x) }")
        assert one.signature != both.signature


class TestProblems:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("(float[n,3] x) => (y) { y = Relu(x) }", r"the shape of x is not fixed: \[n,3\]"),
            ("(float[] x) => (y) { y = Relu(x) }", "the shape of x is not known"),
            ("(string[2] x) => (y) { y = Identity(x) }", "x holds strings"),
            ("(seq(float[2]) x) => (y) { y = SequenceLength(x) }", "x is not a tensor but Sequence"),
            ("(float[2] x) => (y) { y = SequenceConstruct(x) }", "y is not a tensor but Sequence"),
            ("(float[2] x) => (y) { y = Cast<to=8>(x) }", "y holds strings"),
        ],
    )
    def test_what_cannot_be_asked(self, text: str, words: str) -> None:
        model = tiny(text)
        if "float[]" in text:
            model.graph.inputs[0].shape = None
        inference.infer(model)
        scope = Scope(model, model.graph)
        with pytest.raises(AssertionError, match=words):
            raise AssertionError(Probe.of([scope.graph[0]], scope).problem)

    def test_in_a_function_nothing_is_fixed(self) -> None:
        model = tiny(
            "(float[2] x) => (float[2] y) { y = local.f(x) }",
            functions='<domain: "local", opset_import: ["" : 17]>'
            "f <alpha>(a) => (b) { b = LeakyRelu<alpha: float = @alpha>(a) }",
        )
        (function,) = model.functions.values()
        scope = Scope(model, function.graph, function)
        assert "caller" in str(Probe.of([function[0]], scope).problem)

    def test_an_output_of_unknown_size_is_none(self) -> None:
        probe = last("(float[2,3] x) => (y) { y = NonZero(x) }")
        assert probe.problem is None and probe.shape(probe.outputs[0]) == (2, None)


class TestWork:
    def test_a_body_counts_as_often_as_it_runs(self) -> None:
        text = (
            "(float[2,3] x, bool c) => (float[2,3] y) {{ y = Loop<body = b (int64 i, bool d, float[2,3] s) =>"
            " (bool e, float[2,3] t) {{ e = Identity(d) t = Relu(s) }}>({}, c, x) }}"
        )
        count = np.int64(50)
        once = last(text.format("n"), n=np.int64(1)).work
        assert once.moved >= 12 and last(text.format("n"), n=count).work == once * 50
        assert last(text.format("n").replace("bool c", "bool c, int64 n")).work.moved > once.moved

    def test_a_scan_over_what_has_an_unknown_size(self) -> None:
        text = (
            "(float[2,3] x, float[{},4] s) => (y, z) {{ n = NonZero(x) y, z = Scan<num_scan_inputs = 1, body = b ("
            "int64[2,k] a, float[4] i) => (int64[2,k] c, float[4] d) {{ c = Identity(a) d = Relu(i) }}>(n, s) }}"
        )
        assert last(text.format(50)).work.moved > 5 * last(text.format(5)).work.moved > 0

    def test_products_count_their_multiply_adds(self) -> None:
        product = last("(float[2,3] x, float[3,4] w) => (y) { y = MatMul(x, w) }")
        assert product.work == Work(multiplied=24, moved=6 + 12 + 8)
        convolution = last("(float[1,2,5,5] x, float[4,2,3,3] w) => (y) { y = Conv(x, w) }")
        assert convolution.work.convolved == 4 * 9 * 18 and not convolution.work.multiplied

    def test_data_that_is_only_moved_counts(self) -> None:
        assert last("(float[2,3] x) => (y) { y = Transpose(x) }").work == Work(moved=12)
        assert last("(float[1,1,4,4] x) => (y) { y = MaxPool<kernel_shape=[2,2]>(x) }").work.moved == 4 * (16 + 9)


class TestSuspects:
    def groups(self, text: str, **constants: Any) -> list[list[str]]:
        return [[node.op_type for node in each.nodes] for each in fusion_clusters(scope_of(text, **constants))]

    def test_a_pad_before_a_convolution_or_a_pooling(self) -> None:
        pads = np.array([0, 0, 1, 1, 0, 0, 1, 1])
        text = "(float[1,2,4,4] x) => (y, z) { p = Pad(x, pads) y = MaxPool<kernel_shape=[2,2]>(p) z = Relu(p) }"
        assert self.groups(text, pads=pads) == [["Pad", "MaxPool"]]
        conv = "(float[1,2,4,4] x) => (y) { p = Pad(x, pads) y = Conv(p, w) }"
        assert self.groups(conv, pads=pads, w=np.ones((1, 2, 1, 1), np.float32)) == [["Pad", "Conv"]]

    RESIZED: ClassVar = {"none": np.zeros(0, np.float32), "scales": np.array([1, 1, 2, 2], np.float32)}

    def test_views_before_a_resize(self) -> None:
        text = (
            "(float[1,3,4,4] x) => (y) { n = Neg(x) a, b = Split<axis=1>(n, sizes) i = Identity(b)"
            " y = Resize(i, none, scales) }"
        )
        assert self.groups(text, sizes=np.array([1, 2]), **self.RESIZED) == [["Split", "Identity", "Resize"]]

    @pytest.mark.parametrize("count", [0, 1, 100])
    def test_a_transpose_whose_layout_reaches_a_resize(self, count: int) -> None:
        between = "".join(f" c{index + 1} = Sigmoid(c{index})" for index in range(count))
        text = (
            "(float[1,4,4,3] x, float[1,3,4,4] o) => (y) {{ t = Transpose<perm=[0,3,1,2]>(x) c0 = Add(o, t)"
            + between
            + " r = {} y = Resize(r, none, scales) }}"
        )
        (found,) = fusion_clusters(scope_of(text.format(f"Relu(c{count})"), **self.RESIZED))
        assert [node.op_type for node in found.nodes] == ["Transpose", "Resize"]
        assert [node.op_type for node in found.probe.nodes] == ["Transpose", "Resize"]
        assert [found.probe.shape(value) for value in found.probe.inputs] == [(4, 4, 3, 1)]
        shape = np.array([1, 3, 4, 4])
        assert self.groups(text.format(f"Reshape(c{count}, s)"), s=shape, **self.RESIZED) == []

    def test_a_resize_by_unknown_scales_has_no_cluster(self) -> None:
        text = "(float[1,4,4,3] x, float[4] s) => (y) { t = Transpose<perm=[0,3,1,2]>(x) y = Resize(t, none, s) }"
        assert self.groups(text, none=self.RESIZED["none"]) == []

    def test_weights_with_and_without_a_zero_point_beside_each_other(self) -> None:
        text = (
            "(float[2,4] x, float[2,4] o) => (y, z) {{ d = DequantizeLinear(w, s, a) e = DequantizeLinear(w, s, b)"
            " y = MatMul(x, d) z = MatMul({}, e) }}"
        )

        def found(other: str, first: int, second: int) -> list[list[str]]:
            constants = {"s": np.float32(0.1), "a": np.int8(first), "b": np.int8(second)}
            scope = scope_of(text.format(other), w=np.ones((4, 3), np.int8), **constants)
            found = fusion_clusters(scope, rehearsed=True)
            return [[str(node.outputs[0].name) for node in each.nodes] for each in found]

        assert found("x", 3, 0) == [["d", "e", "y", "z"]]
        assert found("x", 0, 3) == [["e", "d", "z", "y"]]
        assert found("x", 3, 4) == found("x", 0, 0) == found("o", 3, 0) == []

    def test_others_are_not_suspected(self) -> None:
        assert self.groups("(float[2,3] x) => (y) { t = Transpose(x) y = Relu(t) }") == []


def test_places_are_those_of_the_inputs_that_there_are() -> None:
    """A large weight that is dequantized is an input of the small probe, and a constant of the full one."""
    scope = scope_of(
        "(float[2,40] x, float[40] b) => (float[2,40] y) { w = DequantizeLinear(q, s) p = MatMul(x, w) y = Add(p, b) }",
        q=np.ones((40, 40), np.int8),
        s=np.float32(0.1),
    )
    whole = Probe.of(list(scope.graph)[1:], scope)
    part = Probe([scope.graph[2]], scope, whole.outputs, replaces=whole)
    again = Probe(whole.nodes, scope, whole.outputs, replaces=whole)
    assert [value.name for value in again.inputs] == ["x", "w", "b"]
    assert again.input_indices(full=False) == [0, 1, 2]
    assert again.input_indices(full=True) == [0, 1]
    assert len(again.to_proto(full=True).graph.input) == 2
    assert part.input_indices(full=True) is None  # it takes what the other makes
    assert whole.input_indices(full=True) is None


def test_what_a_large_constant_is_made_of_is_told_apart() -> None:
    """Else a runtime's refusal of one dtype of weights would be taken for one of the operator."""
    text = "(float[2,40] x) => (float[2,40] y) { w = DequantizeLinear(q, s) y = MatMul(x, w) }"
    weight = np.random.default_rng(0).integers(-9, 9, (40, 40)).astype(np.int8)
    signatures = [
        last(text, opset=19, q=each, s=np.float32(0.1)).signature
        for each in (weight, weight[::-1], weight.astype(ml_dtypes.float8_e4m3fn))
    ]
    assert signatures[0] == signatures[1] != signatures[2]


class TestRanges:
    SUM = "(float16[1,4,600] x) => (float16[1,2,600] z) {{ y = {}(x) z = Conv(y, w) }}"
    W = np.ones((2, 4, 1), np.float16)

    def test_of_16_bit_floats_in_the_probe_and_its_witness(self) -> None:
        probe = last(self.SUM.format("Softmax"), w=self.W)
        small = witness(probe)
        assert isinstance(small, Probe)
        assert probe.input_ranges == small.input_ranges == [(0.0, 1.0)]
        assert small.inputs[0].shape != probe.inputs[0].shape
        others = [last(self.SUM.format(name), w=self.W) for name in ("Neg", "Relu")]
        assert [each.input_ranges for each in others] == [[None], [None]]
        assert len({each.signature for each in (probe, *others)}) == 2

    def test_of_what_is_cast_and_no_other_float(self) -> None:
        text = "(float[4] x) => (float16[4] z) {{ y = {}(x) z = {} }}"
        assert last(text.format("Tanh", "Cast<to=10>(y)")).input_ranges == [(-1.0, 1.0)]
        assert last("(float[4] x) => (float[4] z) { y = Tanh(x) z = Exp(y) }").input_ranges == [None]

    def test_the_ends_of_a_dtype_are_none(self) -> None:
        limits = {"low": np.float16(-65504), "high": np.float16(65504)}
        probe = last("(float16[4] x) => (float16[4] z) { y = Clip(x, low, high) z = Exp(y) }", **limits)
        assert probe.input_ranges == [None]
