"""lift-constant-nodes: every kind of Constant, in the main graph and in subgraphs, and those that stay."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from passes.cleanup.lift_constant_nodes import LiftConstantNodes
from passes.rewriting.base import Context
from tests.passes.harness import all_nodes, apply, model, reasons, run, stops


def constants(m: ir.Model) -> int:
    return sum(node.op_type == "Constant" for node in all_nodes(m))


class TestMatches:
    @pytest.mark.parametrize(
        ("attribute", "expected"),
        [
            ("value = float[2] {1.5, -0.0}", np.array([1.5, -0.0], np.float32)),
            ("value_float = 0.1", np.array(0.1, np.float32)),
            ("value_floats = [0.1, 2.0]", np.array([0.1, 2], np.float32)),
            ("value_int = 7", np.array(7)),
            ("value_ints = [7, 9007199254740993]", np.array([7, 9007199254740993])),
        ],
    )
    def test_numbers(self, attribute: str, expected: np.ndarray) -> None:
        dtype = "float" if expected.dtype == np.float32 else "int64"
        m = model(f"({dtype}[2] x) => ({dtype}[2] y) {{ c = Constant<{attribute}>() y = Add(x, c) }}")
        apply(LiftConstantNodes(), m)
        assert constants(m) == 0
        tensor = m.graph.initializers["c"].const_value
        assert tensor is not None
        np.testing.assert_array_equal(tensor.numpy(), expected, strict=True)
        assert tensor.numpy().tobytes() == expected.tobytes()

    @pytest.mark.parametrize(("attribute", "shape"), [('value_string = "é"', ()), ('value_strings = ["a", ""]', (2,))])
    def test_strings(self, attribute: str, shape: tuple[int, ...]) -> None:
        dims = f"[{shape[0]}]" if shape else ""
        m = model(f"() => (string{dims} y) {{ c = Constant<{attribute}>() y = Identity(c) }}")
        before = run(ir.to_proto(m), {})["y"]
        LiftConstantNodes().run(m, Context())
        after = ir.to_proto(m)
        onnx.checker.check_model(after, full_check=True)
        assert constants(m) == 0
        np.testing.assert_array_equal(run(after, {})["y"], before, strict=True)
        assert before.shape == shape

    def test_subgraphs(self) -> None:
        m = model("""(float[2] x, bool c) => (float[2] y) { y = If (c) <
            then_branch = t () => (float[2] r) { k = Constant<value_floats=[1.0, 2.0]>() r = Add(x, k) },
            else_branch = e () => (float[2] q) { k = Constant<value_float=3.0>() q = Add(x, k) }> }""")
        for decision in (True, False):
            copy = ir.from_proto(ir.to_proto(m))
            apply(LiftConstantNodes(), copy, inputs={"x": np.ones(2, np.float32), "c": np.array(decision)})
            assert constants(copy) == 0
            assert not copy.graph.initializers

    def test_what_is_known_of_the_value_stays(self) -> None:
        m = model("(float[2] x) => (float[2] y) { c = Constant<value_float=3.0>() y = Add(x, c) }")
        m.graph[0].outputs[0].metadata_props["note"] = "three"
        LiftConstantNodes().run(m, Context())
        assert m.graph.initializers["c"].metadata_props == {"note": "three"}

    def test_before_ir_version_4(self) -> None:
        m = model("(float[2] x) => (float[2] y) { c = Constant<value=float[2] {1, 2}>() y = Add(x, c) }", opset=9)
        m.ir_version = 3
        LiftConstantNodes().run(m, Context())
        proto = ir.to_proto(m)
        onnx.checker.check_model(proto, full_check=True)
        assert [value.name for value in proto.graph.input] == ["x", "c"]
        np.testing.assert_array_equal(run(proto, {"x": np.zeros(2, np.float32)})["y"], [1, 2])

    def test_the_budget(self) -> None:
        body = " ".join(f"c{i} = Constant<value_float=1.0>() y{i} = Add(x, c{i})" for i in range(3))
        m = model(f"(float[2] x) => (float[2] y0, float[2] y1, float[2] y2) {{ {body} }}")
        assert stops(LiftConstantNodes(), m, 2) == 2
        assert constants(m) == 1


class TestSkips:
    def test_outputs(self) -> None:
        m = model("(float[2] x) => (float[2] y, float c) { c = Constant<value_float=3.0>() y = Add(x, c) }")
        result = apply(LiftConstantNodes(), m)
        assert reasons(result) == ["c is an output of the graph, which must come from a node"]

    def test_subgraphs_before_ir_version_4(self) -> None:
        m = model(
            """(float[2] x, bool c) => (float[2] y) { y = If (c) <
            then_branch = t () => (float[2] r) { k = Constant<value=float {1}>() r = Add(x, k) },
            else_branch = e () => (float[2] q) { q = Identity(x) }> }""",
            opset=9,
        )
        m.ir_version = 3
        assert "before IR version 4" in reasons(LiftConstantNodes().run(m, Context()))[0]

    def test_functions(self) -> None:
        functions = (
            '<domain: "local", opset_import: ["": 17]> f (x) => (y) { c = Constant<value_float=3.0>() y = Add(x, c) }'
        )
        m = model("(float[2] x) => (float[2] y) { y = local.f(x) }", functions=functions)
        assert not apply(LiftConstantNodes(), m).rewrites
        assert constants(m) == 1
