"""rank-by-comparison and sort-row-by-row, and TopK of many rows in MIGraphX."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from passes.legalize.legalize import Legalize
from passes.legalize.tensor.topk import rank_by_comparison, sort_row_by_row
from passes.rewriting.base import Context
from passes.rewriting.rewrite import NodeRewrite
from tests.passes.device import Device
from tests.passes.harness import Array, model, operators, run
from tests.passes.legalize.indexing import declared, left, legal

RULES = pytest.mark.parametrize("rule", [rank_by_comparison, sort_row_by_row], ids=lambda rule: rule.name)


def few_values(shape: tuple[int, ...], dtype: str = "float32") -> Array:
    """Numbers of which many are the same."""
    return np.random.default_rng(1).integers(0, 5, shape).astype(dtype)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def check(rule: NodeRewrite, device: Device, x: Array, k: int, axis: int, **attributes: int) -> list[str]:
    shape = list(x.shape)
    shape[axis] = k
    outputs = f"{declared('y', np.empty(shape, x.dtype))}, {declared('i', np.empty(shape, np.int64))}"
    given = ", ".join(f"{name}={value}" for name, value in {"axis": axis, **attributes}.items())
    result = legal(rule, device, f"y, i = TopK<{given}>(x, k)", {"x": x}, outputs, k=ints(k))
    return operators(result.model)


@RULES
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_any_axis_and_direction_with_ties(device: Device, rule: NodeRewrite, largest: int, axis: int) -> None:
    check(rule, device, few_values((3, 4, 5)), 2, axis, largest=largest)


@RULES
@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "int64", "uint8"])
def test_dtypes(device: Device, rule: NodeRewrite, dtype: str) -> None:
    check(rule, device, few_values((3, 6), dtype), 4, -1)


@RULES
def test_all_elements_and_old_opsets(device: Device, rule: NodeRewrite) -> None:
    x = few_values((4, 6))
    check(rule, device, x, 6, 1)
    legal(rule, device, "y, i = TopK(x, k)", {"x": x}, "float[4,2] y, int64[4,2] i", opset=11, k=ints(2))


def test_opset_9(device: Device) -> None:
    x, outputs = few_values((4, 6)), "float[4,2] y, int64[4,2] i"
    legal(sort_row_by_row, device, "y, i = TopK<k=2>(x)", {"x": x}, outputs, opset=9)
    (reason,) = left(rank_by_comparison, "(float[4,6] x) => (y, i) { y, i = TopK<k=2>(x) }", opset=9)
    assert reason == "the rewrite needs opset 11, and the model has 9: convert-opset comes first"


@RULES
def test_infinities_and_any_order(rule: NodeRewrite) -> None:
    x = np.array([[1, -np.inf, np.inf, 2], [-np.inf, -np.inf, np.inf, np.inf]], np.float32)
    source = model("(float[2,4] x) => (float[2,3] y) { y, i = TopK<sorted=0>(x, k) }", k=ints(3))
    result = rule.run(source, Context())
    assert result.rewrites
    (found,) = run(ir.to_proto(result.model), {"x": x}).values()
    np.testing.assert_array_equal(found, [[np.inf, 2, 1], [np.inf, np.inf, -np.inf]])


def test_unchanged() -> None:
    many = "(float[{}] x) => (y, i) {{ y, i = TopK(x, k) }}"
    (reason,) = left(rank_by_comparison, many.format("2,65"), k=ints(2))
    assert reason == "2 rows of 65 elements need too many comparisons"
    (reason,) = left(rank_by_comparison, many.format("70000,8"), k=ints(2))
    assert reason == "70000 rows of 8 elements need too many comparisons"
    (reason,) = left(sort_row_by_row, many.format("257,8"), k=ints(2))
    assert reason == "257 rows are too many to become a node each"
    for rule in (rank_by_comparison, sort_row_by_row):
        assert left(rule, many.format("1,8"), k=ints(2)) == []
        assert "freeze" in left(rule, many.format("n,8"), k=ints(2))[0]
        (reason,) = left(rule, "(float[2,8] x, int64[1] k) => (y, i) { y, i = TopK(x, k) }")
        assert reason == "k is not constant: freeze it with --freeze k=VALUE"


@pytest.mark.parametrize(
    ("shape", "expected"),
    [("[15,8]", {"TopK"}), ("[4,5,8]", {"ArgMax", "GatherElements"}), ("[20,100]", {"TopK", "Concat"})],
)
def test_legalization_makes_many_rows_safe(runtime: Any, device: Device, shape: str, expected: set[str]) -> None:
    from onnx_bridge.verdicts.probed_runtime import ProbedRuntime

    source = model(f"(float{shape} x) => (y, i) {{ y, i = TopK(x, k) }}", k=ints(3))
    before = ir.to_proto(source)
    result = Legalize().run(source, Context(target=ProbedRuntime(runtime)))
    found = set(operators(result.model))
    assert expected <= found
    assert ("TopK" in found) == ("TopK" in expected)
    assert bool(result.rewrites) == (shape != "[15,8]")
    after = ir.to_proto(result.model)
    for mine, theirs in zip(device.run(after), run(before).values(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
