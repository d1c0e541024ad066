"""What a model says of its own values, and what passes believe of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import passes.shapes.declarations
from passes.cleanup.infer_shapes import InferShapes
from passes.cleanup.remove_dead import RemoveDead
from passes.graphs.scopes import Scope, values_of
from passes.graphs.traversal import subgraphs
from passes.legalize.tensor.reshaping import constant_shape, operand_by_output, reshape_by_output
from passes.rewriting.base import Context, Pass, Result, Rewrite
from passes.rewriting.pipeline import Pipeline
from passes.rewriting.rewrite import NodeRewrite
from passes.shapes import inference
from passes.shapes.declarations import forget_impossible_sizes, settle
from passes.shapes.inference import infer
from passes.specialize.freeze_shapes import FreezeShapes
from tests.passes.harness import run


def typed(name: str, shape: list[int | str | None]) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


class TestImpossibleSizes:
    @pytest.mark.parametrize("dim", [-1, -7, "?", " ? ", ""])
    def test_become_unknown(self, dim: int | str) -> None:
        node = onnx.helper.make_node("Neg", ["x"], ["y"])
        graph = onnx.helper.make_graph([node], "g", [typed("x", [dim, 3, dim])], [typed("y", [dim, 3, "n"])])
        model = ir.from_proto(onnx.helper.make_model(graph))
        forget_impossible_sizes(model)
        assert model.graph.inputs[0].shape == ir.Shape([None, 3, None])
        assert model.graph.outputs[0].shape == ir.Shape([None, 3, "n"])

    def test_in_subgraphs_and_functions(self) -> None:
        model = ir.from_proto(
            onnx.parser.parse_model(
                """<ir_version: 10, opset_import: ["": 18, "local": 1]>
                g (float[2] x, bool c) => (float[2] y) {
                    h = local.f(x)
                    y = If (c) <then_branch = a () => (float[2] p) <float[2] q> { q = Neg(h) p = Neg(q) },
                                else_branch = b () => (float[2] r) { r = Abs(h) }>
                }
                <domain: "local", opset_import: ["": 18]> f (a) => (b) { b = Neg(a) }"""
            )
        )
        inner = next(value for node in model.graph.all_nodes() for value in node.outputs if value.name == "q")
        function = next(iter(model.functions.values())).graph[0].outputs[0]
        inner.shape = function.shape = ir.Shape([-1])
        forget_impossible_sizes(model)
        assert inner.shape == function.shape == ir.Shape([None])


def text_model(text: str, opset: int = 17) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "own": 1]> g {text}'))


def settled(text: str, opset: int = 17) -> tuple[dict[str, str], dict[str, str]]:
    """The shapes of all values of a model, after its declarations are corrected; and the contradictions."""
    model, context = text_model(text, opset), Context()
    settle(model, context)
    infer(model)
    return {str(value.name): str(value.shape) for value in values_of(model)}, context.contradictions


def same_numbers(model: ir.Model, pipeline: str, inputs: dict[str, Any]) -> None:
    """Require that a pipeline does not change what ONNX Runtime computes."""
    proto = ir.to_proto(model)
    expected = run(proto, inputs)
    Pipeline.parse(pipeline).run(model)
    found = run(ir.to_proto(model), inputs)
    for name, array in expected.items():
        assert found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)


GROWING = """(float[3,4] x, int64 m, bool c) => (float[{out}] out, int64[2] sizes) <float[0,4] z> {{
    init = Constant<value = float[0,4] {{}}> ()
    out = Loop(m, c, init) <body = b (int64 i, bool ci, float[{carried}] acc) => (bool co, float[{result}] next)
        <float[0,4] copy> {{
        co = Identity(ci)
        row = Gather<axis=0>(x, i)
        zero = Constant<value = int64[1] {{0}}> ()
        r = Unsqueeze(row, zero)
        copy = Identity(acc)
        next = Concat<axis=0>(copy, r)
    }}>
    z = Neg(out)
    sizes = Shape(z)
}}"""
"""A loop that appends a row in each turn, as torchvision's Mask R-CNN pastes its masks."""
TURNS = {"x": np.arange(12, dtype=np.float32).reshape(3, 4), "m": np.array(3), "c": np.array(True)}


class TestCarriedValues:
    @pytest.mark.parametrize("carried", ["0,4", "n,4", "3,4", "1,2,3"])
    @pytest.mark.parametrize("result", ["1,4", "n,4"])
    def test_that_grow(self, carried: str, result: str) -> None:
        shapes, contradictions = settled(GROWING.format(out="0,4", carried=carried, result=result))
        assert not contradictions
        assert {shapes[name] for name in ("acc", "copy", "out", "z")} == {"[None,4]"}
        assert shapes["next"] in ("[None,4]", "[n,4]")
        assert (shapes["r"], shapes["sizes"]) == ("[1,4]", "[2]")

    @pytest.mark.parametrize(
        "pipeline", ["none", "infer-shapes", "fold-constants", "remove-identity", "default", "legalize"]
    )
    def test_that_grow_keep_their_rows(self, pipeline: str) -> None:
        model = text_model(GROWING.format(out="n,4", carried="0,4", result="1,4"))
        same_numbers(model, pipeline, TURNS)

    def test_that_stay_are_proven(self) -> None:
        shapes, _ = settled(
            """(float[2,3] x, int64 m, bool c) => (float[a,b] y) {
                y = Loop(m, c, x) <body = b (int64 i, bool ci, float[a,b] v) => (bool co, float[a,b] w) {
                    co = Identity(ci)
                    s = Shape(v)
                    r = Reshape(v, s)
                    w = Add(r, v)
                }>
            }"""
        )
        assert {shapes[name] for name in ("v", "r", "y")} == {"[2,3]"}

    def test_that_exchange_their_shapes(self) -> None:
        shapes, _ = settled(
            """(float[2,3] x, float[4,3] z, int64 m, bool c) => (float[2,3] p, float[4,3] q) {
                p, q = Loop(m, c, x, z) <body = b (int64 i, bool ci, float[2,3] v, float[4,3] w)
                    => (bool co, float[4,3] w2, float[2,3] v2) {
                    co = Identity(ci)
                    w2 = Neg(w)
                    v2 = Neg(v)
                }>
            }"""
        )
        assert {shapes[name] for name in ("v", "w", "p", "q")} == {"[None,3]"}

    def test_of_nested_loops_and_captures(self) -> None:
        """An inner loop that captures what the outer one carries, and carries it on."""
        text = """(float[1,4] x, int64 m, bool c) => (float[n,4] y, float[4,2] t, int64[2] k) {
            y, t = Loop(m, c, x, two) <body = b (int64 i, bool ci, float[1,4] acc, float[4,2] same)
                => (bool co, float[1,4] grown, float[4,2] same2) {
                co = Identity(ci)
                grown, same2 = Loop(m, c, acc, same) <body = d (int64 j, bool cj, float[1,4] in, float[4,2] in2)
                    => (bool cjo, float[1,4] more, float[4,2] more2) <float[1,4] chosen> {
                    cjo = Identity(cj)
                    chosen = If (cj) <then_branch = e () => (float[1,4] p) { p = Identity(in) },
                                      else_branch = f () => (float[1,4] q) { q = Neg(acc) }>
                    more = Concat<axis=0>(chosen, x)
                    more2 = Neg(in2)
                }>
            }>
            k = Shape(y)
        }"""
        source = text_model(text.replace("two)", "z)").replace("(float[1,4] x,", "(float[1,4] x, float[4,2] z,"))
        settle(source, Context())
        shapes = {str(value.name): str(value.shape) for value in values_of(source)}
        assert {shapes[name] for name in ("acc", "in", "y", "p", "q", "chosen", "grown")} == {"[None,4]"}
        assert {shapes[name] for name in ("same", "in2", "t")} == {"[4,2]"}
        inputs = {"x": np.ones((1, 4), np.float32), "z": np.ones((4, 2), np.float32), "m": np.array(2)}
        same_numbers(source, "default", {**inputs, "c": np.array(True)})

    def test_of_loops_in_a_row(self) -> None:
        body = """<body = b{0} (int64 i{0}, bool ci{0}, float[7] v{0}) => (bool co{0}, float[7] w{0}) {{
            co{0} = Identity(ci{0}) w{0} = Neg(v{0}) }}>"""
        loops = " ".join(f"x{n + 1} = Loop(m, c, x{n}) {body.format(n)}" for n in range(5))
        shapes, _ = settled(f"(float[2] x0, int64 m, bool c) => (float[7] y) {{ {loops} y = Exp(x5) }}")
        assert {shape for name, shape in shapes.items() if name[0] in "xvwy"} == {"[2]"}

    def test_whose_first_value_is_unknown(self) -> None:
        shapes, _ = settled(
            """(float[4] x, int64 m, bool c) => (float[4] y) {
                f = own.Thing(x)
                y = Loop(m, c, f) <body = b (int64 i, bool ci, float[4] v) => (bool co, float[4] w) {
                    co = Identity(ci) w = Neg(v) }>
            }"""
        )
        assert {shapes[name] for name in ("v", "y")} == {"None"}

    def test_of_scans(self) -> None:
        shapes, _ = settled(
            """(float[2] x, float[3,5,2] xs, float[5] d) => (float[7] y, float[a,b] ys) {
                y, ys = Scan <num_scan_inputs = 1, scan_input_axes = [1], body = b (float[9] s, float[8,8] e)
                    => (float[9] t, float[9] o) { r = ReduceSum<keepdims = 0>(e) t = Add(s, r) o = Neg(s) }>(x, xs)
            }"""
        )
        assert (shapes["s"], shapes["e"], shapes["t"], shapes["y"]) == ("[2]", "[3,2]", "[2]", "[2]")
        assert shapes["ys"] == "[5,2]"

    def test_of_scans_keep_their_rank(self) -> None:
        """ONNX Runtime does not run a Scan whose body returns something of unknown rank."""
        model = text_model(
            """(float[] x, float[3,2] s) => (float[] y, float[3,2] z) {
                y, z = Scan <num_scan_inputs = 1, body = b (float[4] a, float[2] i) => (float[] c, float[2] d) {
                    c = Neg(a) d = Relu(i) }> (x, s) }"""
        )
        given = {"x": np.float32([1, 2, 3, 4]), "s": np.float32([[1, -2], [0, 1], [2, 2]])}
        expected = run(ir.to_proto(model), given)
        settle(model, Context())
        (body,) = subgraphs(model.graph[0])
        assert body.inputs[0].shape == ir.Shape([None])
        for name, array in run(ir.to_proto(model), given).items():
            np.testing.assert_array_equal(array, expected[name])

    def test_of_scans_keep_the_rank_of_results(self) -> None:
        """Also where an operand is of unknown rank."""
        model = text_model(
            """(float[2] x, float[] m, float[3,2] s) => (float[] y, float[3,2] z) {
                y, z = Scan <num_scan_inputs = 1, body = b (float[2] a, float[2] i) => (float[n] c, float[2] d) {
                    c = Mul(a, m) d = Relu(i) }> (x, s) }"""
        )
        given = {"x": np.float32([1, 2]), "m": np.float32([2]), "s": np.float32([[1, -2], [0, 1], [2, 2]])}
        same_numbers(model, "default", given)

    def test_of_sequences(self) -> None:
        shapes, _ = settled(
            """(float[2] x) => (seq(float[5]) y) {
                s = SequenceConstruct(x, x)
                y = SequenceMap <body = b (float[5] e) => (float[5] f) { f = Neg(e) }> (s)
            }"""
        )
        assert (shapes["e"], shapes["f"]) == ("[2]", "[2]")


class TestContradictions:
    def test_inference_decides(self) -> None:
        shapes, contradictions = settled(
            "(float[2,3] x) => (float[1,3] y) <float[5,3] h> { h = Neg(x) k = Abs(h) y = Exp(k) }"
        )
        assert list(contradictions) == ["h", "y"]
        assert {shapes[name] for name in ("h", "k", "y")} == {"[2,3]"}

    def test_what_follows_a_wrong_declaration_says_nothing(self) -> None:
        """NonZero tells how many rows there are only when it runs, and a declaration knows no better."""
        shapes, contradictions = settled(
            "(float[2,3] x) => (int64[2,5] i) <float[5,1] h> { h = Neg(x) i = NonZero(h) }"
        )
        assert list(contradictions) == ["h"]
        assert shapes["i"] == "[2,None]"

    def test_what_nothing_contradicts_stays(self) -> None:
        shapes, contradictions = settled("(float[2,3] x) => (float[4] y) <float[4] f> { f = own.Thing(x) y = Neg(f) }")
        assert not contradictions
        assert shapes["y"] == "[4]"

    def test_names_are_no_contradiction(self) -> None:
        shapes, contradictions = settled("(float[n,3] x) => (y) <float[m,3] h> { h = Neg(x) y = Exp(h) }")
        assert not contradictions
        assert shapes["h"] == "[m,3]"

    @pytest.mark.parametrize("declared", ["1,2,3", "7,3", "6"])
    def test_of_what_a_function_returns(self, declared: str) -> None:
        text = f"""(float[2,3] x) => (float[{declared}] y) <float[{declared}] h> {{ h = own.F(x) y = Neg(h) }}
            <domain: "own", opset_import: ["": 17]> F (a) => (b) {{ b = Abs(a) }}"""
        shapes, contradictions = settled(text)
        assert list(contradictions) == ["h", "y"]
        assert {shapes[name] for name in ("h", "y")} == {"[2,3]"}

    def test_in_a_branch(self) -> None:
        shapes, contradictions = settled(
            """(float[2,3] x, bool c) => (float[7] y) {
                y = If (c) <then_branch = a () => (float[6] p) { p = Neg(x) }, else_branch = b () => (q) { q = Abs(x) }>
            }"""
        )
        assert set(contradictions) == {"p", "y"}
        assert {shapes[name] for name in ("p", "q", "y")} == {"[2,3]"}

    @pytest.mark.parametrize("pipeline", ["remove-identity", "merge-reshapes", "fold-constants", "default"])
    def test_no_pass_believes_them(self, pipeline: str) -> None:
        """The size of each is one that would let a pass remove or fold what it must not."""
        model = text_model(
            """(float[2,3] x, int64[2] s) => (float[3,2] y, int64[2] k) <float[2,3] a, float[3,2] t> {
                t = Transpose<perm = [0, 1]>(x) a = Reshape(t, s) k = Shape(t) y = Neg(a) }"""
        )
        inputs = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "s": np.array([3, 2])}
        same_numbers(model, pipeline, inputs)

    def test_after_sizes_are_frozen(self) -> None:
        """Exporters use the names of input sizes for outputs of other sizes."""
        model = text_model(
            """(float[1,3,height,width] x) => (float[1,3,height,width] y) {
                y = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x) }"""
        )
        context = Context()
        steps = Pipeline([FreezeShapes(dims={"height": 8, "width": 6})]).run(model, context)
        assert steps[0].result.model.graph.outputs[0].shape == ir.Shape([1, 3, 4, 3])
        assert list(context.contradictions) == ["y"]

    def test_of_results_that_only_a_run_tells(self) -> None:
        """The name of an input's size says nothing of how many elements are not zero."""
        model = text_model("(float[1,m] x) => (int64[2,m] y) <int64[2,m] i> { i = NonZero(x) y = Neg(i) }")
        Pipeline([FreezeShapes(dims={"m": 3})]).run(model)
        assert model.graph.inputs[0].shape == ir.Shape([1, 3])
        assert {str(node.outputs[0].shape) for node in model.graph} == {"[2,None]"}

    def test_of_other_domains(self) -> None:
        """Nothing else is known there than what is said."""
        model = text_model("(float[1,m] x) => (float[1,m] y) <float[1,m] i> { i = own.Thing(x) y = Neg(i) }")
        Pipeline([FreezeShapes(dims={"m": 3})]).run(model)
        assert {str(node.outputs[0].shape) for node in model.graph} == {"[1,3]"}


SHAPE_OF = """(float[4] x) => (int64 n, float[m] r)
    <int64[1,{size}] i, int64[{size},1] t, float[{size}] g, float[{size}] z> {{
    i = NonZero(x) t = Transpose<perm = [1, 0]>(i) g = GatherND(x, t)
    s = Shape(g) k = Constant<value = int64 {{0}}>() n = Gather(s, k)
    z = Neg(g) r = Concat<axis = 0>(z, x) }}"""


class TestClaimsAboutData:
    """Only a run tells how many elements are not zero: what the model says of it is not believed without one."""

    @pytest.mark.parametrize("pipeline", ["none", "fold-constants", "default", "legalize", "infer-shapes,legalize"])
    @pytest.mark.parametrize("size", [0, 1, 4])
    def test_nothing_is_folded_or_dropped(self, size: int, pipeline: str) -> None:
        model = text_model(SHAPE_OF.format(size=size))
        same_numbers(model, pipeline, {"x": np.float32([1, 0, 2, 0])})

    @pytest.mark.parametrize("pipeline", ["remove-identity", "merge-reshapes", "default"])
    def test_nothing_is_removed(self, pipeline: str) -> None:
        model = text_model(
            """(float[2,3] x) => (int64[a,b] y) <int64[2,1] i, int64[1,2] f> {
                i = NonZero(x) k = Constant<value = int64[2] {1, -1}>() t = Constant<value = int64[2] {2, 1}>()
                f = Reshape(i, k) p = Constant<value = int64[2] {-1, 2}>() h = Reshape(f, p) y = Neg(h) }"""
        )
        same_numbers(model, pipeline, {"x": np.float32([[1, 0, 2], [0, 0, 3]])})

    def test_the_device_may_have_what_is_declared(self) -> None:
        model = text_model(SHAPE_OF.format(size=2))
        settle(model, Context())
        scope = Scope(model, model.graph)
        value = next(value for value in values_of(model) if value.name == "t")
        assert scope.static_shape(value) == (2, 1)
        assert scope.proven_shape(value) == ir.Shape([None, 1])

    def test_what_becomes_constant_is_proven(self) -> None:
        model = text_model(
            SHAPE_OF.format(size=2)
            .replace("NonZero(x)", "NonZero(c)")
            .replace("i = ", "c = Constant<value = float[4] {1, 0, 2, 0}>() i = ")
        )
        Pipeline.parse("fold-constants").run(model)
        assert not any(node.op_type == "Shape" for node in model.graph)


CLOSED = """(float[0,a,n] x, float[2,n] w) => (float[0,2,1] y, int64[k] s, int64 e) {{
    y = Neg(x) {nodes} s = Shape({of}) i = Constant<value = int64 {{1}}>() e = Gather(s, i) }}"""


class TestClaimsAboutOpenSizes:
    """Where an input leaves a size open, a number that a result has in its place is not believed."""

    @pytest.mark.parametrize("pipeline", ["fold-constants", "default", "legalize", "infer-shapes,legalize"])
    @pytest.mark.parametrize("shape", [(0, 2, 1), (0, 5, 3)])
    @pytest.mark.parametrize(("nodes", "of"), [("", "y"), ("z = Abs(y) v = Neg(z)", "v")])
    def test_nothing_is_folded(self, nodes: str, of: str, shape: tuple[int, ...], pipeline: str) -> None:
        model = text_model(CLOSED.format(nodes=nodes, of=of))
        same_numbers(model, pipeline, {"x": np.zeros(shape, np.float32), "w": np.zeros((2, shape[2]), np.float32)})

    def test_of_the_same_name_are_believed(self) -> None:
        model = text_model("(float[a,3] x) => (float[a,3] y) { y = Neg(x) }")
        settle(model, Context())
        assert Scope(model, model.graph).proven_shape(model.graph.outputs[0]) == ir.Shape(["a", 3])

    def test_an_input_that_is_an_output_keeps_its_shape(self) -> None:
        model = text_model("(float[2] x, float[1] k) => (float[m] k, float[1,2] y) { z = Mul(x, k) y = Identity(z) }")
        model.graph.inputs[1].shape = ir.Shape([1])  # onnx_ir reads what the output declares
        settle(model, Context())
        infer(model)
        assert model.graph.outputs[1].shape == ir.Shape([2])


class TestClaimsOfNames:
    """That a size has the name of another is not believed where inference does not find it."""

    @pytest.mark.parametrize("pipeline", ["remove-identity", "fold-constants", "default", "infer-shapes,legalize"])
    @pytest.mark.parametrize("node", ["Slice(x, one, three, zero)", "Expand(x, times)", "Reshape(x, wanted)"])
    @pytest.mark.parametrize("declared", ["float[n,1] v", "float[n,m] v"])
    def test_nothing_is_removed(self, declared: str, node: str, pipeline: str) -> None:
        model = text_model(
            f"""(float[n,1] x, int64[2] times, int64[2] wanted) => (float[a,b] y, int64[2] s) <{declared},
                int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] three = {{3}}> {{
                v = {node} y = Neg(v) s = Shape(v) }}"""
        )
        inputs = {"times": np.array([1, 2]), "wanted": np.array([2, 3])}
        same_numbers(model, pipeline, {"x": np.arange(6, dtype=np.float32).reshape(6, 1), **inputs})

    def test_what_is_proven_is_kept(self) -> None:
        model = text_model(
            "(float[n,4] x) => (float[n,4] y) <float[n,4] v> { s = Shape(x) v = Reshape(x, s) y = Identity(v) }"
        )
        settle(model, Context())
        values = {value.name: value for value in values_of(model)}
        assert Scope(model, model.graph).proven_shape(values["v"]) == ir.Shape(["n", 4])


class TestClaimsOnADevice:
    """A rewrite for a device must not take the place of what would show in a run that a claim is false."""

    @pytest.mark.parametrize(
        ("rule", "node"),
        [
            (operand_by_output, "Expand(x, s)"),
            (operand_by_output, "Tile(x, s)"),
            (operand_by_output, "ConstantOfShape(s)"),
            (reshape_by_output, "Reshape(x, t)"),
            (constant_shape, "Shape(e)"),
        ],
    )
    def test_nothing_follows_from_a_size_that_depends_on_data(self, rule: NodeRewrite, node: str) -> None:
        model = text_model(
            f"""(float[1] x, bool[m] c) => (float[1] y) <int64[1] e> {{
            d = Constant<value = int64[1] {{1}}>() e = Compress<axis = 0>(d, c) s = Shape(e) t = Mul(s, d)
            y = {node} }}"""
        )
        if node.startswith("Shape"):
            model.graph.outputs[0].type = ir.TensorType(ir.DataType.INT64)
        settle(model, Context())
        infer(model)
        assert not rule.run(model, Context()).modified


def test_a_value_that_hides_another_has_a_type_of_its_own() -> None:
    """ONNX knows one type for each name, and the result of a Loop may have the name of a value in its body."""
    body = text_model(
        """(bool c, uint8 n) => (float[m] y) {
        y = If (c) <then_branch = t () => (float[k] a) {
            i = Constant<value = int64 {1}>() on = Constant<value = bool {1}>()
            h, a = Loop (i, on, n) <body = b (int64 j, bool q, uint8 s) => (bool q2, uint8 s2, float[2] r) {
                q2 = Identity(q) s2 = Identity(s) d = Constant<value = float[2] {1, 2}>()
                h = Neg(d) r = Abs(h) }> },
          else_branch = e () => (float[1] z) { z = Constant<value = float[1] {1}>() }> }"""
    )
    infer(body)
    found = {
        value.name: value.dtype for value in values_of(body) if value.name in ("h", "r") and value.shape is not None
    }
    hidden = [value.dtype for value in values_of(body) if value.name == "h"]
    assert hidden == [ir.DataType.UINT8, ir.DataType.FLOAT]
    assert found["r"] == ir.DataType.FLOAT


@dataclass(frozen=True)
class Misdeclare(Pass):
    """Declare a wrong shape."""

    name = "misdeclare"

    def run(self, model: ir.Model, context: Context) -> Result:
        model.graph[0].outputs[0].shape = ir.Shape([9])
        return Result(model, [Rewrite((str(model.graph[0].name),))])


class TestPipelinesSettleOnce:
    TEXT = "(float[2] x) => (float[n] z) { y = Neg(x) z = Abs(y) }"

    def counted(self, monkeypatch: pytest.MonkeyPatch) -> list[ir.Model]:
        calls: list[ir.Model] = []

        def count(model: ir.Model, context: Context) -> int:
            calls.append(model)
            return settle(model, context)

        monkeypatch.setattr(passes.shapes.declarations, "settle", count)
        return calls

    def test_unchanged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model, calls = text_model(self.TEXT), self.counted(monkeypatch)
        Pipeline([InferShapes()]).run(model)
        assert calls == []
        InferShapes().run(model, Context())
        assert calls == [model]

    def test_a_pass_that_changes_the_model_is_settled_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model, calls = text_model(self.TEXT), self.counted(monkeypatch)
        Pipeline([Misdeclare(), InferShapes()]).run(model)
        assert calls == [model]
        assert model.graph[0].outputs[0].shape == ir.Shape([2])

    @pytest.mark.parametrize(
        ("text", "again"),
        [
            ("(float[2] x) => (float[2] z) { y = Neg(x) z = Abs(y) d = Exp(x) }", False),
            ("(float[2] x) => (float[n] z) <float[2] y> { y = Neg(x) z = Abs(y) d = Exp(x) }", False),
            ("(float[k] x) => (float[k] z) { y = Neg(x) z = Abs(y) d = Exp(x) }", False),
            ("(float[2] x, int64[1] s) => (float[2] z) { y = Reshape(x, s) z = Abs(y) d = Exp(x) }", True),
            ("(float[2] x, int64[1] s) => (z) <float[2] y> { y = Reshape(x, s) z = Abs(y) d = Exp(x) }", True),
            ("(float[2] x) => (z) <float[2] y> { y = own.Neg(x) z = Abs(y) d = Exp(x) }", True),
            ("(float[2] x) => (int64[1,n] z) { y = NonZero(x) z = Neg(y) d = Exp(x) }", True),
            (
                "(float[2] x, bool c, int64 n) => (float[2] z) { y = Loop(n, c, x) <body = b (int64 i, bool c1,"
                " float[2] a) => (bool c2, float[2] r) { c2 = Identity(c1) r = Neg(a) }> z = Abs(y) d = Exp(x) }",
                True,
            ),
        ],
    )
    def test_what_is_declared_is_checked_again_unless_inference_has_found_all_of_it(
        self, monkeypatch: pytest.MonkeyPatch, text: str, again: bool
    ) -> None:
        model, calls = text_model(text), self.counted(monkeypatch)
        (removed, _) = Pipeline([RemoveDead(), InferShapes()]).run(model)
        assert removed.result.modified
        assert calls == ([model] if again else [])

    def test_what_only_folding_shows_to_be_false(self) -> None:
        model = text_model(
            "(float[6] x) => (float[4,2] z) <int64[1] a = {3}, int64[1] b = {2}>"
            " { s = Concat<axis = 0>(a, b) z = Reshape(x, s) }"
        )
        context = Context()
        Pipeline.parse("fold-constants,infer-shapes").run(model, context)
        assert model.graph.outputs[0].shape == ir.Shape([3, 2])
        assert list(context.contradictions) == ["z"]

    def test_another_model_is_settled_by_itself(self) -> None:
        context, false = Context(), text_model("(float[2] x) => (float[n] z) <float[9] y> { y = Neg(x) z = Abs(y) }")
        for model in (text_model(self.TEXT), false):
            Pipeline().run(model, context)
        assert false.graph[0].outputs[0].shape == ir.Shape([2])


class TestInferred:
    """What `settle` has inferred is not inferred again, unless declarations may say more."""

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("(float[2,3] x) => (float[2,3] y) { h = Neg(x) y = Abs(h) }", True),
            ("(float[2,3] x) => (float[2,3] y) <float[2,3] h> { h = Neg(x) y = Abs(h) }", False),
            ("(float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Neg(x) z = Abs(y) }", False),
            (
                "(float[2,3] x, bool c) => (y) { y = If(c) <then_branch = a () => (float[2,3] p) { p = Neg(x) },"
                " else_branch = b () => (float[2,3] q) { q = Abs(x) }> }",
                False,
            ),
        ],
    )
    def test_where_nothing_is_declared(self, text: str, expected: bool) -> None:
        model, context = text_model(text), Context()
        settle(model, context)
        assert (context.inferred is not None) is expected
        again = text_model(text)
        infer(model, known=context.inferred)
        infer(again)
        assert [value.shape for value in values_of(model)] == [value.shape for value in values_of(again)]

    def test_of_a_model_that_has_changed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A pipeline forgets it with the first change."""
        text = "(float[2,3] x) => (y) { h = Neg(x) y = Abs(h) }"
        ran: list[object] = []
        inferring = inference.run
        monkeypatch.setattr(inference, "run", lambda *a, **b: ran.append(a) or inferring(*a, **b))
        counts = []
        for specification in ("fold-constants", "remove-dead,fold-constants"):
            model = text_model(text)
            model.graph.append(ir.node("Relu", [model.graph[0].outputs[0]]))
            ran.clear()
            (*_, step) = Pipeline.parse(specification).run(model)
            counts.append(len(ran))
            assert all(value.shape == ir.Shape([2, 3]) for value in values_of(step.result.model))
        assert counts == [1, 2], "it is settled anew"


class TestWhatIsNoConstant:
    """Values that are known by name only, and what inference takes them for."""

    def test_a_default_that_callers_replace(self) -> None:
        model = text_model("(float[6] x, int64[2] k) => (float[a,b] y, int64[2] s) { y = Reshape(x, k) s = Shape(y) }")
        (default,) = (value for value in model.graph.inputs if value.name == "k")
        default.const_value = ir.tensor(np.array([2, 3]), name="k")
        model.graph.initializers.add(default)
        same_numbers(model, "minimal,fold-constants", {"x": np.zeros(6, np.float32), "k": np.array([3, 2])})

    @pytest.mark.parametrize("chosen", [True, False])
    def test_initializers_of_branches_that_have_one_name(self, chosen: bool) -> None:
        model = text_model(
            """(float[n] x, bool c) => (float[q,p] y, int64[1] w) {
            y = If(c) <then_branch = t () => (float[a,b] u) <int64[1] k = {5}> {
                    s = Shape(x) r = Concat<axis = 0>(s, k) u = ConstantOfShape(r) },
                else_branch = e () => (float[a,b] v) <int64[1] k = {7}> {
                    z = Shape(x) q = Concat<axis = 0>(z, k) v = ConstantOfShape(q) }>
            one = Constant<value_ints = [1]>() h = Shape(y) w = Gather(h, one) }"""
        )
        names = [value.name for value in values_of(model)]
        infer(model)
        assert [value.name for value in values_of(model)] == names
        same_numbers(model, "fold-constants", {"x": np.zeros(4, np.float32), "c": np.array(chosen)})

    @pytest.mark.parametrize("chosen", [True, False])
    @pytest.mark.parametrize("number", range(3))
    def test_a_name_that_would_be_made_up(self, number: int, chosen: bool) -> None:
        model = text_model(
            """(float[2,3] x, float[4] w, bool c) => (int64[k] z) { p = Add(x, x)
            z = If(c) <then_branch = t () => (int64[k] u) { h = Neg(w) u = Shape(h) },
                else_branch = e () => (int64[k] v) { h = Abs(w) f = Neg(h) v = Shape(f) }> }"""
        )
        model.graph[0].outputs[0].name = f"h {number}"
        inputs = {"x": np.zeros((2, 3), np.float32), "w": np.zeros(4, np.float32), "c": np.array(chosen)}
        same_numbers(model, "fold-constants", inputs)

    def test_an_output_that_is_an_initializer(self) -> None:
        model = text_model("(float[2,3] x) => (float[9] w, float[a,b] y) <float[2] w = {1, 2}> { y = Neg(x) }")
        context = Context()
        assert settle(model, context) == 1
        assert model.graph.outputs[0].shape == ir.Shape([2])
        assert list(context.contradictions) == ["w"]
        assert settle(model, Context()) == 0


@pytest.mark.parametrize(
    ("kind", "entry", "turn", "exit"),
    [
        ("seq", "SequenceConstruct(a)", "SequenceInsert(acc, b)", "SequenceAt(y, last)"),
        ("optional", "Optional(a)", "Optional(b)", "OptionalGetElement(y)"),
    ],
)
@pytest.mark.parametrize("pipeline", ["default", "fold-constants"])
def test_elements_that_a_loop_carries(kind: str, entry: str, turn: str, exit: str, pipeline: str) -> None:
    """The last one has another shape than the first."""
    model = text_model(
        f"""(float[2,3] a, float[2,4] b, bool c, int64 n) => (int64[r] s) {{ q = {entry}
        y = Loop(n, c, q) <body = bd (int64 i, bool cc, {kind}(float) acc) => (bool co, {kind}(float) o) {{
            co = Identity(cc) o = {turn} }}>
        last = Constant<value_int = -1>() e = {exit} s = Shape(e) }}""",
        opset=18,
    )
    inputs = {"a": np.zeros((2, 3), np.float32), "b": np.zeros((2, 4), np.float32)}
    same_numbers(model, pipeline, {**inputs, "c": np.array(True), "n": np.array(3)})


class TestModelsWithoutInference:
    @pytest.mark.parametrize("node", ["com.microsoft.Gelu(x)", "ai.onnx.ml.Binarizer(x)"])
    def test_a_domain_that_is_not_imported(self, node: str) -> None:
        """ONNX rejects it, and ONNX Runtime does not."""
        model = text_model(
            f"(float[1,6] x) => (int64[r] s, float[a,b] g, int64[2,k] z) <float[9] y> {{ "
            f"y = Neg(x) s = Shape(y) g = {node} z = NonZero(x) }}"
        )
        same_numbers(model, "default", {"x": np.ones((1, 6), np.float32)})

    def test_nothing_is_believed_where_inference_fails(self) -> None:
        function = """<domain: "own", opset_import: ["": 17]> F (a) => (b) { b = Einsum<equation = "i1->i">(a) }"""
        model = text_model(f"(float[6] x) => (int64[r] s) <float[9] y> {{ y = Neg(x) s = Shape(y) }} {function}")
        same_numbers(model, "fold-constants", {"x": np.ones(6, np.float32)})
