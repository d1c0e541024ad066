"""Convolutions with explicit padding, unroll-conv-axis, and conv-transpose-as-conv."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from passes.legalize.nn.convolution import (
    conv_transpose_as_conv,
    explicit_conv,
    explicit_conv_transpose,
    unroll_conv_axis,
)
from passes.rewriting.base import Context
from passes.rewriting.rewrite import UNKNOWN_SHAPE, NodeRewrite
from tests.passes.device import Device
from tests.passes.harness import Array, model, operators
from tests.passes.legalize.images import check, floats, one, refused, skipped

EITHER = pytest.mark.parametrize("step", [explicit_conv_transpose, conv_transpose_as_conv], ids=lambda step: step.name)


def conv(weights: Array, x: Array, **a: Any) -> tuple[ir.Model, dict[str, Array]]:
    return one("Conv", {"x": x, "w": weights}, constants=("w",), opset=11, **a)


def transpose(weights: Array, x: Array, bias: bool = False, **a: Any) -> tuple[ir.Model, dict[str, Array]]:
    inputs: dict[str, Array | None] = {"x": x, "w": weights}
    if bias:
        inputs["b"] = floats(weights.shape[1] * a.get("group", 1), seed=3)
    return one("ConvTranspose", inputs, constants=("w", "b"), opset=11, **a)


class TestConv:
    @pytest.mark.parametrize(
        "attributes", [{}, {"strides": [2, 1, 1, 1], "pads": [1, 0, 0, 1, 0, 0, 1, 0], "group": 2}]
    )
    def test_four_axes(self, device: Device, attributes: dict[str, Any]) -> None:
        x, w = floats(2, 4, 4, 3, 3, 2), floats(2, 4 // attributes.get("group", 1), 3, 2, 2, 1, seed=1)
        m, feeds = conv(w, x, **attributes)
        check(unroll_conv_axis, m, feeds, device)
        assert [node.op_type for node in m.graph].count("Conv") == 3

    @pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER", "VALID"])
    @pytest.mark.parametrize("size", [(7,), (6, 7), (4, 5, 6)])
    def test_auto_pad(self, device: Device, auto: str, size: tuple[int, ...]) -> None:
        rank = len(size)
        m, feeds = conv(floats(3, 2, *[2] * rank), floats(1, 2, *size), auto_pad=auto, strides=[2] * rank)
        check(explicit_conv, m, feeds, device)
        assert "auto_pad" not in m.graph[0].attributes

    def test_explicit_attributes_are_unchanged(self) -> None:
        said = {"kernel_shape": [2, 2], "strides": [1, 1], "dilations": [1, 1], "pads": [0, 0, 0, 0]}
        assert skipped(explicit_conv, conv(floats(3, 2, 2, 2), floats(1, 2, 4, 4), **said)[0]) == []

    def test_open_dimensions(self) -> None:
        m = model(
            '(float[1,2,H,4] x) => (float[1,3,A,B] y) { y = Conv <auto_pad="VALID"> (x, w) }', w=floats(3, 2, 2, 2)
        )
        assert skipped(explicit_conv, m) == [UNKNOWN_SHAPE]


@EITHER
class TestTranspose:
    def test_output_padding_reduces_the_pads(self, device: Device, step: NodeRewrite) -> None:
        options = {"strides": [2, 3], "pads": [1, 0, 1, 2], "output_padding": [1, 2]}
        m, feeds = transpose(floats(3, 2, 3, 4), floats(1, 3, 4, 5), bias=True, **options)
        check(step, m, feeds, device)
        if step.name == "explicit-conv-transpose":
            assert operators(m) == ["ConvTranspose"]
            assert list(m.graph[0].attributes["pads"].as_ints()) == [1, 0, 0, 0]

    def test_unreached_elements_have_the_bias(self, device: Device, step: NodeRewrite) -> None:
        m, feeds = transpose(floats(3, 2, 3, 3), floats(1, 3, 4, 5), bias=True, strides=[2, 2], output_padding=[1, 1])
        check(step, m, feeds, device)
        assert operators(m)[-3:] == ["Pad", "Reshape", "Add"]

    @pytest.mark.parametrize("auto", ["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])
    def test_output_shape(self, device: Device, step: NodeRewrite, auto: str) -> None:
        m, feeds = transpose(
            floats(3, 2, 3, 2), floats(2, 3, 6, 7), auto_pad=auto, strides=[2, 3], output_shape=[12, 19]
        )
        check(step, m, feeds, device)

    @pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER", "VALID"])
    def test_auto_pad(self, device: Device, step: NodeRewrite, auto: str) -> None:
        m, feeds = transpose(floats(3, 2, 3, 2), floats(2, 3, 6, 7), auto_pad=auto, strides=[2, 1])
        check(step, m, feeds, device)

    @pytest.mark.parametrize("size", [(5,), (3, 4, 2)])
    def test_one_and_three_dimensions(self, device: Device, step: NodeRewrite, size: tuple[int, ...]) -> None:
        m, feeds = transpose(floats(2, 3, *[2] * len(size)), floats(1, 2, *size), strides=[2] * len(size))
        check(step, m, feeds, device)

    def test_groups_and_dilations(self, device: Device, step: NodeRewrite) -> None:
        m, feeds = transpose(floats(4, 3, 3, 2), floats(1, 4, 4, 4), group=2, dilations=[2, 1], strides=[1, 2])
        check(step, m, feeds, device)

    def test_computed_weights(self, device: Device, step: NodeRewrite) -> None:
        m, feeds = one("ConvTranspose", {"x": floats(1, 2, 3, 3), "w": floats(2, 2, 3, 3)}, opset=11, auto_pad="VALID")
        check(step, m, feeds, device)

    def test_where_onnx_runtime_deviates_from_the_standard(self, step: NodeRewrite) -> None:
        m, _ = transpose(floats(1, 1, 1), floats(1, 1, 4), auto_pad="SAME_UPPER", strides=[2])
        assert "windows do not reach all" in skipped(step, m)[0]

    def test_open_dimensions(self, step: NodeRewrite) -> None:
        m = model("(float[1,2,H,4] x) => (float[1,3,A,B] y) { y = ConvTranspose (x, w) }", w=floats(2, 3, 2, 2))
        assert skipped(step, m) == [UNKNOWN_SHAPE]


def test_explicit_already() -> None:
    said = {"kernel_shape": [2, 2], "strides": [1, 1], "dilations": [1, 1], "pads": [0, 0, 0, 0]}
    assert skipped(explicit_conv_transpose, transpose(floats(2, 3, 2, 2), floats(1, 2, 4, 4), **said)[0]) == []


@st.composite
def transposes(draw: st.DrawFn) -> tuple[ir.Model, dict[str, Array]]:
    rank, group = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2]))
    channels, size = group * draw(st.integers(1, 2)), [draw(st.integers(1, 4)) for _ in range(rank)]
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    strides = [draw(st.integers(1, 3)) for _ in range(rank)]
    dilations = [draw(st.integers(1, 2)) for _ in range(rank)]
    added = [draw(st.integers(0, max(pair) - 1)) for pair in zip(strides, dilations, strict=True)]
    a: dict[str, Any] = {"group": group, "strides": strides, "dilations": dilations, "output_padding": added}
    how = draw(st.sampled_from(["pads", "auto", "shape"]))
    if how == "pads":
        a["pads"] = [draw(st.integers(0, 1)) for _ in range(2 * rank)]
    else:
        a["auto_pad"] = draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    if how == "shape":
        sides = zip(size, strides, kernel, dilations, added, strict=True)
        full = [(count - 1) * step + (length - 1) * gap + 1 + more for count, step, length, gap, more in sides]
        a["output_shape"] = [max(1, each - draw(st.integers(0, 3))) for each in full]
    weights = floats(channels, draw(st.integers(1, 2)), *kernel)
    return transpose(weights, floats(draw(st.integers(1, 2)), channels, *size), draw(st.booleans()), **a)


@EITHER
@settings(max_examples=30, deadline=None)
@given(drawn=transposes())
def test_every_transpose(device: Device, step: NodeRewrite, drawn: tuple[ir.Model, dict[str, Array]]) -> None:
    m, feeds = drawn
    assume(not refused(m, feeds))
    if not _disagreements(step, m):
        check(step, m, feeds, device, atol=1e-4)


def _disagreements(step: NodeRewrite, m: ir.Model) -> list[str]:
    """The reasons that hold for leaving a model alone."""
    result = step.run(ir.from_proto(ir.to_proto(m)), Context())
    found = [skip.reason for skip in result.skips if not result.rewrites]
    assert all("windows do not reach" in each or "crop everything that the windows reach" in each for each in found)
    return found
