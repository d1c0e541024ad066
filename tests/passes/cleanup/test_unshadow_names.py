"""unshadow-names: what subgraphs call like others, as MIGraphX and ONNX Runtime read it from the file."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from passes.cleanup.unshadow_names import UnshadowNames
from passes.core.errors import BridgeError
from passes.graphs import lineage
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.harness import Array, apply, model, reasons, run, stops

LOOP = """{y} = Loop (n, c, {x}) <body = b (int64 i, bool {k}, float[2] {v}) => (bool o, float[2] w)
    {{ o = Identity({k}) w = {operator}({v}, {v}) }}>"""


def loop(y: str = "y", x: str = "a", k: str = "k", v: str = "v", operator: str = "Add") -> str:
    return LOOP.format(y=y, x=x, k=k, v=v, operator=operator)


def one_loop(**names: str) -> ir.Model:
    return model(f"(float[2] x, int64 n, bool c) => (float[2] y) {{ a = Neg(x) {loop(**names)} }}")


def two_loops() -> ir.Model:
    return model(f"""(float[2] x, int64 n, bool c) => (float[2] y)
        {{ a = Neg(x) {loop(y="h")} {loop(x="h", operator="Mul")} }}""")


def branches(then: str, otherwise: str = "q = Neg(x)", before: str = "") -> str:
    return f"""{before} y = If (c) <then_branch = t () => (float[2] r) {{ {then} }},
        else_branch = e () => (float[2] q) {{ {otherwise} }}>"""


def inputs(m: ir.Model) -> dict[str, Array]:
    given = {"x": np.array([1.5, -2], np.float32), "n": np.array(2), "c": np.array(True)}
    return {str(value.name): given[str(value.name)] for value in m.graph.inputs}


def on_device(device: Device, m: ir.Model) -> Array:
    return device.run(ir.to_proto(m), inputs(m))[0]


def all_names(m: ir.Model) -> list[str]:
    """The names of all values, as the file has them."""

    def of(graph: onnx.GraphProto) -> list[str]:
        parameters = {value.name for value in (*graph.input, *graph.initializer)}
        inner = [name for node in graph.node for each in node.attribute if each.HasField("g") for name in of(each.g)]
        return [*parameters, *(name for node in graph.node for name in node.output), *inner]

    return of(ir.to_proto(m).graph)


def unshadowed(m: ir.Model) -> ir.Model:
    apply(UnshadowNames(), m, inputs=inputs(m))
    names = all_names(m)
    assert len(names) == len(set(names))
    return m


@pytest.mark.runtime
class TestMigraphx:
    @pytest.mark.parametrize(
        "names", [{"v": "a"}, {"v": "x"}, {"k": "c"}, {"k": "c", "v": "a"}], ids=["value", "input", "condition", "both"]
    )
    def test_a_parameter_with_a_name_from_outside(self, names: dict[str, str], device: Device) -> None:
        m = one_loop(**names)
        with pytest.raises(BridgeError, match="existing in parent graph"):
            on_device(device, m)
        expected = run(ir.to_proto(m), inputs(m))["y"]
        np.testing.assert_array_equal(on_device(device, unshadowed(m)), expected)

    def test_two_subgraphs_with_the_same_parameters(self, device: Device) -> None:
        m = two_loops()
        with pytest.raises(BridgeError, match="existing in parent graph"):
            on_device(device, m)
        expected = run(ir.to_proto(m), inputs(m))["y"]
        np.testing.assert_array_equal(on_device(device, unshadowed(m)), expected)

    def test_two_branches_that_are_always_taken(self, device: Device) -> None:
        """MIGraphX inlines them, and then knows one value by the name that both have."""
        first = branches("a = Mul(x, x) r = Neg(a)").replace("y =", "b =")
        second = branches("a = Add(x, x) r = Neg(a)").replace("y =", "d =")
        m = model(f"(float[2] x) => (float[2] y) {{ {first} {second} y = Sub(b, d) }}", c=np.array(True))
        expected = run(ir.to_proto(m), inputs(m))["y"]
        assert not np.array_equal(on_device(device, m), expected)
        np.testing.assert_array_equal(on_device(device, unshadowed(m)), expected)


class TestValues:
    def test_who_comes_first_keeps_the_name(self) -> None:
        m = two_loops()
        m.graph[1].name, m.graph[2].name = "first", "second"
        result = apply(UnshadowNames(), m, inputs=inputs(m))
        first, second = (m.graph[index].attributes["body"].as_graph() for index in (1, 2))
        assert [value.name for value in first.inputs] == ["i", "k", "v"]
        assert [value.name for value in second.inputs] == ["second/i", "second/k", "second/v"]
        assert "i is called second/i" in [rewrite.note for rewrite in result.rewrites]

    def test_outer_graphs_come_first(self) -> None:
        """Even with what they compute only after the subgraph."""
        text = branches("z = Mul(x, x) r = Neg(z)").replace("y =", "b =")
        m = unshadowed(model(f"(float[2] x, bool c) => (float[2] y) {{ {text} z = Exp(b) y = Neg(z) }}"))
        assert [node.outputs[0].name for node in m.graph] == ["b", "z", "y"]

    def test_what_an_inner_graph_takes_from_outside_stays(self) -> None:
        m = model(f"(float[2] x, bool c) => (float[2] y) {{ {branches('r = Neg(a)', 'q = Exp(a)', 'a = Mul(x, x)')} }}")
        assert not apply(UnshadowNames(), m, inputs=inputs(m)).rewrites

    def test_branches_of_branches(self) -> None:
        inner = branches("a = Mul(x, x) r = Neg(a)", "a = Add(x, x) q = Neg(a)").replace("y =", "r =")
        inner = inner.replace("r)", "r2)").replace("r = Neg", "r2 = Neg")
        unshadowed(model(f"(float[2] x, bool c) => (float[2] y) {{ {branches(inner, 'a = Exp(x) q = Neg(a)')} }}"))

    def test_initializers_of_branches(self) -> None:
        text = """(float[2] x, bool c) => (float[2] y) { y = If (c) <
            then_branch = t () => (float[2] r) <float[2] w = {1, 2}> { r = Add(x, w) },
            else_branch = e () => (float[2] q) <float[2] w = {3, 4}> { q = Add(x, w) }> }"""
        for decision in (True, False):
            m = model(text)
            given = {**inputs(m), "c": np.array(decision)}
            apply(UnshadowNames(), m, inputs=given)
            names = all_names(m)
            assert len(names) == len(set(names))

    def test_an_output_over_an_output(self) -> None:
        """ONNX forbids it, and ONNX Runtime refuses it; afterwards the model is what it seems to be."""
        body = branches("a = Mul(x, x) r = Neg(a)", "q = Neg(a)", "a = Exp(x)")
        text = f"(float[2] x, bool c) => (float[2] y) {{ {body} }}"
        m = ir.from_proto(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 17]> g {text}'))
        UnshadowNames().run(m, Context())
        x = inputs(m)["x"]
        np.testing.assert_array_equal(run(ir.to_proto(m), inputs(m))["y"], -x * x)

    def test_a_function(self) -> None:
        functions = f"""<domain: "local", opset_import: ["": 17]> f (x, n, c) => (y) {{ a = Neg(x) {loop(v="a")} }}"""
        m = model("(float[2] x, int64 n, bool c) => (float[2] y) { y = local.f(x, n, c) }", functions=functions)
        assert apply(UnshadowNames(), m, inputs=inputs(m)).rewrites

    def test_quantization_annotations_follow(self) -> None:
        proto = ir.to_proto(two_loops())
        body = proto.graph.node[2].attribute[0].g
        note = body.quantization_annotation.add(tensor_name="w")
        note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="v")
        note.quant_parameter_tensor_names.add(key="ZERO_POINT_TENSOR", value="a")
        m = ir.from_proto(proto)
        m.graph[2].name = "second"
        UnshadowNames().run(m, Context())
        (note,) = ir.to_proto(m).graph.node[2].attribute[0].g.quantization_annotation
        assert note.tensor_name == "second/w"
        assert {each.key: each.value for each in note.quant_parameter_tensor_names} == {
            "SCALE_TENSOR": "second/v",
            "ZERO_POINT_TENSOR": "a",
        }

    def test_an_initializer_with_a_name_from_outside(self) -> None:
        m = model(
            """(float[2] x, bool c) => (float[2] y) { a = Add(x, w) y = If (c) <
            then_branch = t () => (float[2] r) <float[2] w = {100, 200}> { r = Add(a, w) },
            else_branch = e () => (float[2] q) { q = Neg(a) }> }""",
            w=np.array([10, 20], np.float32),
        )
        result = apply(UnshadowNames(), m, inputs=inputs(m))
        assert not result.rewrites
        assert reasons(result) == ["w may mean its initializer or the value outside"]

    def test_the_budget(self) -> None:
        assert stops(UnshadowNames(), two_loops(), 2) == 2


class TestNodes:
    def test_each_has_a_name_of_its_own(self) -> None:
        m = model("(float[2] x) => (float[2] y) { a = Neg(x) b = Exp(a) y = Neg(b) }")
        for node in m.graph:
            node.name = "node"
        UnshadowNames().run(m, Context())
        assert [node.name for node in m.graph] == ["node", "node_2", "node_3"]
        assert json.loads(m.graph[1].metadata_props[lineage.ORIGIN]) == ["node"]
        assert lineage.PASS not in m.graph[1].metadata_props

    def test_those_of_the_main_graph_keep_theirs(self) -> None:
        text = branches("r = Neg(x)").replace("y =", "b =")
        m = model(f"(float[2] x, bool c) => (float[2] y) {{ {text} y = Neg(b) }}")
        inner = m.graph[0].attributes["then_branch"].as_graph()
        inner[0].name = m.graph[1].name = "neg"
        apply(UnshadowNames(), m, inputs=inputs(m))
        assert (m.graph[1].name, inner[0].name) == ("neg", "neg_2")
