"""Graphs of many nodes, and of exponentially many paths: every walk visits each node a limited number of times."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from passes.graphs.scopes import Scope
from passes.graphs.structural_inputs import structural_inputs
from passes.graphs.value_ranges import ANY, value_range
from passes.legalize.types.small_types import carry_small_types
from passes.probing.fusion_clusters import fusion_clusters
from passes.probing.long_partitions import cut
from passes.probing.partition import plan
from passes.rewriting.base import Context
from passes.rewriting.pipeline import Pipeline

FLOAT, INT64 = ir.DataType.FLOAT, ir.DataType.INT64


def chain(
    count: int, step: Callable[[ir.Value, int], ir.Node], *, dtype: ir.DataType = FLOAT, opset: int = 21
) -> ir.Model:
    """A model of nodes each of which takes the result of the one before."""
    x = value = ir.Value(name="x", type=ir.TensorType(dtype), shape=ir.Shape([2]))
    nodes = []
    for index in range(count):
        nodes.append(step(value, index))
        value = nodes[-1].outputs[0]
        value.name, nodes[-1].name = f"v{index}", f"n{index}"
        value.type, value.shape = ir.TensorType(dtype), ir.Shape([2])
    return ir.Model(ir.Graph([x], [value], nodes=nodes, opset_imports={"": opset}, name="g"), ir_version=10)


def unary(value: ir.Value, index: int) -> ir.Node:
    return ir.Node("", ("Sin", "Abs", "Sigmoid", "Neg")[index % 4], [value])


def twice(operator: str) -> Callable[[ir.Value, int], ir.Node]:
    return lambda value, index: ir.Node("", operator, [value, value])


@pytest.mark.slow
def test_a_long_chain() -> None:
    source = chain(20_000, unary)
    cleaned = Pipeline.parse("default").run(source, Context())[-1].result.model
    assert len(cleaned.graph) == 20_000


@pytest.mark.parametrize("operator", ["Add", "Mul", "Max", "Min"])
def test_many_paths(operator: str) -> None:
    source = chain(40, twice(operator))
    cleaned = Pipeline.parse("default").run(source, Context())[-1].result.model
    assert [node.op_type for node in cleaned.graph] == [operator] * 40


@pytest.mark.slow
def test_a_long_chain_of_constants() -> None:
    source = chain(20_000, twice("Mul"))
    (x,) = source.graph.inputs
    source.graph.inputs.clear()
    x.const_value = ir.tensor(np.array([1.0, -1.0], np.float32))
    source.graph.initializers.add(x)
    cleaned = Pipeline.parse("default").run(source, Context())[-1].result.model
    assert [node.op_type for node in cleaned.graph] == ["Identity"]


class TestStructuralInputs:
    def ending(self, source: ir.Model, operator: str) -> ir.Model:
        """The same with its result as the second operand of an operator of data."""
        data = ir.Value(name="data", type=ir.TensorType(FLOAT), shape=ir.Shape([4]))
        source.graph.inputs.append(data)
        (old,) = source.graph.outputs
        node = ir.Node("", operator, [data, old], name="last")
        node.outputs[0].name = "y"
        source.graph.append(node)
        source.graph.outputs[:] = node.outputs
        return source

    @pytest.mark.parametrize("count", [40, pytest.param(20_000, marks=pytest.mark.slow)])
    def test_arithmetic_of_shapes(self, count: int) -> None:
        assert structural_inputs(self.ending(chain(count, twice("Add"), dtype=INT64), "Reshape")) == ["x"]
        assert structural_inputs(self.ending(chain(count, twice("Add"), dtype=INT64), "Gather")) == []

    def test_paths_of_which_one_is_data(self) -> None:
        source = self.ending(chain(40, twice("Add"), dtype=INT64), "Reshape")
        source.graph.outputs.append(source.graph[20].outputs[0])
        assert structural_inputs(source) == []


def test_ranges() -> None:
    for count, found in ((20, (0.0, 1.0)), (400, ANY)):
        source = chain(
            count, lambda value, index: ir.Node("", "Max" if index else "Sigmoid", [value, value][: index + 1])
        )
        assert value_range(source.graph.outputs[0], Scope(source, source.graph)) == found


@pytest.mark.parametrize("count", [2, 3000])
@pytest.mark.slow
def test_small_types(count: int) -> None:
    source = chain(count, lambda value, index: ir.Node("", "Identity", [value]), dtype=ir.DataType.FLOAT8E4M3FN)
    first, last = source.graph[0], source.graph[-1]
    x = source.graph.inputs[0]
    x.type, x.dtype = ir.TensorType(FLOAT), FLOAT
    first.op_type = "Cast"
    first.attributes["to"] = ir.AttrInt64("to", ir.DataType.FLOAT8E4M3FN)
    back = ir.Node("", "Cast", [last.outputs[0]], [ir.AttrInt64("to", FLOAT)], name="back")
    back.outputs[0].name, back.outputs[0].type, back.outputs[0].shape = "y", ir.TensorType(FLOAT), ir.Shape([2])
    source.graph.append(back)
    source.graph.outputs[:] = back.outputs
    result = carry_small_types.run(source, Context())
    assert len(result.rewrites) == 1
    assert not any(value.dtype == ir.DataType.FLOAT8E4M3FN for node in source.graph for value in node.outputs)


@pytest.mark.parametrize("every", [2, 50, 4000])
@pytest.mark.slow
def test_partitions(every: int) -> None:
    source = chain(8000, unary)
    scope = Scope(source, source.graph)
    assert not list(fusion_clusters(scope))
    nodes = list(source.graph)
    found = plan(source, dict.fromkeys(nodes[every // 2 :: every], "it cannot run"))
    assert [node for each in found.partitions for node in each.nodes] == nodes
    assert len(found.partitions) < 400


def mixed(constant: ir.Value) -> Callable[[ir.Value, int], ir.Node]:
    """Nodes of one input and of two."""

    def step(value: ir.Value, index: int) -> ir.Node:
        operator = ("Add", "Relu", "Mul", "Sigmoid")[index % 4]
        return ir.Node("", operator, [value, constant] if index % 2 == 0 else [value])

    return step


def in_branch(source: ir.Model) -> ir.Model:
    """A model with the nodes of another one in the branch of an If."""
    graph = source.graph
    (x,), (y,) = graph.inputs, graph.outputs
    graph.inputs.clear()
    other = ir.Node("", "Neg", [x], name="other")
    other.outputs[0].name, other.outputs[0].type, other.outputs[0].shape = "z", y.type, y.shape
    branches = {
        "then_branch": ir.AttrGraph("then_branch", graph),
        "else_branch": ir.AttrGraph("else_branch", ir.Graph([], other.outputs, nodes=[other], name="e")),
    }
    condition = ir.Value(name="k", type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    chosen = ir.Node("", "If", [condition], list(branches.values()), name="if")
    chosen.outputs[0].name, chosen.outputs[0].type, chosen.outputs[0].shape = "result", y.type, y.shape
    outer = ir.Graph([condition, x], chosen.outputs, nodes=[chosen], opset_imports={"": 21}, name="outer")
    initializers = list(graph.initializers.values())
    for each in initializers:
        graph.initializers.pop(str(each.name))
        outer.initializers.add(each)
    return ir.Model(outer, ir_version=10)


def calls(function: Callable[[], object]) -> int:
    """Return how many functions of Python a call of ``function`` calls: its work, on whatever machine."""
    count = 0

    def seen(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(seen)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["chain", "branch"])
def test_the_work_grows_with_the_nodes(kind: str) -> None:
    def work(count: int) -> int:
        constant = ir.Value(name="c", const_value=ir.tensor(np.ones(2, np.float32), name="c"))
        source = chain(count, mixed(constant))
        constant.type, constant.shape = ir.TensorType(FLOAT), ir.Shape([2])
        source.graph.initializers.add(constant)
        source = in_branch(source) if kind == "branch" else source

        def clean_and_partition() -> None:
            cleaned = Pipeline.parse("default").run(source, Context())[-1].result.model
            cut(plan(cleaned, {}), 1e-7)

        return calls(clean_and_partition)

    work(50)  # imports
    assert work(2400) < 4.5 * work(600)
