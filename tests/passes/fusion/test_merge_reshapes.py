"""merge-reshapes: one Reshape for a chain, whatever its open dimensions turn out to be."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, RuntimeException

from passes.fusion.merge_reshapes import merge_reshapes
from passes.graphs.scopes import DISPUTED
from passes.rewriting.base import Context
from tests.passes.harness import apply, model, operators, reasons, run, stops


def shape(*dims: int) -> np.ndarray:
    return np.array(dims, np.int64)


def target(m: ir.Model) -> list[int]:
    """Return what the only Reshape is told."""
    (node,) = [node for node in m.graph if node.op_type == "Reshape"]
    tensor = node.inputs[1].const_value if node.inputs[1] else None
    assert tensor is not None
    return list(tensor.numpy())


class TestMatches:
    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            ("a = Reshape(x, s) y = Reshape(a, t)", [2, 12]),
            ("a = Flatten(x) y = Reshape(a, t)", [2, 12]),
            ("a = Unsqueeze(x, one) y = Flatten(a)", [2, 12]),
            ("a = Unsqueeze(x, one) b = Flatten(a) y = Unsqueeze(b, one)", [2, 1, 12]),
            ("a = Reshape(x, s) y = Unsqueeze(a, one)", [6, 1, 4]),
            ("a = Unsqueeze(x, one) b = Unsqueeze(a, one) y = Reshape(b, t)", [2, 12]),
        ],
    )
    def test_one_for_all(self, body: str, expected: list[int]) -> None:
        values = {"s": shape(6, 4), "t": shape(2, 12), "one": shape(1)}
        used = {name: value for name, value in values.items() if f", {name})" in body}
        m = model(f"(float[2,3,4] x) => (float[] y) {{ {body} }}", **used)
        apply(merge_reshapes, m)
        assert operators(m) == ["Reshape"]
        assert target(m) == expected

    @pytest.mark.parametrize(
        "body",
        [
            "a = Unsqueeze(x, one) b = Squeeze(a, one)",
            "a = Reshape(x, s) b = Reshape(a, t)",
            "a = Flatten(x) b = Reshape(a, t)",
        ],
    )
    @pytest.mark.parametrize("batch", ["2", "n"])
    def test_back_to_the_shape_it_had(self, body: str, batch: str) -> None:
        values = {"s": shape(-1, 4), "t": shape(-1, 3, 4), "one": shape(1)}
        used = {name: value for name, value in values.items() if f", {name})" in body}
        m = model(f"(float[{batch},3,4] x) => (float[{batch},3,4] y) {{ {body} y = Neg(b) }}", **used)
        m.graph[1].outputs[0].shape = m.graph.inputs[0].shape
        apply(merge_reshapes, m)
        assert operators(m) == ["Neg"]

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            ("a = Reshape(x, s) b = Transpose<perm=[0,2,1,3]>(a) y = Reshape(b, t)", [2, 12]),
            ("a = Transpose<perm=[1,0,2,3]>(u) y = Reshape(a, t)", [2, 12]),
            ("a = Reshape(x, s) y = Transpose<perm=[3,0,2,1]>(a)", None),
            ("a = Reshape(x, s) y = Transpose<perm=[0,2,3,1]>(a)", [2, 3, 4, 1]),
            ("a = Reshape(x, s) y = Transpose(a)", None),
            ("a = Unsqueeze(v, zero) y = Transpose(a)", [5, 1]),
        ],
    )
    def test_a_transpose_of_axes_of_size_one(self, body: str, expected: list[int] | None) -> None:
        values = {"s": shape(2, 1, 3, 4), "t": shape(2, 12), "zero": shape(0)}
        used = {name: value for name, value in values.items() if f", {name})" in body}
        m = model(f"(float[2,3,4] x, float[1,2,3,4] u, float[5] v) => (float[] y) {{ {body} }}", **used)
        apply(merge_reshapes, m)
        if expected is None:
            assert operators(m) == ["Reshape", "Transpose"]
        else:
            assert operators(m) == ["Reshape"]
            assert target(m) == expected

    def test_windows_of_which_there_is_one(self) -> None:
        """As Swin has them at its last stage: there and back."""
        m = model(
            """(float[1,49,6] x) => (float[1,49,6] y)
            { a = Reshape(x, s) b = Transpose<perm=[0,1,3,2,4,5]>(a) c = Reshape(b, t) y = Neg(c) }""",
            s=shape(1, 1, 7, 1, 7, 6),
            t=shape(1, 49, 6),
        )
        apply(merge_reshapes, m)
        assert operators(m) == ["Neg"]

    def test_before_opset_13(self) -> None:
        m = model("(float[2,3] x) => (float[] y) { a = Unsqueeze<axes=[0]>(x) y = Unsqueeze<axes=[3]>(a) }", opset=11)
        apply(merge_reshapes, m)
        assert target(m) == [1, 2, 3, 1]

    def test_an_output_keeps_its_name(self) -> None:
        m = model("(float[2,3] x) => (float[2,3] y) { a = Unsqueeze(x, one) y = Squeeze(a, one) }", one=shape(1))
        apply(merge_reshapes, m)
        assert operators(m) == ["Identity"]

    def test_one_before_two(self) -> None:
        m = model(
            """(float[2,3,4] x) => (float[] y, float[] z)
            { a = Unsqueeze(x, one) y = Flatten(a) z = Flatten<axis=3>(a) }""",
            one=shape(1),
        )
        apply(merge_reshapes, m)
        assert operators(m) == ["Reshape", "Reshape"]


class TestOpenDimensions:
    def test_a_shape_that_copies_nothing_is_taken_as_it_is(self) -> None:
        m = model("(float[n,m,4] x) => (float[] y) { a = Flatten(x) y = Reshape(a, s) }", s=shape(-1, 2))
        apply(merge_reshapes, m)
        assert m.graph[0].inputs[1] is m.graph.initializers["s"]

    def test_a_shape_that_is_computed(self) -> None:
        text = "(float[n,m,4] x, int64[2] s) => (float[] y) {{ a = Flatten(x) y = Reshape{}(a, s) }}"
        inputs = {"x": np.ones((2, 3, 4), np.float32), "s": shape(4, 6)}
        m = model(text.format("<allowzero=1>"))
        apply(merge_reshapes, m, inputs=inputs)
        assert operators(m) == ["Reshape"]
        assert m.graph[0].attributes["allowzero"].as_int() == 1
        assert reasons(apply(merge_reshapes, model(text.format("")), inputs=inputs))

    def test_a_zero_copies_what_x_has_at_its_place(self) -> None:
        m = model("(float[n,m,4] x) => (float[] y) { a = Unsqueeze(x, two) y = Unsqueeze(a, two) }", two=shape(2))
        apply(merge_reshapes, m)
        assert target(m) == [0, 0, 1, 1, 4]

    def test_one_can_be_computed(self) -> None:
        m = model("(float[n,3,4] x) => (float[] y) { a = Unsqueeze(x, zero) y = Unsqueeze(a, zero) }", zero=shape(0))
        apply(merge_reshapes, m)
        assert target(m) == [1, 1, -1, 3, 4]

    def test_two_cannot(self) -> None:
        m = model("(float[n,m,4] x) => (float[] y) { a = Unsqueeze(x, zero) y = Unsqueeze(a, zero) }", zero=shape(0))
        assert reasons(apply(merge_reshapes, m)) == ["2 dimensions of [1,1,n,m,4] are open"]

    def test_not_one_beside_a_copy(self) -> None:
        """With n = 0, Flatten knows that there are 4 columns, and Reshape cannot."""
        m = model("(float[n,m] x) => (float[] y) { a = Unsqueeze(x, last) y = Flatten(a) }", last=shape(2))
        m.graph[1].outputs[0].shape = ir.Shape(["n", None])
        result = apply(merge_reshapes, m, inputs={"x": np.ones((0, 4), np.float32)})
        assert "none can be computed" in reasons(result)[0]

    def test_unless_the_model_did_so_itself(self) -> None:
        m = model(
            "(float[n,3,4] x) => (float[] y) { a = Unsqueeze(x, last) y = Reshape(a, s) }",
            last=shape(3),
            s=shape(0, -1),
        )
        m.graph[1].outputs[0].shape = ir.Shape(["n", None])
        apply(merge_reshapes, m)
        assert target(m) == [0, -1]

    def test_a_dimension_of_zero(self) -> None:
        x = {"x": np.ones((0, 4), np.float32)}
        for opset, expected in ((17, True), (13, False)):
            m = model(
                "(float[0,4] x) => (float[] y) { a = Unsqueeze(x, one) y = Unsqueeze(a, one) }",
                one=shape(1),
                opset=opset,
            )
            apply(merge_reshapes, m, inputs=x)
            assert target(m) == [0, 1, 1, 4]  # x has its 0 at the same place
            m = model(
                "(float[0,4] x) => (float[] y) { a = Unsqueeze(x, zero) y = Unsqueeze(a, zero) }",
                zero=shape(0),
                opset=opset,
            )
            result = apply(merge_reshapes, m, inputs=x)
            assert bool(result.rewrites) == expected
            if expected:
                assert target(m) == [1, 1, 0, 4]
                assert m.graph[0].attributes["allowzero"].as_int() == 1
            else:
                assert "a 0 copies a dimension" in reasons(result)[0]


class TestSkips:
    def test_an_unknown_shape(self) -> None:
        m = model("(float[n,2] x) => (float[] y) { a = Unsqueeze(x, one) y = Squeeze(a) }", one=shape(1))
        result = merge_reshapes.run(m, Context())
        assert reasons(result) == ["the shape of y is not known"]

    def test_a_disputed_shape(self) -> None:
        m = model(
            "(float[2,3] x) => (float[] y) { a = Unsqueeze(x, zero) b = Unsqueeze(a, zero) y = Neg(b) }", zero=shape(0)
        )
        m.graph[1].outputs[0].meta[DISPUTED] = True
        result = merge_reshapes.run(m, Context())
        assert reasons(result) == ["the shape of b is not known"]

    def test_used_elsewhere(self) -> None:
        m = model(
            "(float[2,3] x) => (float[] y, float[] z) { a = Unsqueeze(x, one) y = Flatten(a) z = Neg(a) }", one=shape(0)
        )
        assert reasons(apply(merge_reshapes, m)) == ["a is used elsewhere"]

    def test_a_transpose_alone(self) -> None:
        m = model("(float[1,3] x) => (float[] y) { a = Transpose(x) y = Neg(a) }")
        assert not apply(merge_reshapes, m).rewrites

    def test_a_transpose_of_an_open_axis(self) -> None:
        """It may be 1, or not."""
        m = model(
            "(float[n,3] x) => (float[] y) { a = Transpose(x) y = Reshape(a, flat) }",
            flat=shape(-1),
        )
        assert not apply(merge_reshapes, m).rewrites

    def test_a_permutation_that_the_caller_gives(self) -> None:
        functions = """<domain: "local", opset_import: ["": 17]>
            f <p> (x) => (y) { a = Transpose<perm: ints = @p>(x) y = Flatten(a) }"""
        m = model("(float[1,3,1] x) => (float[] y) { y = local.f <p=[2,1,0]> (x) }", functions=functions)
        assert not apply(merge_reshapes, m).rewrites

    def test_used_as_a_shape(self) -> None:
        m = model(
            """(int64[2] x, float[2,3] d) => (int64[] y, float[] z)
            { a = Reshape(x, two) y = Reshape(a, one) z = Reshape(d, a) }""",
            two=shape(2),
            one=shape(1, 2),
        )
        result = apply(merge_reshapes, m, inputs={"x": shape(3, 2), "d": np.ones((2, 3), np.float32)})
        assert reasons(result) == ["a is used elsewhere"]

    def test_across_quantization(self) -> None:
        m = model(
            """(float[2,3] x) => (float[] y) { a = Unsqueeze(x, one) q = QuantizeLinear(a, scale, zero)
            d = DequantizeLinear(q, scale, zero) y = Flatten(d) }""",
            one=shape(0),
            scale=np.array(0.1, np.float32),
            zero=np.array(0, np.int8),
        )
        assert not apply(merge_reshapes, m).rewrites

    def test_the_budget(self) -> None:
        body = " ".join(f"a{i} = Flatten(x) b{i} = Reshape(a{i}, s) y{i} = Neg(b{i})" for i in range(3))
        m = model(f"(float[2,3,4] x) => (float[] y0, float[] y1, float[] y2) {{ {body} }}", s=shape(4, 6))
        assert stops(merge_reshapes, m, 2) == 2
        assert operators(m).count("Flatten") == 1


class TestScopes:
    def test_a_function_in_which_nothing_is_known(self) -> None:
        functions = """<domain: "local", opset_import: ["": 17]> f (x) => (y) {
            s = Constant<value_ints=[-1, 2]>() a = Flatten(x) y = Reshape(a, s) }"""
        m = model("(float[2,3,4] x) => (float[] y) { y = local.f(x) }", functions=functions)
        assert reasons(apply(merge_reshapes, m)) == ["the type of x is not known"]

    @pytest.mark.parametrize("hidden", [True, False])
    def test_a_name_that_a_subgraph_hides(self, hidden: bool) -> None:
        inner = "x" if hidden else "v"
        m = model(
            f"""(float[2,3] x, int64 n, bool c) => (float[2,3] y)
            {{ a = Unsqueeze(x, one) b = Squeeze(a, one) z = Neg(x) y = Loop (n, c, z) <
               body = l (int64 i, bool k, float[2,3] {inner}) => (bool o, float[2,3] w)
                   {{ o = Identity(k) w = Add({inner}, b) }}> }}""",
            one=shape(1),
        )
        inputs = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(2), "c": np.array(True)}
        apply(merge_reshapes, m, inputs=inputs)
        assert ("Squeeze" in operators(m)) == hidden


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[int | str], list[tuple[str, list[int]]]]:
    """The shape of an input, with open dimensions as names, and operators that fit one another."""
    dims: list[int | str] = draw(
        st.lists(
            st.sampled_from([1, 1, 2, 3, "n", "m"]),
            min_size=1,
            max_size=4,
            unique_by=lambda d: d if isinstance(d, str) else object(),
        )
    )
    start, steps = list(dims), []
    for _ in range(draw(st.integers(2, 4))):
        ones = [index for index, dim in enumerate(dims) if dim == 1]
        match draw(st.sampled_from(["Flatten", "Reshape", "Squeeze", "Unsqueeze"])):
            case "Unsqueeze":
                axis = draw(st.integers(0, len(dims)))
                steps.append(("Unsqueeze", [axis]))
                dims.insert(axis, 1)
            case "Squeeze" if ones:
                axis = draw(st.sampled_from(ones))
                steps.append(("Squeeze", [axis]))
                del dims[axis]
            case "Flatten":
                axis = draw(st.integers(0, len(dims)))
                steps.append(("Flatten", [axis]))
                dims = ["?", "?"]
            case _:
                kept = draw(st.integers(0, len(dims)))
                tail = draw(st.sampled_from([[-1], [1, -1], [-1, 1]]))
                steps.append(("Reshape", [0] * kept + tail))
                dims = [*dims[:kept], *("?" if each < 0 else each for each in tail)]
    return start, steps


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(chains())
def test_any_chain_with_any_sizes(chain: tuple[list[int | str], list[tuple[str, list[int]]]]) -> None:
    dims, steps = chain
    nodes, constants = [], {}
    for index, (operator, argument) in enumerate(steps):
        if operator == "Flatten":
            nodes.append(f"a{index + 1} = Flatten<axis={argument[0]}>(a{index})")
        else:
            constants[f"c{index}"] = shape(*argument)
            nodes.append(f"a{index + 1} = {operator}(a{index}, c{index})")
    text = f"(float[{','.join(map(str, dims))}] a0) => (float[] y) {{ {' '.join(nodes)} y = Neg(a{len(steps)}) }}"
    m = model(text, **constants)
    before = ir.to_proto(m)
    merge_reshapes.run(m, Context())
    after = ir.to_proto(m)
    onnx.checker.check_model(after, full_check=True)
    for n, k in ((2, 3), (0, 3), (2, 0), (0, 0)):
        sizes = [{"n": n, "m": k}.get(dim, dim) if isinstance(dim, str) else dim for dim in dims]
        x = {"a0": np.arange(np.prod(sizes, dtype=int), dtype=np.float32).reshape(sizes)}
        try:
            expected = run(before, x)["y"]
        except (Fail, RuntimeException):
            continue  # what cannot be computed before need not be computed after
        np.testing.assert_array_equal(run(after, x)["y"], expected, strict=True)


def test_a_constant_that_is_an_output_too() -> None:
    m = model(
        "(float[2] x) => (float[1,2] c, float[1,2] y) { c = Constant<value = float[1,2] {1, 2}>() y = Flatten(c) }"
    )
    assert not merge_reshapes.run(m, Context()).rewrites
