"""What a model says of its own values, and what passes believe of it."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from passes.core.declarations import forget_impossible_sizes


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
