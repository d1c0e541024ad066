"""gather-grid-sample and matmul-affine-grid: every mode, padding and rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from passes.legalize.nn.grid_sample import gather_grid_sample, matmul_affine_grid
from passes.rewriting.base import Context
from passes.rewriting.rewrite import UNKNOWN_SHAPE
from tests.passes.device import Device
from tests.passes.harness import Array, model, operators
from tests.passes.legalize.images import check, floats, one, refused, skipped


def grid_sample(shape: list[int], places: list[int], **a: Any) -> tuple[ir.Model, dict[str, Array]]:
    """An image, and a grid that reaches beyond it."""
    grid = np.random.default_rng(2).uniform(-1.7, 1.7, (shape[0], *places, len(shape) - 2)).astype(np.float32)
    dtype = a.pop("dtype", np.float32)
    inputs: dict[str, Array | None] = {"x": floats(*shape).astype(dtype), "grid": grid.astype(dtype)}
    return one("GridSample", inputs, opset=a.pop("opset", 20), **a)


class TestGridSample:
    def test_linear(self, device: Device) -> None:
        m, feeds = grid_sample([2, 3, 4, 5], [2, 3])
        check(gather_grid_sample, m, feeds, device)
        assert operators(m).count("Gather") == 3
        assert operators(m).count("MatMul") == 1

    @pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
    def test_cubic_that_stock_computes_wrongly(self, device: Device, padding: str) -> None:
        m, feeds = grid_sample([2, 3, 4, 5], [2, 3], mode="cubic", padding_mode=padding)
        check(gather_grid_sample, m, feeds, device)

    def test_nearest_has_no_weights(self, device: Device) -> None:
        m, feeds = grid_sample([1, 2, 4, 5], [2, 3], mode="nearest", padding_mode="border")
        check(gather_grid_sample, m, feeds, device)
        assert "MatMul" not in operators(m)

    @pytest.mark.parametrize("mode", ["nearest", "linear"])
    def test_volumes(self, device: Device, mode: str) -> None:
        m, feeds = grid_sample([2, 2, 3, 4, 5], [2, 1, 3], mode=mode, align_corners=1)
        check(gather_grid_sample, m, feeds, device)

    @pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
    def test_names_of_opset_16(self, device: Device, mode: str) -> None:
        m, feeds = grid_sample([1, 2, 4, 5], [2, 3], mode=mode, opset=16)
        check(gather_grid_sample, m, feeds, device)

    def test_open_dimensions(self) -> None:
        text = "(float[N,1,2,2] x, float[N,2,2,2] g) => (float[N,1,2,2] y) { y = GridSample (x, g) }"
        reason = UNKNOWN_SHAPE
        assert skipped(gather_grid_sample, model(text)) == [reason]


@st.composite
def samples(draw: st.DrawFn) -> tuple[ir.Model, dict[str, Array]]:
    rank = draw(st.sampled_from([2, 2, 3]))
    modes = ["linear", "nearest", *["cubic"] * (rank == 2)]
    shape = [draw(st.integers(1, 2)), draw(st.integers(1, 3)), *[draw(st.integers(1, 5)) for _ in range(rank)]]
    return grid_sample(
        shape,
        [draw(st.integers(1, 4)) for _ in range(rank)],
        mode=draw(st.sampled_from(modes)),
        padding_mode=draw(st.sampled_from(["zeros", "border", "reflection"])),
        align_corners=draw(st.integers(0, 1)),
        dtype=draw(st.sampled_from([np.float32, np.float64])),
    )


@settings(max_examples=30, deadline=None)
@given(samples())
def test_every_grid_sample(device: Device, drawn: tuple[ir.Model, dict[str, Array]]) -> None:
    m, feeds = drawn
    one_pixel = any(size == 1 for size in feeds["x"].shape[2:])
    attributes = m.graph[0].attributes
    mirrored = attributes["padding_mode"].as_string() == "reflection" and attributes["align_corners"].as_int() == 1
    assume(not (one_pixel and mirrored))  # ONNX Runtime divides by zero
    assume(not refused(m, feeds))
    check(gather_grid_sample, m, feeds, device, atol=1e-4)


class TestAffineGrid:
    @pytest.mark.parametrize("size", [[2, 1, 3, 4], [2, 1, 2, 3, 4], [1, 1, 1, 2]])
    @pytest.mark.parametrize("corners", [0, 1])
    def test_all(self, device: Device, size: list[int], corners: int) -> None:
        rank = len(size) - 2
        theta = floats(size[0], rank, rank + 1)
        inputs: dict[str, Array | None] = {"theta": theta, "size": np.array(size)}
        m, feeds = one("AffineGrid", inputs, opset=20, constants=("size",), align_corners=corners)
        with np.errstate(divide="ignore"):  # it takes the step between the only point and the next
            (expected,) = ReferenceEvaluator(ir.to_proto(m)).run(None, feeds)
        assert matmul_affine_grid.run(m, Context()).rewrites
        assert operators(m) == ["Transpose", "MatMul", "Reshape"]
        proto = ir.to_proto(m)
        onnx.checker.check_model(proto, full_check=True)
        (actual,) = device.run(proto, {"theta": theta})
        np.testing.assert_allclose(actual, expected, 1e-4, 1e-5)
        assert not matmul_affine_grid.run(m, Context()).rewrites

    def test_size_that_is_not_constant(self) -> None:
        m, _ = one("AffineGrid", {"theta": floats(1, 2, 3), "size": np.array([1, 1, 2, 2])}, opset=20)
        assert skipped(matmul_affine_grid, m) == ["the size is not constant: freeze it with --freeze size=VALUE"]
