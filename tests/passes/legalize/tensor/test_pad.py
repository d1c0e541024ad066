"""concat-pad, gather-pad and separate-pad: all modes, and the pairs that MIGraphX merges wrongly."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from passes.graphs.scopes import Scope
from passes.legalize.tensor.pad import concat_pad, gather_pad, separate_pad
from passes.rewriting.base import Context
from passes.rewriting.edit import Proposal
from passes.rewriting.rewrite import UNKNOWN_SHAPE
from tests.passes.device import Device
from tests.passes.harness import Array, model, operators
from tests.passes.legalize.images import check, floats, one, refused, skipped


def pad(
    x: Array,
    pads: list[int],
    *,
    value: Array | None = None,
    axes: list[int] | None = None,
    constant: bool = True,
    **attributes: Any,
) -> tuple[ir.Model, dict[str, Array]]:
    inputs: dict[str, Array | None] = {"x": x, "pads": np.array(pads), "value": value}
    if axes is not None:
        inputs["axes"] = np.array(axes)
    names = ("pads", "axes", "value") if constant else ("pads", "axes")
    return one("Pad", inputs, constants=names, opset=attributes.pop("opset", 19), **attributes)


class TestConstant:
    def test_every_axis(self, device: Device) -> None:
        m, feeds = pad(floats(2, 3, 4), [1, 0, 2, 0, 1, 1], value=np.array(3.5, np.float32))
        check(concat_pad, m, feeds, device)
        assert [each for each in operators(m) if each != "Expand"] == ["Concat"] * 3

    def test_negative_pads_crop(self, device: Device) -> None:
        m, feeds = pad(floats(4, 5), [-1, 2, 1, -2])
        check(concat_pad, m, feeds, device)
        assert operators(m)[0] == "Slice"

    def test_fully_cropped_input(self, device: Device) -> None:
        m, feeds = pad(floats(1, 3), [-1, 0, 3, 1], value=np.array(2, np.float32))
        check(concat_pad, m, feeds, device)

    def test_no_match(self, device: Device) -> None:
        m, feeds = pad(floats(2, 3), [0, 0, 0, 0])
        check(concat_pad, m, feeds, device)
        assert operators(m) == ["Identity"]

    def test_a_value_that_is_computed(self, device: Device) -> None:
        m, feeds = pad(floats(2, 3), [1, 1, 0, 2], value=np.array(7, np.float32), constant=False)
        check(concat_pad, m, feeds, device)

    def test_axes(self, device: Device) -> None:
        m, feeds = pad(floats(2, 3, 4), [1, 0, 2, 1], axes=[-1, 0])
        check(concat_pad, m, feeds, device)

    @pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_, np.float64, np.float16])
    def test_dtypes(self, device: Device, dtype: type) -> None:
        m, feeds = pad((floats(2, 3) * 9).astype(dtype), [1, 0, 0, 1], value=np.array(1, dtype))
        check(concat_pad, m, feeds, device)

    @pytest.mark.parametrize("opset", [7, 10])
    def test_pads_as_attributes(self, device: Device, opset: int) -> None:
        m, feeds = one("Pad", {"x": floats(3, 4)}, opset=opset, pads=[1, -1, 0, 2], value=2.5)
        check(concat_pad, m, feeds, device)


class TestRepeating:
    @pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
    def test_modes(self, device: Device, mode: str) -> None:
        m, feeds = pad(floats(2, 3, 5), [1, 0, 2, 0, 2, 3], mode=mode)
        check(gather_pad, m, feeds, device)
        assert operators(m) == ["Gather", "Gather", "Gather"]

    @pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
    def test_crops_first(self, device: Device, mode: str) -> None:
        m, feeds = pad(floats(5, 6), [-1, 2, 1, -2], mode=mode)
        check(gather_pad, m, feeds, device)
        assert operators(m) == ["Slice", "Gather", "Gather"]


class TestSkips:
    def test_pads_that_are_not_constant(self) -> None:
        m, _ = one("Pad", {"x": floats(2, 2), "pads": np.array([1, 1, 1, 1])})
        assert skipped(concat_pad, m) == ["the operand pads is not constant: freeze it with --freeze pads=VALUE"]

    def test_pads_that_are_computed(self) -> None:
        m = model("(float[2,2] x, int64[4] p) => (float[M,N] y) { q = Neg (p) y = Pad (x, q) }")
        assert skipped(concat_pad, m) == ["the operand pads is not constant: q is computed at run time"]

    def test_open_dimensions(self) -> None:
        m = model("(float[N] x) => (float[M] y) { y = Pad (x, p) }", p=np.array([1, 1]))
        assert skipped(concat_pad, m) == [UNKNOWN_SHAPE]

    def test_empty_output(self) -> None:
        m, _ = pad(floats(2, 2), [-1, 0, -1, 0])
        assert skipped(concat_pad, m) == ["the output is empty"]

    @pytest.mark.parametrize("shape", [(1, 0), (3, 1)])
    def test_cropping_more_than_there_is(self, shape: tuple[int, ...]) -> None:
        m, _ = pad(np.ones(shape, np.float32), [0, -2, 0, 5])
        assert skipped(concat_pad, m) == ["the pads crop more than the input has"]

    def test_the_other_mode(self) -> None:
        m, _ = pad(floats(2, 2), [1, 1, 1, 1], mode="edge")
        assert skipped(concat_pad, m) == []


def cluster(last: str, pads: list[int], value: float, **constants: Array) -> tuple[ir.Model, dict[str, Array]]:
    m = model(
        f"(float[1,2,5,5] x) => (float[N,C,H,W] y) {{ p = Pad (x, pads, value) {last} }}",
        pads=np.array(pads),
        value=np.array(value, np.float32),
        **constants,
    )
    return m, {"x": floats(1, 2, 5, 5) - 3}


class TestClusters:
    @pytest.mark.parametrize("value", [0.0, 5.0])
    def test_convolution_with_pads_of_its_own(self, device: Device, value: float) -> None:
        conv = "y = Conv <pads=[1,0,1,0]> (p, w)"
        m, feeds = cluster(conv, [0, 0, 1, 0, 0, 0, 0, 2], value, w=floats(3, 2, 2, 2))
        check(separate_pad, m, feeds, device)
        assert operators(m)[-1] == "Conv"
        assert "Pad" not in operators(m)

    def test_channels(self, device: Device) -> None:
        m, feeds = cluster("y = Conv (p, w)", [0, 1, 0, 0, 0, 0, 0, 0], 2.0, w=floats(3, 3, 2, 2))
        check(separate_pad, m, feeds, device)

    def test_zeros_before_the_maximum_of_negative_numbers(self, device: Device) -> None:
        m, feeds = cluster("y = MaxPool <kernel_shape=[2,2]> (p)", [0, 0, 1, 1, 0, 0, 1, 1], 0.0)
        check(separate_pad, m, feeds, device)

    def test_transposed_convolution(self, device: Device) -> None:
        m, feeds = cluster("y = ConvTranspose (p, w)", [0, 0, 1, 1, 0, 0, 1, 1], 2.0, w=floats(2, 3, 2, 2))
        check(separate_pad, m, feeds, device)

    def test_power_mean(self, device: Device) -> None:
        lp = "y = LpPool <kernel_shape=[2,2], strides=[1,1], pads=[0,0,0,0]> (p)"
        m, feeds = cluster(lp, [0, 0, 1, 0, 0, 0, 1, 0], 2.0)
        check(separate_pad, m, feeds, device)

    def test_other_uses_keep_the_pad(self) -> None:
        m = model(
            "(float[1,1,3,3] x) => (float[1,1,4,4] y, float[1,1,5,5] p) {"
            "  p = Pad (x, q) y = MaxPool <kernel_shape=[2,2]> (p) }",
            q=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        )
        separate_pad.run(m, Context())
        assert sorted(set(operators(m))) == ["Concat", "Expand", "MaxPool", "Pad"]

    def test_proposed_nodes_are_not_matched(self) -> None:
        m, _ = cluster("y = Conv (p, w)", [0, 1, 0, 0, 0, 0, 0, 0], 2.0, w=floats(3, 3, 2, 2))
        pad, conv = m.graph
        proposed = ir.Node("", "Conv", conv.inputs)
        scope = Scope(m, m.graph)
        assert pad.outputs[0] in proposed.inputs
        proposal = separate_pad.propose(conv, scope)
        assert isinstance(proposal, Proposal)
        proposal.discard()
        assert separate_pad.propose(proposed, scope) is None

    def test_only_constant_pads(self) -> None:
        m = model(
            "(float[1,1,3,3] x) => (float[1,1,4,4] y) {"
            '  p = Pad <mode="edge"> (x, q) y = MaxPool <kernel_shape=[2,2]> (p) }',
            q=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        )
        assert skipped(separate_pad, m) == []


@st.composite
def pads(draw: st.DrawFn) -> tuple[ir.Model, dict[str, Array]]:
    opset = draw(st.sampled_from([11, 13, 18, 19, 21]))
    rank = draw(st.integers(1, 4))
    shape = [draw(st.integers(1, 5)) for _ in range(rank)]
    mode = draw(st.sampled_from(["constant", "reflect", "edge", *["wrap"] * (opset >= 19)]))
    dtype = draw(st.sampled_from([np.float32, np.int64, np.uint8, np.float64])) if opset >= 13 else np.float32
    axes = draw(st.permutations(range(rank))) if opset >= 18 and draw(st.booleans()) else None
    if axes is not None:
        axes = [axis - rank * draw(st.booleans()) for axis in axes[: draw(st.integers(1, rank))]]
    lowest = draw(st.sampled_from([0, -1]))
    amounts = [draw(st.integers(lowest, 3)) for _ in range(2 * (rank if axes is None else len(axes)))]
    value = np.array(7, dtype) if mode == "constant" and draw(st.booleans()) else None
    x = (floats(*shape) * 30).astype(dtype)
    return pad(x, amounts, value=value, axes=axes, constant=draw(st.booleans()), opset=opset, mode=mode)


@settings(max_examples=40, deadline=None)
@given(pads())
def test_every_pad(device: Device, drawn: tuple[ir.Model, dict[str, Array]]) -> None:
    m, feeds = drawn
    assume(not refused(m, feeds))
    step = concat_pad if m.graph[0].attributes["mode"].as_string() == "constant" else gather_pad
    reasons = skipped(step, m) if 0 in _shape(m) else []
    assert reasons in ([], ["the output is empty"])
    if not reasons:
        check(step, m, feeds, device)


def _shape(m: ir.Model) -> list[int]:
    shape = m.graph.outputs[0].shape
    return [] if shape is None else [each for each in shape if isinstance(each, int)]
