"""gather-deform-conv: groups, offset groups, masks, strides and pads."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from passes.legalize.nn.deform_conv import gather_deform_conv
from passes.rewriting.rewrite import UNKNOWN_SHAPE
from tests.passes.device import Device
from tests.passes.harness import Array, model
from tests.passes.legalize.images import check, floats, one, skipped


def deform(
    shape: list[int], outputs: int, kernel: list[int], bias: bool = False, mask: bool = False, **a: Any
) -> tuple[ir.Model, dict[str, Array]] | None:
    """None if no window fits."""
    strides, dilations, pads = a.get("strides", [1, 1]), a.get("dilations", [1, 1]), a.get("pads", [0] * 4)
    reach = [(length - 1) * dilation + 1 for length, dilation in zip(kernel, dilations, strict=True)]
    out = [(shape[2 + i] + pads[i] + pads[i + 2] - reach[i]) // strides[i] + 1 for i in range(2)]
    if min(out) < 1:
        return None
    elements, groups = kernel[0] * kernel[1], a.get("offset_group", 1)
    inputs: dict[str, Array | None] = {
        "x": floats(*shape),
        "w": floats(outputs, shape[1] // a.get("group", 1), *kernel, seed=1),
        "offset": floats(shape[0], groups * elements * 2, *out, seed=2),
        "bias": floats(outputs, seed=3) if bias else None,
    }
    if mask:
        inputs["mask"] = floats(shape[0], groups * elements, *out, seed=4)
    return one("DeformConv", inputs, opset=19, **a)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mask", [False, True])
def test_inputs(device: Device, bias: bool, mask: bool) -> None:
    drawn = deform([2, 4, 5, 4], 4, [3, 2], bias, mask, pads=[1, 0, 1, 1], group=2, offset_group=2)
    assert drawn is not None
    check(gather_deform_conv, *drawn, device)


def test_integer_offsets_equal_a_convolution(device: Device) -> None:
    drawn = deform([1, 2, 5, 5], 3, [2, 2])
    assert drawn is not None
    m, feeds = drawn
    feeds["offset"] = np.zeros_like(feeds["offset"])
    check(gather_deform_conv, m, feeds, device)


def test_open_dimensions() -> None:
    text = "(float[N,1,3,3] x, float[1,1,2,2] w, float[N,8,2,2] o) => (float[N,1,2,2] y) { y = DeformConv (x, w, o) }"
    reason = UNKNOWN_SHAPE
    assert skipped(gather_deform_conv, model(text, opset=19)) == [reason]


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_every_deform_conv(device: Device, data: st.DataObject) -> None:
    def pair(low: int, high: int, count: int = 2) -> list[int]:
        return [data.draw(st.integers(low, high)) for _ in range(count)]

    group = data.draw(st.sampled_from([1, 2]))
    drawn = deform(
        [data.draw(st.integers(1, 2)), 2 * data.draw(st.integers(1, 2)), *pair(2, 6)],
        group * data.draw(st.integers(1, 2)),
        pair(1, 3),
        data.draw(st.booleans()),
        data.draw(st.booleans()),
        strides=pair(1, 2),
        dilations=pair(1, 2),
        pads=pair(0, 1, 4),
        group=group,
        offset_group=data.draw(st.sampled_from([1, 2])),
    )
    assume(drawn is not None)
    assert drawn is not None
    check(gather_deform_conv, *drawn, device, atol=1e-4)
