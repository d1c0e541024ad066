"""Long device partitions: cut where few values cross, and the pieces compute what the whole does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.graphs.scopes import Scope, name_nodes
from passes.probing import long_partitions
from passes.probing.long_partitions import cut
from passes.probing.partition import Partitioning, Side, plan
from tests.passes.harness import model
from tests.passes.probing.test_partition import W, planned, same
from tests.passes.test_large_graphs import chain, unary


@pytest.fixture
def short(monkeypatch: Any) -> None:
    """Four nodes are too many, and pieces have two at most."""
    monkeypatch.setattr(long_partitions, "MOST", 3)
    monkeypatch.setattr(long_partitions, "PIECE", 2)


def sizes(found: Partitioning) -> list[int]:
    return [len(each.nodes) for each in found.partitions]


@pytest.mark.slow
def test_twenty_thousand_nodes() -> None:
    source = chain(20_000, unary)
    whole = plan(source, {})
    found = cut(whole)
    assert sum(sizes(found)) == 20_000
    assert max(sizes(found)) <= long_partitions.PIECE
    assert min(sizes(found)) >= long_partitions.PIECE // 2
    assert all(len(each.inputs) == len(each.outputs) == 1 for each in found.partitions)
    assert found.cuts == len(found.partitions) - 1
    assert (found.wholly_on_device, found.is_one_program) == (True, False)
    assert (whole.wholly_on_device, whole.is_one_program, whole.cuts) == (True, True, 0)


def test_what_is_not_long_stays_whole() -> None:
    whole = plan(chain(long_partitions.MOST, unary), {})
    assert cut(whole) == whole


@pytest.mark.usefixtures("short")
class TestShort:
    def test_where_few_values_cross(self, monkeypatch: Any) -> None:
        monkeypatch.setattr(long_partitions, "PIECE", 4)
        text = "a = Neg(x) b = Abs(x) c = Add(a, b) d = Neg(c) e = Abs(c) f = Exp(c) y = Sum(d, e, f)"
        source = model(f"(float[4, 4] x) => (float[4, 4] y) {{ {text} }}")
        found = cut(planned(source))
        assert sizes(found) == [3, 4]
        same(source, found)

    def test_no_cut_where_a_value_cannot_cross(self) -> None:
        text = "a = Neg(x) b = Abs(a) c = Exp(b) d = Neg(c) y = Abs(d)"
        source = model(f"(float[4, 4] x) => (float[4, 4] y) {{ {text} }}")
        whole = planned(source)
        source.graph[2].outputs[0].shape = ir.Shape([4, None])
        assert sizes(cut(whole)) == [2, 2, 1]
        for node in source.graph:
            node.outputs[0].shape = ir.Shape([None, 4])
        assert sizes(cut(whole)) == [5]

    def test_host_partitions_stay_whole(self) -> None:
        text = "a = Neg(x) b = Abs(a) c = Exp(b) d = Neg(c) y = Abs(d)"
        source = model(f"(float[4, 4] x) => (float[4, 4] y) {{ {text} }}")
        whole = planned(source)
        on_host = replace(whole, partitions=tuple(replace(each, side=Side.HOST) for each in whole.partitions))
        assert cut(on_host) == on_host

    def test_outputs_that_no_node_makes(self) -> None:
        text = "a = Neg(x) b = MatMul(a, w) c = Exp(b) y = Neg(c)"
        source = model(f"(float[4, 4] x, float[4] u) => (float[4, 4] y, float[4] u, float[4, 4] w) {{ {text} }}", w=W)
        found = cut(planned(source))
        assert len(found.partitions) == 2
        same(source, found)

    def test_captures(self) -> None:
        then = "then_branch = t () => (float[4, 4] p) { p = Add(a, x) }"
        other = "else_branch = e () => (float[4, 4] q) { q = Neg(a) }"
        text = f"a = Neg(x) b = Abs(a) c = Exp(b) d = If <{then}, {other}> (k) y = Add(c, d)"
        source = model(f"(float[4, 4] x, bool k) => (float[4, 4] y) {{ {text} }}")
        found = cut(planned(source))
        assert len(found.partitions) > 1
        same(source, found)

    @settings(max_examples=40)
    @given(st.data())
    def test_any_graph(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(4, 14))
        names, lines = ["x"], []
        for index in range(count):
            one, other = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(names))
            lines.append(f"v{index} = Add({one}, {other})")
            names.append(f"v{index}")
        results = sorted({f"v{count - 1}", data.draw(st.sampled_from(names[1:]))})
        listed = ", ".join(f"float[4, 4] {each}" for each in results)
        source = model(f"(float[4, 4] x) => ({listed}) {{ {' '.join(lines)} }}")
        name_nodes(Scope(source, source.graph))
        found = cut(plan(source, {}))
        if sum(sizes(found)) > 3:
            assert max(sizes(found)) <= 2
        same(source, found)
