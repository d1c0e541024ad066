"""matmul-roi-align and where-max-roi-pool: modes, sampling, regions that extend beyond the image."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.nn.regions import matmul_roi_align, where_max_roi_pool
from passes.rewriting.rewrite import UNKNOWN_SHAPE
from tests.passes.device import Device
from tests.passes.harness import Array, model
from tests.passes.legalize.images import check, floats, one, skipped

ROIS = np.array([[0, 0, 5, 4], [1.2, 0.5, 3.7, 5.9], [-2, -2, 9, 9], [3, 3, 3.2, 3.1]], np.float32)
BATCH = np.array([0, 1, 1, 0])


def align(
    rois: Array, batch: Array, shape: tuple[int, ...] = (2, 3, 6, 7), **a: Any
) -> tuple[ir.Model, dict[str, Array]]:
    constants = ("rois",) if a.pop("constant", False) else ()
    inputs: dict[str, Array | None] = {"x": floats(*shape), "rois": rois, "batch": batch}
    return one("RoiAlign", inputs, opset=a.pop("opset", 16), constants=constants, **a)


class TestRoiAlign:
    @pytest.mark.parametrize("mode", ["avg", "max"])
    @pytest.mark.parametrize("frame", ["half_pixel", "output_half_pixel"])
    def test_modes_that_stock_computes_wrongly(self, device: Device, mode: str, frame: str) -> None:
        a = {"mode": mode, "coordinate_transformation_mode": frame, "sampling_ratio": 2, "spatial_scale": 0.8}
        check(matmul_roi_align, *align(ROIS, BATCH, output_height=2, output_width=3, **a), device)

    @pytest.mark.parametrize("mode", ["avg", "max"])
    def test_samples_as_many_as_a_region_has_pixels(self, device: Device, mode: str) -> None:
        a = {"mode": mode, "sampling_ratio": 0, "constant": True}
        check(matmul_roi_align, *align(ROIS, BATCH, output_height=2, output_width=3, **a), device)

    def test_opset_10(self, device: Device) -> None:
        check(matmul_roi_align, *align(ROIS, BATCH, opset=10, sampling_ratio=2), device)

    def test_unknown_sample_counts(self) -> None:
        (reason,) = skipped(matmul_roi_align, align(ROIS, BATCH)[0])
        assert "sampling_ratio is 0" in reason

    def test_open_dimensions(self) -> None:
        m = model("(float[1,1,4,4] x, float[N,4] r, int64[N] b) => (float[N,1,1,1] y) { y = RoiAlign (x, r, b) }")
        assert skipped(matmul_roi_align, m) == [UNKNOWN_SHAPE]


@st.composite
def regions(draw: st.DrawFn) -> tuple[tuple[int, ...], Array, Array]:
    """The shape of images, regions, and the image of each."""
    shape = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(2, 6)), draw(st.integers(2, 6))
    count, random = draw(st.integers(1, 4)), np.random.default_rng(draw(st.integers(0, 2**16)))
    rois = np.sort(random.uniform(-2, 8, (count, 2, 2)), 1).reshape(count, 4).astype(np.float32)
    return shape, rois, random.integers(0, shape[0], count)


@settings(max_examples=25, deadline=None)
@given(regions(), st.data())
def test_every_roi_align(device: Device, drawn: tuple[tuple[int, ...], Array, Array], data: st.DataObject) -> None:
    shape, rois, batch = drawn
    constant = data.draw(st.booleans())
    m, feeds = align(
        rois,
        batch,
        shape,
        constant=constant,
        sampling_ratio=data.draw(st.integers(0 if constant else 1, 3)),
        output_height=data.draw(st.integers(1, 3)),
        output_width=data.draw(st.integers(1, 3)),
        spatial_scale=data.draw(st.sampled_from([1.0, 0.5])),
        mode=data.draw(st.sampled_from(["avg", "max"])),
        coordinate_transformation_mode=data.draw(st.sampled_from(["half_pixel", "output_half_pixel"])),
    )
    check(matmul_roi_align, m, feeds, device, atol=1e-4)


def max_pool(rois: Array, batch: Array, shape: tuple[int, ...], **a: Any) -> tuple[ir.Model, dict[str, Array]]:
    numbered = np.concatenate([batch[:, None], rois], 1).astype(np.float32)
    return one("MaxRoiPool", {"x": floats(*shape), "rois": numbered}, opset=11, **a)


def test_max_roi_pool(device: Device) -> None:
    m, feeds = max_pool(np.abs(ROIS), BATCH, (2, 3, 6, 7), pooled_shape=[2, 3], spatial_scale=0.8)
    check(where_max_roi_pool, m, feeds, device)


@settings(max_examples=20, deadline=None)
@given(regions(), st.integers(1, 3), st.integers(1, 3), st.sampled_from([1.0, 0.5]))
def test_every_max_roi_pool(
    device: Device, drawn: tuple[tuple[int, ...], Array, Array], height: int, width: int, scale: float
) -> None:
    shape, rois, batch = drawn
    m, feeds = max_pool(rois, batch, shape, pooled_shape=[height, width], spatial_scale=scale)
    check(where_max_roi_pool, m, feeds, device)
