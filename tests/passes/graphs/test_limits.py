"""Functions that call functions, and subgraphs within subgraphs: processed, or refused in one line before that."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from passes.cleanup.inline_functions import InlineFunctions
from passes.core.errors import InputError
from passes.graphs import limits
from passes.graphs.limits import MAX_DEPTH, MAX_METADATA, MAX_NODES, MAX_TEXT, called_functions, check_limits
from passes.rewriting.base import Context
from passes.rewriting.pipeline import Pipeline
from tests.passes.helpers import nested_branches


def value(name: str, dtype: ir.DataType = ir.DataType.FLOAT, *shape: int) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))


def node(op_type: str, *inputs: ir.Value, output: str, domain: str = "", **graphs: ir.Graph) -> ir.Node:
    attributes = [ir.AttrGraph(name, graph) for name, graph in graphs.items()]
    made = ir.Node(domain, op_type, inputs, attributes, name=f"node_{output}")
    made.outputs[0].name = output
    return made


def calling(count: int, times: int, *, last: str = "Relu", nested: bool = False) -> ir.Model:
    """A model of functions each of which calls the next one some times, in a branch if they are ``nested``."""
    functions = []
    for index in range(count):
        x = c = value("a")
        nodes: list[ir.Node] = []
        if nested:
            c = value("c", ir.DataType.BOOL)
        for turn in range(times):
            call = ("local", f"F{index + 1}") if index < count - 1 else ("", last)
            operands = [x, c] if nested and call[0] else [x]
            made = node(call[1], *operands, output=f"t{turn}", domain=call[0])
            if nested:
                branches = {"then_branch": made, "else_branch": node("Neg", x, output=f"n{turn}")}
                graphs = {name: ir.Graph([], each.outputs, nodes=[each], name=name) for name, each in branches.items()}
                made = node("If", c, output=f"i{turn}", **graphs)
            nodes.append(made)
            x = made.outputs[0]
        first = nodes[0].inputs[0] if not nested else nodes[0].attributes["then_branch"].as_graph()[0].inputs[0]
        assert first is not None
        graph = ir.Graph([first, c] if nested else [first], [x], nodes=nodes, opset_imports={"": 17, "local": 1})
        functions.append(ir.Function("local", f"F{index}", graph=graph, attributes=[]))
    x, c = value("x", ir.DataType.FLOAT, 2), value("c", ir.DataType.BOOL)
    call_ = node("F0", *([x, c] if nested else [x]), output="y", domain="local")
    y = call_.outputs[0]
    y.type, y.shape = x.type, x.shape
    graph = ir.Graph([x, c], [y], nodes=[call_], opset_imports={"": 17, "local": 1}, name="g")
    return ir.Model(graph, ir_version=10, functions=functions)


@pytest.mark.parametrize(("count", "nodes"), [(25, "33,554,432"), (200, "about 2^200")])
def test_functions_that_call_each_other_twice(count: int, nodes: str) -> None:
    source = calling(count, 2)
    for run in (Pipeline.parse("default").run, InlineFunctions().run):
        with pytest.raises(InputError, match="stand for") as error:
            run(source, Context())
        assert nodes in str(error.value)
        assert "\n" not in str(error.value)


def test_just_enough() -> None:
    """The number that is counted is that of the nodes after inlining."""
    source = calling(6, 3)
    check_limits(source)
    InlineFunctions().run(source, Context())
    assert sum(1 for _ in source.graph.all_nodes()) == 3**6 <= MAX_NODES


@pytest.mark.parametrize("limit", [MAX_TEXT, MAX_METADATA])
def test_text_that_each_node_would_repeat(limit: int) -> None:
    """Nodes of a function get the name of its call before their own, and its metadata."""
    source = calling(2, 300)
    call = source.graph[0]
    check_limits(source)
    if limit == MAX_TEXT:
        call.name = "call" * 500
    else:
        call.metadata_props["pkg.torch.onnx.stack_trace"] = "call" * 10_000
    for run in (check_limits, lambda model: InlineFunctions().run(model, Context())):
        with pytest.raises(InputError, match=f"at most {limit:,}"):
            run(source)


def test_the_text_that_is_counted_is_that_of_all_names(monkeypatch: pytest.MonkeyPatch) -> None:
    source, inlined = calling(3, 2), calling(3, 2)
    InlineFunctions().run(inlined, Context())
    names = [name for each in inlined.graph.all_nodes() for name in (each.name, *(v.name for v in each.outputs))]
    text = sum(len(str(name)) for name in names)
    monkeypatch.setattr(limits, "MAX_TEXT", text // 2)
    with pytest.raises(InputError):
        check_limits(source)
    monkeypatch.setattr(limits, "MAX_TEXT", 2 * text)
    check_limits(source)


@pytest.mark.slow
def test_a_chain_of_functions() -> None:
    source = calling(2000, 1)
    cleaned = Pipeline.parse("default").run(source, Context())[-1].result.model
    assert [each.op_type for each in cleaned.graph] == ["Relu"]


@pytest.mark.parametrize("length", [1, 2, 3000])
def test_functions_that_call_themselves(length: int) -> None:
    source = calling(length, 1)
    last = source.functions["local", f"F{length - 1}", ""]
    last[0].domain, last[0].op_type = "local", "F0"
    for check in (check_limits, lambda model: InlineFunctions().run(model, Context())):
        with pytest.raises(InputError, match=r"local::F\d+ calls itself") as error:
            check(source)
        assert "\n" not in str(error.value)


def test_functions_that_are_called() -> None:
    source = calling(2000, 2)
    assert list(called_functions(source.graph, source)) == list(source.functions)
    assert not called_functions([], source)
    del source.functions["local", "F3", ""]
    assert [each[1] for each in called_functions(source.graph, source)] == ["F0", "F1", "F2"]


@pytest.mark.parametrize("depth", [1, MAX_DEPTH])
def test_subgraphs_within_subgraphs(depth: int) -> None:
    source = nested_branches(depth)
    cleaned = Pipeline.parse("default").run(source, Context())[-1].result.model
    assert sum(1 for _ in cleaned.graph.all_nodes()) == 2 * depth + 1
    ir.from_proto(type(ir.to_proto(cleaned)).FromString(ir.to_proto(cleaned).SerializeToString()))


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 300, 5000])
def test_subgraphs_that_are_nested_too_deeply(depth: int) -> None:
    with pytest.raises(InputError, match=f"nested {depth} deep") as error:
        Pipeline.parse("default").run(nested_branches(depth), Context())
    assert "\n" not in str(error.value)


def test_calls_within_subgraphs() -> None:
    """Inlined, each is within the branch of the other."""
    check_limits(calling(MAX_DEPTH, 1, nested=True))
    with pytest.raises(InputError, match=f"nested {MAX_DEPTH + 1} deep"):
        check_limits(calling(MAX_DEPTH + 1, 1, nested=True))
