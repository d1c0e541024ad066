"""The pooling rules: ceil_mode, auto_pad, dilations, counted padding, indices, integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from passes.legalize.nn.pooling import explicit_pooling, gather_max_pool, matmul_pooling, reduce_global_pooling
from passes.rewriting.base import Context
from passes.rewriting.rewrite import UNKNOWN_SHAPE, NodeRewrite
from tests.passes.device import Device
from tests.passes.harness import Array, model, operators, reasons
from tests.passes.legalize.images import check, floats, one, refused, skipped


def pool(operator: str, x: Array, *, opset: int = 22, outputs: int = 1, **a: Any) -> tuple[ir.Model, dict[str, Array]]:
    return one(operator, {"x": x}, opset=opset, outputs=outputs, **a)


class TestExplicit:
    @pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "LpPool"])
    def test_ceil_mode_becomes_padding(self, device: Device, operator: str) -> None:
        m, feeds = pool(operator, floats(1, 2, 6, 7), kernel_shape=[3, 3], strides=[2, 3], ceil_mode=1)
        check(explicit_pooling, m, feeds, device)
        assert operators(m) == [operator]
        assert list(m.graph[0].attributes["pads"].as_ints()) == [0, 0, 1, 2]

    def test_no_window_begins_in_the_padding_behind(self, device: Device) -> None:
        a = {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [0, 0, 2, 2], "ceil_mode": 1}
        m, feeds = pool("MaxPool", floats(1, 1, 3, 4), **a)
        check(explicit_pooling, m, feeds, device)

    @pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER", "VALID"])
    @pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "LpPool"])
    def test_auto_pad(self, device: Device, operator: str, auto: str) -> None:
        m, feeds = pool(operator, floats(1, 2, 6, 7), kernel_shape=[3, 2], strides=[2, 2], auto_pad=auto)
        check(explicit_pooling, m, feeds, device)

    def test_explicit_attributes_are_unchanged(self) -> None:
        m, _ = pool("MaxPool", floats(1, 1, 4, 4), kernel_shape=[2, 2], strides=[1, 1], pads=[0, 0, 0, 0])
        assert skipped(explicit_pooling, m) == []

    def test_counted_padding(self) -> None:
        a = {"kernel_shape": [3], "strides": [2], "ceil_mode": 1, "count_include_pad": 1}
        m, _ = pool("AveragePool", floats(1, 1, 6), **a)
        assert skipped(explicit_pooling, m) == ["count_include_pad does not count elements beyond its padding"]

    def test_wide_padding(self) -> None:
        a = {"kernel_shape": [2], "dilations": [2], "strides": [2], "ceil_mode": 1, "pads": [0, 1]}
        m, _ = pool("MaxPool", floats(1, 1, 3), **a)
        assert skipped(explicit_pooling, m) == ["the pads would be as large as the window"]


class TestMatMul:
    @pytest.mark.parametrize("include", [0, 1])
    def test_average(self, device: Device, include: int) -> None:
        a = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1], "dilations": [1, 2], "ceil_mode": 1}
        m, feeds = pool("AveragePool", floats(1, 2, 6, 7), count_include_pad=include, **a)
        check(matmul_pooling, m, feeds, device)
        assert operators(m) == ["MatMul", "MatMul"]

    @pytest.mark.parametrize("order", [1, 2, 3])
    def test_powers(self, device: Device, order: int) -> None:
        m, feeds = pool("LpPool", floats(1, 2, 5, 4, 3), kernel_shape=[2, 2, 2], strides=[1, 2, 1], p=order)
        check(matmul_pooling, m, feeds, device)
        assert operators(m).count("MatMul") == 3

    def test_maxima_are_no_sums(self) -> None:
        m, _ = pool("MaxPool", floats(1, 1, 4), kernel_shape=[2])
        assert skipped(matmul_pooling, m) == []


class TestMax:
    @pytest.mark.parametrize("order", [0, 1])
    @pytest.mark.parametrize("size", [(7,), (5, 6), (4, 3, 5)])
    def test_indices(self, device: Device, order: int, size: tuple[int, ...]) -> None:
        rank = len(size)
        a = {"kernel_shape": [3] * rank, "strides": [2] * rank, "pads": [1] * 2 * rank, "storage_order": order}
        m, feeds = pool("MaxPool", floats(2, 2, *size), outputs=2, **a)
        check(gather_max_pool, m, feeds, device)
        assert "ArgMax" in operators(m)

    def test_the_first_of_equals(self, device: Device) -> None:
        m, feeds = pool(
            "MaxPool", np.zeros((1, 1, 4, 4), np.float32), outputs=2, kernel_shape=[3, 3], pads=[1, 1, 1, 1]
        )
        check(gather_max_pool, m, feeds, device)

    @pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float64, np.float16])
    def test_dtypes(self, device: Device, dtype: type) -> None:
        x = (floats(1, 2, 5, 5) * 30).astype(dtype)
        m, feeds = pool("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 1, 1, 0], dilations=[1, 2])
        check(gather_max_pool, m, feeds, device)
        assert "ArgMax" not in operators(m)

    def test_windows_of_padding_only(self) -> None:
        a = {"kernel_shape": [2], "dilations": [3], "pads": [1, 1], "strides": [1]}
        m, _ = pool("MaxPool", floats(1, 1, 2), **a)
        assert skipped(gather_max_pool, m) == ["a window contains only padding"]


class TestGlobal:
    @pytest.mark.parametrize("operator", ["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
    @pytest.mark.parametrize("size", [(4,), (3, 4), (2, 3, 4)])
    def test_all(self, device: Device, operator: str, size: tuple[int, ...]) -> None:
        m, feeds = pool(operator, floats(2, 3, *size), opset=18)
        check(reduce_global_pooling, m, feeds, device)

    def test_open_dimensions_do_not_matter(self) -> None:
        m = model("(float[N,3,H,W] x) => (float[N,3,1,1] y) { y = GlobalMaxPool (x) }")
        assert reduce_global_pooling.run(m, Context()).rewrites
        assert operators(m) == ["ReduceMax"]


class TestSkips:
    @pytest.mark.parametrize("step", [explicit_pooling, matmul_pooling], ids=lambda step: step.name)
    def test_where_onnx_runtime_deviates_from_the_standard(self, step: NodeRewrite) -> None:
        m, _ = pool("AveragePool", floats(1, 1, 7), kernel_shape=[2], dilations=[2], auto_pad="SAME_UPPER")
        assert "ignores the dilations" in skipped(step, m)[0]
        m, _ = pool("AveragePool", floats(1, 1, 6), kernel_shape=[1], strides=[3], auto_pad="SAME_UPPER")
        assert "windows leave gaps" in skipped(step, m)[0]

    def test_open_dimensions(self) -> None:
        m = model("(float[N,3,H,4] x) => (float[N,3,A,B] y) { y = MaxPool <kernel_shape=[2,2]> (x) }")
        assert skipped(gather_max_pool, m) == [UNKNOWN_SHAPE]


@st.composite
def pools(draw: st.DrawFn) -> tuple[ir.Model, dict[str, Array]]:
    operator = draw(st.sampled_from(["MaxPool", "MaxPool", "AveragePool", "LpPool"]))
    opset, rank = draw(st.sampled_from([12, 18, 19, 22])), draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    a: dict[str, Any] = {"kernel_shape": kernel, "strides": [draw(st.integers(1, 3)) for _ in range(rank)]}
    match draw(st.sampled_from(["pads", "auto", "none"])):
        case "pads":
            a["pads"] = [draw(st.integers(0, each - 1)) for each in kernel * 2]
        case "auto":
            a["auto_pad"] = draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    if operator == "MaxPool" or opset >= (19 if operator == "AveragePool" else 18):
        a["dilations"] = [draw(st.integers(1, 2)) for _ in range(rank)]
    if operator != "LpPool" or opset >= 18:
        a["ceil_mode"] = draw(st.integers(0, 1))
    if operator == "AveragePool":
        a["count_include_pad"] = draw(st.integers(0, 1))
    if operator == "LpPool":
        a["p"] = draw(st.integers(1, 3))
    outputs = 1
    if operator == "MaxPool":
        outputs = draw(st.integers(1, 2))
        a["storage_order"] = draw(st.integers(0, 1)) * (outputs - 1)
    dtype = draw(st.sampled_from([np.float32, np.int8, np.uint8])) if operator == "MaxPool" else np.float32
    shape = [draw(st.integers(1, 2)), draw(st.integers(1, 2)), *[draw(st.integers(3, 7)) for _ in range(rank)]]
    return pool(operator, (floats(*shape) * 5).astype(dtype), opset=opset, outputs=outputs, **a)


REASONS = ("ONNX Runtime", "the output is empty", "only padding", "as large as the window", "beyond it")


@pytest.mark.parametrize("step", [explicit_pooling, matmul_pooling, gather_max_pool], ids=lambda step: step.name)
@settings(max_examples=25, deadline=None)
@given(drawn=pools())
def test_every_pool(device: Device, step: NodeRewrite, drawn: tuple[ir.Model, dict[str, Array]]) -> None:
    m, feeds = drawn
    assume(not refused(m, feeds))
    tried = step.run(ir.from_proto(ir.to_proto(m)), Context())
    if tried.rewrites:
        check(step, m, feeds, device, atol=1e-4)
    assert all(any(known in reason for known in REASONS) for reason in reasons(tried))
