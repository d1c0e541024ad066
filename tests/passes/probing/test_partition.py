"""Partitions: which nodes run where, what is handed on, and that the parts compute what the whole does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.core.errors import PassError
from passes.graphs.cost import estimate
from passes.graphs.scopes import Scope, name_nodes
from passes.probing.partition import Partitioning, Side, extract, plan
from tests.passes.harness import feeds, model, run
from tests.passes.helpers import mentioned

HOST = frozenset({"NonZero", "StringNormalizer", "NonMaxSuppression", "Unique", "Compress", "SplitToSequence"})
W = np.random.default_rng(0).standard_normal((4, 4), np.float32)


def planned(source: ir.Model, host: frozenset[str] = HOST) -> Partitioning:
    name_nodes(Scope(source, source.graph))
    return plan(source, {node: f"no {node.op_type}" for node in source.graph if node.op_type in host})


def shown(found: Partitioning) -> str:
    """``device: MatMul Relu | host: NonZero``."""
    return " | ".join(
        f"{partition.side.value}: {' '.join(node.op_type for node in partition.nodes)}"
        for partition in found.partitions
    )


def in_partitions(source: ir.Model, found: Partitioning, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the partitions compute one after another on ONNX Runtime, each given only what it asks for."""
    values = dict(inputs)
    for partition in found.partitions:
        names = [str(value.name) for value in partition.inputs]
        part = extract(source, names, [str(value.name) for value in partition.outputs])
        assert len([node for node in part.graph if node.op_type != "Constant"]) == len(partition.nodes)
        proto = ir.to_proto(part)
        onnx.checker.check_model(proto)
        values |= run(proto, {name: values[name] for name in names})
    return {str(value.name): values[str(value.name)] for value in source.graph.outputs}


def same(source: ir.Model, found: Partitioning, inputs: Mapping[str, Any] | None = None) -> None:
    proto = ir.to_proto(source)
    inputs = inputs or feeds(proto)
    expected, actual = run(proto, inputs), in_partitions(source, found, inputs)
    assert expected.keys() == actual.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array)


CASES = {
    "nothing for the host": (
        "(float[64, 64] x) => (float[64, 64] y) { h = MatMul(x, w) y = Relu(h) }",
        "device: MatMul Relu",
    ),
    "a data-dependent middle": (
        "(float[64, 64] x) => (float[m, n] y) { h = MatMul(x, w) i = NonZero(h) t = Transpose(i) y = GatherND(h, t) }",
        "device: MatMul | host: NonZero Transpose GatherND",
    ),
    "a shape that is fixed again": (
        "(float[64, 64] x) => (float[64, 64] y)"
        "{ h = MatMul(x, w) i = NonZero(h) f = Cast <to = 1> (i) r = ReduceSum <keepdims = 0> (f) y = MatMul(h, w)"
        "  z = Add(y, r) }".replace("y = MatMul", "q = MatMul").replace("z = Add(y, r)", "y = Add(q, r)"),
        "device: MatMul MatMul | host: NonZero Cast ReduceSum Add",
    ),
    "two heavy parts around it": (
        "(float[64, 64] x) => (float[64, 64] y)"
        "{ h = MatMul(x, w) i = NonZero(h) f = Cast <to = 1> (i) r = ReduceSum <keepdims = 0> (f) a = Add(h, r)"
        "  y = MatMul(a, w) }",
        "device: MatMul | host: NonZero Cast ReduceSum | device: Add MatMul",
    ),
    "beside the main part": (
        "(float[64, 64] x) => (float[64, 64] y, int64[m, n] i)"
        "{ a = MatMul(x, w) i = NonZero(a) b = MatMul(a, w) c = MatMul(b, w) y = Relu(c) }",
        "device: MatMul MatMul MatMul Relu | host: NonZero",
    ),
    "independent of the main part": (
        "(float[64, 64] x, float[64] z) => (float[64, 64] y, int64[m, n] i) { y = MatMul(x, w) i = NonZero(z) }",
        "host: NonZero | device: MatMul",
    ),
    "before and after": (
        "(float[64, 64] x) => (int64[m, n] j) { i = NonZero(x) f = Cast <to = 1> (i) s = ReduceSum <keepdims = 0> (f)"
        "  a = Add(x, s) b = MatMul(a, w) j = NonZero(b) }",
        "host: NonZero Cast ReduceSum | device: Add MatMul | host: NonZero",
    ),
    "an island of shape arithmetic": (
        "(float[64, 64] x) => (float[64, 64] y)"
        "{ h = MatMul(x, w) i = NonZero(h) s = Shape(i) t = Gather(s, one) n = Add(t, t) k = Cast <to = 1> (n)"
        "  c = Unique(k) f = ReduceSum <keepdims = 0> (c) m = Mul(h, f) y = MatMul(m, w) }",
        "device: MatMul | host: NonZero Shape Gather Add Cast Unique ReduceSum | device: Mul MatMul",
    ),
    "movers at the end": (
        "(float[64, 64] x) => (float[64] y) { h = MatMul(x, w) i = NonZero(h) f = Cast <to = 1> (i)"
        "  r = ReduceSum <keepdims = 0> (f) y = Expand(r, size) }",
        "device: MatMul | host: NonZero Cast ReduceSum Expand",
    ),
    "movers alone": (
        "(float[64, 64] x) => (int64[m, n] y) { t = Transpose(x) y = NonZero(t) }",
        "host: Transpose NonZero",
    ),
    "dead nodes are in no partition": (
        "(float[64, 64] x) => (float[64, 64] y) { y = MatMul(x, w) i = NonZero(y) }",
        "device: MatMul",
    ),
    "a constant that is an output": (
        "(float[64, 64] x) => (int64[m, n] y, float[64, 64] w) { h = MatMul(x, w) y = NonZero(h) }",
        "device: MatMul | host: NonZero",
    ),
    "a constant for both": (
        "(float[64, 64] x) => (int64[m, n] y) { c = Constant <value = float {2}> () h = Mul(x, c) q = MatMul(h, w)"
        "  z = Mul(q, c) i = NonZero(z) y = Mul(i, i) }",
        "device: Mul MatMul Mul | host: NonZero Mul",
    ),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_plans(text: str, expected: str) -> None:
    constants = {"w": np.eye(64, dtype=np.float32), "one": np.array([1]), "size": np.array([64])}
    source = model(text, **mentioned(text, constants))
    found = planned(source)
    assert shown(found) == expected
    assert found.wholly_on_device == ("host" not in expected)
    hosted = {node for partition in found.partitions if partition.side is Side.HOST for node in partition.nodes}
    assert set(found.reasons) == hosted
    same(source, found)


def test_reasons() -> None:
    source = model(
        "(float[4, 4] x) => (float[m, n] y) { h = MatMul(x, w) [find] i = NonZero(h) y = Cast <to = 1> (i) }", w=W
    )
    assert {node.op_type: reason for node, reason in planned(source).reasons.items()} == {
        "NonZero": "no NonZero",
        "Cast": "its input i has no static shape: NonZero find computes it",
    }


def test_captures_are_inputs_of_the_partition() -> None:
    """The If goes whole; what its branches take from outside is handed to it, and its weight is shared."""
    text = """(float[4, 4] x, bool c) => (float[4, 4] y) {
        a = MatMul(x, w) b = Relu(a)
        z = If (c) <then_branch = t () => (float[4, 4] p) { i = NonZero(b) p = Add(b, w) },
                    else_branch = e () => (float[4, 4] q) { q = Neg(a) }>
        y = MatMul(z, w)
    }"""
    source = model(text, w=W)
    found = planned(source, frozenset({"If"}))
    assert shown(found) == "device: MatMul Relu | host: If | device: MatMul"
    assert {value.name for value in found.partitions[1].inputs} == {"a", "b", "c"}
    for condition in (True, False):
        same(source, found, {"x": W, "c": np.array(condition)})


def test_a_part_has_what_it_needs_and_no_more() -> None:
    functions = '<domain: "local", opset_import: ["": 17]> twice (x) => (y) { y = local.sum(x, x) }'
    functions += '<domain: "local", opset_import: ["": 17]> sum (x, z) => (y) { y = Add(x, z) }'
    functions += '<domain: "local", opset_import: ["": 17]> other (x) => (y) { y = Neg(x) }'
    source = model(
        "(float[4, 4] x) => (float[4, 4] y){ a = local.other(x) b = MatMul(a, w) c = local.twice(b) y = MatMul(c, v) }",
        functions=functions,
        w=W,
        v=W,
    )
    part = extract(source, ["b"], ["y"])
    assert [node.op_type for node in part.graph] == ["twice", "MatMul"]
    assert list(part.graph.initializers) == ["v"]
    assert {name for _, name, _ in part.functions} == {"twice", "sum"}
    assert part.graph.initializers["v"].const_value is source.graph.initializers["v"].const_value
    assert [node.op_type for node in source.graph] == ["other", "MatMul", "twice", "MatMul"]
    assert [value.name for value in source.graph.inputs] == ["x"]
    with pytest.raises(PassError, match="no value nowhere"):
        extract(source, ["nowhere"], ["y"])
    with pytest.raises(PassError, match="needs x as well"):
        extract(source, ["c"], ["b"])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_graph(data: st.DataObject) -> None:
    """Partitions alternate, take only what earlier ones gave, and are never more than a longest path changes sides."""
    count = data.draw(st.integers(1, 14))
    names, lines, host = ["x"], [], []
    for index in range(count):
        one, other = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(names))
        operator = data.draw(st.sampled_from(["MatMul", "Add", "Transpose"]))
        lines.append(f"[n{index}] v{index} = {operator}({one}{'' if operator == 'Transpose' else f', {other}'})")
        names.append(f"v{index}")
        host.append(data.draw(st.booleans()))
    source = model(f"(float[4, 4] x) => (float[4, 4] v{count - 1}) {{ {' '.join(lines)} }}")
    found = plan(source, {node: "drawn" for node, here in zip(source.graph, host, strict=True) if here})
    seen = {"x"}
    for before, after in zip(found.partitions, found.partitions[1:], strict=False):
        assert before.side is not after.side
    for partition in found.partitions:
        assert seen.issuperset(str(value.name) for value in partition.inputs)
        seen |= {str(value.name) for value in partition.outputs}
        assert all((node in found.reasons) == (partition.side is Side.HOST) for node in partition.nodes)
    sides = {node: partition.side for partition in found.partitions for node in partition.nodes}
    changes: dict[ir.Node, int] = {}
    for node in (node for node in source.graph if node in sides):
        producers = [value.producer() for value in node.inputs if value is not None]
        changes[node] = max(
            (changes[each] + (sides[each] is not sides[node]) for each in producers if each is not None), default=1
        )
    assert len(found.partitions) <= max(changes.values()) + 1
    same(source, found)


@pytest.mark.parametrize(
    ("text", "work"),
    [
        ("(float[1, 3, 8, 8] x, float[4, 3, 3, 3] w) => (float[1, 4, 6, 6] y) { y = Conv(x, w) }", 4 * 36 * 27),
        ("(float[1, 4, 6, 6] x, float[4, 3, 3, 3] w) => (float[1, 3, 8, 8] y) { y = ConvTranspose(x, w) }", 144 * 27),
        ("(float[5, 2, 3] x, float[3, 4] w) => (float[5, 2, 4] y) { y = MatMul(x, w) }", 5 * 2 * 3 * 4),
        ("(float[3, 2] x, float[3, 4] w) => (float[2, 4] y) { y = Gemm <transA = 1> (x, w) }", 2 * 3 * 4),
        ('(float[2, 3] x, float[3, 4] w) => (float[2, 4] y) { y = Einsum <equation = "ij,jk->ik"> (x, w) }', 24),
        ("(float[2, 3] x, float[3] w) => (float[2, 3] y) { y = Add(x, w) }", 6),
        ("(float[N, 3] x, float[3] w) => (float[N, 3] y) { y = Add(x, w) }", 3),
        ("(float[2, 3] x, float[3] w) => (float[3, 2] y) { y = Transpose(x) }", 0),
        ("(float[2, 3] x, float[3] w) => (float y) { y = ReduceSum <keepdims = 0> (x) }", 6),
    ],
)
def test_estimated_work(text: str, work: int) -> None:
    assert sum(map(estimate, model(text).graph)) == work
