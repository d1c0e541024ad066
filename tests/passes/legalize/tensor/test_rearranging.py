"""transpose-blocks, conv-transpose-col2im and scatter-max-unpool."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from passes.legalize.nn.convolution import explicit_conv_transpose
from passes.legalize.tensor.rearranging import conv_transpose_col2im, scatter_max_unpool, transpose_blocks
from passes.rewriting.base import Context
from passes.rewriting.rewrite import UNKNOWN_SHAPE
from tests.passes.device import Device
from tests.passes.harness import Array, model, operators
from tests.passes.legalize.images import check, floats, one, refused, skipped


class TestBlocks:
    @pytest.mark.parametrize("mode", ["DCR", "CRD"])
    @pytest.mark.parametrize("dtype", [np.float32, np.uint8])
    def test_depth_to_space(self, device: Device, mode: str, dtype: type) -> None:
        x = (floats(2, 12, 2, 3) * 9).astype(dtype)
        m, feeds = one("DepthToSpace", {"x": x}, opset=13, blocksize=2, mode=mode)
        check(transpose_blocks, m, feeds, device)
        assert operators(m) == ["Reshape", "Transpose", "Reshape"]

    def test_space_to_depth(self, device: Device) -> None:
        m, feeds = one("SpaceToDepth", {"x": floats(2, 3, 4, 6)}, opset=13, blocksize=2)
        check(transpose_blocks, m, feeds, device)

    @pytest.mark.runtime
    @pytest.mark.parametrize("mode", ["DCR", "CRD"])
    def test_space_to_depth_undoes_depth_to_space(self, device: Device, mode: str) -> None:
        x = floats(2, 12, 2, 3)
        text = f"""<ir_version: 10, opset_import: ["": 28]> g (float[2,12,2,3] x) => (float[2,12,2,3] y) {{
            d = DepthToSpace <blocksize=2, mode="{mode}"> (x)
            y = SpaceToDepth <blocksize=2, mode="{mode}"> (d)
        }}"""
        m = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
        assert len(transpose_blocks.run(m, Context()).rewrites) == 2
        np.testing.assert_array_equal(device.run(ir.to_proto(m), {"x": x})[0], x)

    def test_open_dimensions(self) -> None:
        m = model("(float[N,4,2,2] x) => (float[N,1,4,4] y) { y = DepthToSpace <blocksize=2> (x) }")
        assert skipped(transpose_blocks, m) == [UNKNOWN_SHAPE]


def columns(
    image: list[int], block: list[int], channels: int = 2, batch: int = 1, **a: Any
) -> tuple[ir.Model, dict[str, Array]] | None:
    """None if a block does not fit."""
    rank = len(image)
    strides, dilations, pads = (
        a.get("strides", [1] * rank),
        a.get("dilations", [1] * rank),
        a.get("pads", [0] * 2 * rank),
    )
    counts = [
        (image[i] + pads[i] + pads[i + rank] - (block[i] - 1) * dilations[i] - 1) // strides[i] + 1 for i in range(rank)
    ]
    if min(counts) < 1:
        return None
    inputs: dict[str, Array | None] = {
        "x": floats(batch, channels * int(np.prod(block)), int(np.prod(counts))),
        "image": np.array(image),
        "block": np.array(block),
    }
    return one("Col2Im", inputs, opset=18, constants=("image", "block"), **a)


def settle(m: ir.Model) -> None:
    """The rules that the driver applies to the ConvTranspose."""
    explicit_conv_transpose.run(m, Context())


class TestCol2Im:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"pads": [1, 0, 1, 1]},
            {"strides": [2, 3]},
            {"dilations": [1, 2]},
            {"strides": [2, 2], "pads": [1, 1, 0, 0]},
        ],
    )
    def test_planes(self, device: Device, options: dict[str, Any]) -> None:
        drawn = columns([6, 7], [2, 3], batch=2, **options)
        assert drawn is not None
        check(conv_transpose_col2im, *drawn, device, then=settle)
        assert "ConvTranspose" in operators(drawn[0])

    def test_volumes(self, device: Device) -> None:
        drawn = columns([3, 4, 5], [1, 2, 2], strides=[1, 2, 2])
        assert drawn is not None
        check(conv_transpose_col2im, *drawn, device, then=settle)

    @pytest.mark.parametrize("rank", [1, 3])
    def test_dilations_where_onnx_runtime_deviates(self, device: Device, rank: int) -> None:
        drawn = columns([4, 5, 6][:rank], [2, 1, 2][:rank], dilations=[2, 1, 3][:rank])
        assert drawn is not None
        m, feeds = drawn
        (expected,) = ReferenceEvaluator(ir.to_proto(m)).run(None, feeds)
        assert conv_transpose_col2im.run(m, Context()).rewrites
        settle(m)
        np.testing.assert_allclose(device.run(ir.to_proto(m), {"x": feeds["x"]})[0], expected, 1e-5, 1e-6)

    def test_shapes_that_are_not_constant(self) -> None:
        m, _ = one("Col2Im", {"x": floats(1, 4, 4), "i": np.array([3, 3]), "b": np.array([2, 2])}, opset=18)
        assert skipped(conv_transpose_col2im, m) == [
            "the operand image_shape is not constant: freeze it with --freeze i=VALUE"
        ]

    def test_integers(self) -> None:
        x = np.ones((1, 4, 4), np.int32)
        m, _ = one("Col2Im", {"x": x, "i": np.array([3, 3]), "b": np.array([2, 2])}, opset=18, constants=("i", "b"))
        assert skipped(conv_transpose_col2im, m) == ["the input is INT32, and convolutions support floats only"]

    @settings(max_examples=20, deadline=None)
    @given(st.data())
    def test_every_col2im(self, device: Device, data: st.DataObject) -> None:
        def some(low: int, high: int, count: int) -> list[int]:
            return [data.draw(st.integers(low, high)) for _ in range(count)]

        rank = data.draw(st.integers(1, 3))
        # ONNX Runtime gets dilations wrong in other than two dimensions
        dilations = some(1, 2, 2) if rank == 2 else [1] * rank
        options = {"strides": some(1, 3, rank), "dilations": dilations, "pads": some(0, 1, 2 * rank)}
        drawn = columns(some(2, 6, rank), some(1, 3, rank), data.draw(st.integers(1, 2)), **options)
        assume(drawn is not None)
        assert drawn is not None
        assume(not refused(*drawn))
        check(conv_transpose_col2im, *drawn, device, then=settle)


class TestMaxUnpool:
    @pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 0, 1]])
    def test_shape_from_the_windows(self, device: Device, pads: list[int]) -> None:
        inputs: dict[str, Array | None] = {"x": floats(1, 2, 3, 3), "i": _indices(18, 1 * 2 * 5 * 5)}
        m, feeds = one("MaxUnpool", inputs, opset=11, kernel_shape=[2, 2], strides=[2, 2], pads=pads)
        check(scatter_max_unpool, m, feeds, device)
        assert "ScatterElements" in operators(m)

    def test_given_shape(self, device: Device) -> None:
        inputs: dict[str, Array | None] = {"x": floats(1, 2, 3, 3), "i": _indices(18, 98), "s": np.array([1, 2, 7, 7])}
        m, feeds = one("MaxUnpool", inputs, opset=11, constants=("s",), kernel_shape=[2, 2], strides=[2, 2])
        check(scatter_max_unpool, m, feeds, device)

    def test_shape_that_is_not_constant(self) -> None:
        inputs: dict[str, Array | None] = {"x": floats(1, 1, 2, 2), "i": _indices(4, 16), "s": np.array([1, 1, 4, 4])}
        m, _ = one("MaxUnpool", inputs, opset=11, kernel_shape=[2, 2], strides=[2, 2])
        assert skipped(scatter_max_unpool, m) == [
            "the operand output_shape is not constant: freeze it with --freeze s=VALUE"
        ]


def _indices(count: int, total: int) -> Array:
    """Places that differ."""
    shape = (1, count // 9, 3, 3) if count % 9 == 0 else (1, 1, 2, 2)
    return np.random.default_rng(5).permutation(total)[:count].reshape(shape).astype(np.int64)
