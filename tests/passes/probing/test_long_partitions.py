"""Long device partitions: cut where few values cross, and the pieces compute what the whole does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.graphs.scopes import Scope, name_nodes
from passes.probing import long_partitions
from passes.probing.long_partitions import cut as cut_by
from passes.probing.partition import Partitioning, Side, plan
from tests.passes.harness import model
from tests.passes.probing.test_partition import W, planned, same
from tests.passes.test_large_graphs import chain, unary


def cut(whole: Partitioning) -> Partitioning:
    """Return a plan whose long partitions are cut as for Debian's MIGraphX."""
    return cut_by(whole, 1.8e-7)


@pytest.fixture
def short(monkeypatch: Any) -> None:
    """A program has two instructions at most."""
    monkeypatch.setattr(long_partitions, "_largest", lambda total, growth: 2)
    monkeypatch.setattr(long_partitions, "RUNS", 0)


def sizes(found: Partitioning) -> list[int]:
    return [len(each.nodes) for each in found.partitions]


@pytest.mark.slow
def test_twenty_thousand_nodes() -> None:
    """One program of them would take 72 seconds, three a third of it."""
    whole = plan(chain(20_000, unary), {})
    parts = cut(whole)
    assert sum(sizes(parts)) == 20_000
    assert max(sizes(parts)) <= 6667 < 2 * min(sizes(parts))
    assert all(len(part.inputs) == len(part.outputs) == 1 for part in parts.partitions)
    assert parts.cuts == len(parts.partitions) - 1
    assert (parts.wholly_on_device, parts.is_one_program) == (True, False)
    assert (whole.wholly_on_device, whole.is_one_program, whole.cuts) == (True, True, 0)


@pytest.mark.slow
def test_fewer_are_cut_without_assertions() -> None:
    whole = plan(chain(14_000, unary), {})
    assert len(cut(whole).partitions) == 2
    assert cut_by(whole, 0.5e-7) == whole


def test_steps_count() -> None:
    """Four nodes that become 13,000 instructions each: eight minutes as one program, two as four."""
    w = np.zeros((1, 16, 4), np.float32)
    source = model(
        "(float[500, 1, 4] x) => (float[500, 1, 1, 4] d) {"
        + " ".join(
            f"{name} = LSTM <hidden_size = 4> ({operand}, w, r) {after}"
            for name, operand, after in (
                ("a", "x", "p = Squeeze(a, one)"),
                ("b", "p", "q = Squeeze(b, one)"),
                ("c", "q", "s = Squeeze(c, one)"),
                ("d", "s", ""),
            )
        )
        + "}",
        w=w,
        r=w,
        one=np.array([1]),
    )
    parts = cut(planned(source))
    assert [sum(node.op_type == "LSTM" for node in part.nodes) for part in parts.partitions] == [1, 1, 1, 1]
    alone = planned(model("(float[500, 1, 4] x) => (y) { a = LSTM <hidden_size = 4> (x, w, r) y = Neg(a) }", w=w, r=w))
    assert cut(alone) == alone


@pytest.mark.usefixtures("short")
class TestShort:
    def test_where_few_values_cross(self, monkeypatch: Any) -> None:
        monkeypatch.setattr(long_partitions, "_largest", lambda total, growth: 4)
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
        assert sizes(found) == [1, 1, 2]
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
