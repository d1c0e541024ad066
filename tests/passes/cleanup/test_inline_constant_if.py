"""An If with a constant condition becomes its branch: names, captures, initializers, outputs, nesting, functions."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.cleanup.inline_constant_if import InlineConstantIf
from passes.graphs import lineage
from passes.graphs.scopes import name_nodes, scopes
from passes.graphs.traversal import with_nested
from passes.rewriting.base import Budget, Context, Result

X = {"x": np.array([-2.0, 0.5, 3.0], np.float32)}


def read(text: str) -> ir.Model:
    model = ir.from_onnx_text(text)
    for scope in scopes(model):
        name_nodes(scope)
    return model


def outputs(model: ir.Model, feeds: dict[str, np.ndarray] = X) -> list[np.ndarray]:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return list(ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"]).run(None, feeds))


def run(model: ir.Model, budget: int | None = None) -> Result:
    return InlineConstantIf().run(model, Context(budget=Budget(budget)))


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def check(model: ir.Model, rewrites: int) -> Result:
    """Inline; the numbers, the interface and a second run must be as they should be."""
    before, names = outputs(model), [value.name for value in model.graph.outputs]
    result = run(model)
    assert len(result.rewrites) == rewrites, result
    for old, new in zip(before, outputs(model), strict=True):
        assert old.dtype == new.dtype
        np.testing.assert_array_equal(old, new)
    assert [value.name for value in model.graph.outputs] == names
    assert [value.name for value in model.graph.inputs] == list(X)
    assert not run(model).modified
    return result


HEAD = '<ir_version: 10, opset_import: ["": 20]>\n'
BOTH = (
    HEAD
    + """
agraph (float[3] x) => (float[3] y) <bool c = {%d}> {
    h = Relu(x)
    y = If(c) <
        then_branch = yes () => (float[3] t) <float k = {2}> { a = Mul(h, k)  t = Neg(a) },
        else_branch = no () => (float[3] t) { a = Add(h, x)  t = Abs(a) }
    >
}"""
)


@pytest.mark.parametrize(("condition", "left"), [(1, ["Relu", "Mul", "Neg"]), (0, ["Relu", "Add", "Abs"])])
def test_the_branch_that_is_taken(condition: int, left: list[str]) -> None:
    model = read(BOTH % condition)
    result = check(model, 1)
    assert operators(model) == left
    assert result.rewrites[0].before == ("If",)
    assert result.rewrites[0].after == tuple(left[1:])
    assert set(model.graph.initializers) == ({"c", "k"} if condition else {"c"})
    values = {value.name for node in model.graph for value in node.outputs}
    assert values == {"h", "a", "y"}  # the values of the branch that went take no names away


def test_nodes_that_move_are_the_same_nodes() -> None:
    model = read(BOTH % 1)
    branch = list(model.graph[1].attributes["then_branch"].as_graph())
    branch[0].metadata_props["key"] = "value"
    run(model)
    assert list(model.graph)[1:] == branch
    assert branch[0].metadata_props == {"key": "value"}  # nobody made them, and they stand for themselves


def test_a_constant_node_is_a_condition_and_a_computed_one_is_not() -> None:
    text = (
        HEAD
        + """
    agraph (float[3] x) => (float[3] y) {
        c = Constant<value = bool {1}>()
        y = If(c) <then_branch = a () => (float[3] t) { t = Neg(x) }, else_branch = b () => (float[3] t) { t = Abs(x) }>
    }"""
    )
    model = read(text)
    check(model, 1)
    assert operators(model) == ["Constant", "Neg"]
    computed = read(text.replace("c = Constant<value = bool {1}>()", "s = ReduceSum<keepdims=0>(x) c = Cast<to=9>(s)"))
    check(computed, 0)
    assert "If" in operators(computed)


def test_a_condition_that_callers_may_override_is_not_constant() -> None:
    model = read(BOTH % 1)
    model.graph.inputs.append(model.graph.initializers["c"])
    result = run(model)
    assert not result.rewrites
    assert not result.skips
    model.ir_version = 3  # there, all initializers had to be inputs
    assert len(run(model).rewrites) == 1
    assert {value.name for value in model.graph.inputs} == {"x", "c", "k"}


def test_a_condition_of_two_elements_is_left_alone_and_said_so() -> None:
    model = read(BOTH % 1)
    model.graph.initializers["c"].const_value = ir.tensor(np.array([True, True]))
    [skip] = run(model).skips
    assert skip.node == "If"
    assert "2 elements" in skip.reason


def test_names_that_others_bear_are_replaced_and_origins_are_kept() -> None:
    model = read(
        HEAD
        + """
    agraph (float[3] x) => (float[3] y, float[3] z) <bool yes = {1}, bool no = {0}> {
        s = ReduceMax<keepdims=0>(x)
        b = Cast<to=9>(s)
        w = If(b) <
            then_branch = e () => (float[3] t) <float k = {3}> { a = Mul(x, k)  t = Neg(a) },
            else_branch = f () => (float[3] t) { a = Exp(x)  t = Identity(a) }
        >
        y = If(yes) <
            then_branch = p () => (float[3] t) <float k = {5}> { a = Mul(w, k)  t = Abs(a) },
            else_branch = q () => (float[3] t) { t = Neg(x) }
        >
        z = If(no) <
            then_branch = m () => (float[3] t) { t = Neg(x) },
            else_branch = n () => (float[3] t) <float k = {7}> { a = Add(w, k)  t = Sin(a) }
        >
    }"""
    )
    for node in with_nested(list(model.graph)):
        node.name = "same" if node.op_type in ("Mul", "Add") else node.name
    check(model, 2)
    assert operators(model) == ["ReduceMax", "Cast", "If", "Mul", "Abs", "Add", "Sin"]
    mul, add = model.graph[3], model.graph[5]
    assert mul.name != "same"  # two nodes of this name would remain
    assert lineage.origin(mul) == ["same"]
    assert mul.outputs[0].name not in ("a", "t")
    assert mul.inputs[1].name != "k"
    assert add.outputs[0].name != mul.outputs[0].name


def test_outputs_that_are_second_names() -> None:
    model = read(
        HEAD
        + """
    agraph (float[3] x) => (float[3] y0, float[3] y1, float[1] y2, float[3] y3) <bool c = {1}> {
        y0, y1, y2, u = If(c) <
            then_branch = a () => (float[3] t, float[3] t, float[1] k, float[3] t) <float[1] k = {2}> { t = Neg(x) },
            else_branch = b () => (float[3] r, float[3] s, float[1] v, float[3] w) <float[1] k = {1}> {
                r = Neg(x) s = Abs(x) v = Neg(k) w = Identity(x)
            }
        >
        y3 = Abs(u)
    }"""
    )
    model.graph[0].outputs[0].doc_string = "the first"
    result = run(model)
    assert len(result.rewrites) == 1
    assert operators(model) == ["Neg", "Identity", "Identity", "Abs"]
    first, second, third, _ = outputs(model)
    np.testing.assert_array_equal(first, -X["x"])
    np.testing.assert_array_equal(second, -X["x"])
    np.testing.assert_array_equal(third, [2])
    assert [value.name for value in model.graph.outputs] == ["y0", "y1", "y2", "y3"]
    assert model.graph.outputs[0].doc_string == "the first"
    identity = model.graph[1]
    assert identity.metadata_props[lineage.PASS] == "inline-constant-if"
    assert lineage.origin(identity) == ["If"]
    assert model.graph[3].inputs[0] is model.graph[0].outputs[0]


def test_a_branch_that_returns_a_value_from_around_it_by_name() -> None:
    text = (
        HEAD
        + """
    agraph (float[3] x) => (float[3] y) <bool c = {1}> {
        h = Relu(x)
        w = If(c) <
            then_branch = a () => (float[3] h) { unused = Neg(x) },
            else_branch = b () => (float[3] t) { t = Abs(x) }
        >
        y = Neg(w)
    }"""
    )
    model = read(text)  # ONNX Runtime refuses such a branch
    assert len(run(model).rewrites) == 1
    np.testing.assert_array_equal(outputs(model)[0], -np.maximum(X["x"], 0))
    as_output = read(text.replace("=> (float[3] y)", "=> (float[3] w)").replace("y = Neg(w)", ""))
    run(as_output)
    assert operators(as_output) == ["Relu", "Neg", "Identity"]
    np.testing.assert_array_equal(outputs(as_output)[0], np.maximum(X["x"], 0))
    nowhere = read(text.replace("then_branch = a () => (float[3] h)", "then_branch = a () => (float[3] nothing)"))
    [skip] = run(nowhere).skips
    assert "returns nothing, which nothing computes" in skip.reason


def test_nested_ifs_and_bodies_of_loops() -> None:
    model = read(
        HEAD
        + """
    agraph (float[3] x) => (float[3] y) <bool c = {1}, int64 n = {3}> {
        y = If(c) <
            then_branch = a () => (float[3] t) <bool d = {0}> {
                r = If(d) <
                    then_branch = a1 () => (float[3] t1) { t1 = Neg(x) },
                    else_branch = a2 () => (float[3] t1) { t1 = Mul(x, x) }
                >
                t = Loop(n, c, r) <
                    body = l (int64 i, bool go, float[3] v) => (bool on, float[3] o) <bool e = {1}> {
                        on = Identity(go)
                        o = If(e) <
                            then_branch = l1 () => (float[3] t1) { t1 = Add(v, x) },
                            else_branch = l2 () => (float[3] t1) { t1 = Neg(v) }
                        >
                    }
                >
            },
            else_branch = b () => (float[3] t) { t = Abs(x) }
        >
    }"""
    )
    check(model, 3)
    assert operators(model) == ["Mul", "Loop"]
    body = model.graph[1].attributes["body"].as_graph()
    assert [node.op_type for node in body] == ["Identity", "Add"]


def test_in_a_function_initializers_become_constant_nodes() -> None:
    model = read("""<ir_version: 10, opset_import: ["": 20, "my": 1]>
    agraph (float[3] x) => (float[3] y) { y = my.f(x) }
    <domain: "my", opset_import: ["": 20]>
    f (x) => (y) {
        c = Constant<value = bool {1}>()
        y = If(c) <
            then_branch = a () => (float[3] t) <float k = {4}> { t = Mul(x, k) },
            else_branch = b () => (float[3] t) { t = Abs(x) }
        >
    }""")
    check(model, 1)
    [function] = model.functions.values()
    assert [node.op_type for node in function] == ["Constant", "Constant", "Mul"]
    assert not function.graph.initializers
    assert [value.name for value in function.outputs] == ["y"]


def test_a_sequence_cannot_be_copied_before_opset_16() -> None:
    text = """<ir_version: 8, opset_import: ["": %d]>
    agraph (float[3] x) => (seq(float[3]) y, seq(float[3]) z) <bool c = {1}> {
        y = SequenceConstruct(x)
        z = If(c) <
            then_branch = a () => (seq(float[3]) y) { u = Neg(x) },
            else_branch = b () => (seq(float[3]) t) { t = SequenceConstruct(x, x) }
        >
    }"""
    [skip] = run(read(text % 13)).skips
    assert "opset 13 has no Identity for the output z" in skip.reason
    assert len(run(read(text % 16)).rewrites) == 1


def test_the_budget_ends_it() -> None:
    model = read(
        HEAD
        + """
    agraph (float[3] x) => (float[3] y) <bool c = {1}> {
        h = If(c) <then_branch = a () => (float[3] t) { t = Neg(x) }, else_branch = b () => (float[3] t) { t = Abs(x) }>
        y = If(c) <then_branch = d () => (float[3] t) { t = Sin(h) }, else_branch = e () => (float[3] t) { t = Abs(x) }>
    }"""
    )
    before = outputs(model)
    assert len(run(model, budget=1).rewrites) == 1
    assert operators(model) == ["Neg", "If"]
    np.testing.assert_array_equal(outputs(model)[0], before[0])


def test_ifs_in_one_another() -> None:
    inner = "t0 = Neg(x)"
    for depth in range(1, 30):
        inner = (
            f"t{depth} = If(c) <then_branch = a{depth} () => (float[3] t{depth - 1}) {{ {inner} }}, "
            f"else_branch = b{depth} () => (float[3] e{depth}) {{ e{depth} = Abs(x) }}>"
        )
    text = f"agraph (float[3] x) => (float[3] y) <bool c = {{1}}> {{ {inner} y = Neg(t29) }}"
    model = read(HEAD + text)
    check(model, 29)
    assert operators(model) == ["Neg", "Neg"]


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Nested Ifs with constant and computed conditions, whose values bear few names."""
    count = iter(range(10_000))

    def block(values: list[str], depth: int) -> tuple[str, str]:
        text, known = "", list(values)
        for _ in range(draw(st.integers(1, 3))):
            name = f"v{next(count)}"
            if depth and draw(st.booleans()):
                condition = draw(st.sampled_from(["yes", "no", "maybe"]))
                branches = []
                for which in ("then_branch", "else_branch"):
                    body, result = block(known, depth - 1)
                    branches.append(f"{which} = g () => (float[3] {result}) <float k{result} = {{3}}> {{ {body} }}")
                text += f"{name} = If({condition}) <{', '.join(branches)}>\n"
            else:
                operator = draw(st.sampled_from(["Add", "Sub", "Max"]))
                text += f"{name} = {operator}({draw(st.sampled_from(known))}, {draw(st.sampled_from(known))})\n"
            known.append(name)
        return text, known[-1]

    text, result = block(["x"], 3)
    return HEAD + (
        f"agraph (float[3] x) => (float[3] {result}) <bool yes = {{1}}, bool no = {{0}}> "
        f"{{ s = ReduceMax<keepdims=0>(x) maybe = Cast<to=9>(s)\n{text} }}"
    )


@settings(max_examples=40, deadline=None)
@given(programs())
def test_any_program_computes_the_same(text: str) -> None:
    model = read(text)
    before = outputs(model)
    run(model)
    np.testing.assert_array_equal(outputs(model)[0], before[0])
    assert not run(model).modified
    for node in with_nested(list(model.graph)):
        assert node.op_type != "If" or node.inputs[0].name == "maybe"


def test_names_that_nodes_of_a_branch_share() -> None:
    """Nodes that are moved get names that no other node has, also none that moves with them."""
    model = read(
        """<ir_version: 8, opset_import: ["": 17]>
        agraph (float[3] x) => (float[3] y, float[3] z) { [n] z = Neg(x) t = Constant <value = bool {1}> () y = If(t) <
            then_branch = a () => (float[3] p) { [n_2] o = Neg(x) [n] p = Abs(o) },
            else_branch = b () => (float[3] q) { q = Neg(x) }> }"""
    )
    check(model, 1)
    names = [node.name for node in model.graph]
    assert len(set(names)) == len(names)
