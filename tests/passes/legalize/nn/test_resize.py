"""gather-resize, lerp-resize and matmul-resize: all modes, compared with ONNX Runtime, alone and in MIGraphX."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from passes.legalize.nn.resize import gather_resize, lerp_resize, matmul_resize
from passes.rewriting.base import Context
from passes.rewriting.rewrite import UNKNOWN_SHAPE, NodeRewrite
from tests.passes.device import Device
from tests.passes.harness import Array, model, operators, run
from tests.passes.legalize.images import check, floats, one, refused, skipped

_STEPS = [pytest.param(step, id=step.name) for step in (lerp_resize, matmul_resize)]
LATE = ("x", "roi", "scales", "sizes")


def resize(
    x: Array,
    *,
    scales: list[float] | None = None,
    sizes: list[int] | None = None,
    roi: list[float] | None = None,
    **a: Any,
) -> tuple[ir.Model, dict[str, Array]]:
    inputs: dict[str, Array | None] = {"x": x, "roi": None if roi is None else np.array(roi, np.float32)}
    inputs["scales"] = None if scales is None else np.array(scales, np.float32)
    if sizes is not None:
        inputs["sizes"] = np.array(sizes, np.int64)
    return one("Resize", inputs, constants=LATE[1:], opset=a.pop("opset", 19), **a)


class TestNearest:
    @pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
    def test_rounding(self, device: Device, rounding: str) -> None:
        m, feeds = resize(floats(1, 2, 4, 6), scales=[1, 1, 0.5, 1.5], mode="nearest", nearest_mode=rounding)
        check(gather_resize, m, feeds, device)
        assert operators(m) == ["Gather", "Gather"]

    def test_only_the_axes_that_change(self, device: Device) -> None:
        m, feeds = resize(floats(1, 2, 4, 6), sizes=[9], axes=[-1], mode="nearest")
        check(gather_resize, m, feeds, device)
        assert operators(m) == ["Gather"]

    def test_unchanged_axes(self, device: Device) -> None:
        m, feeds = resize(floats(1, 2, 4, 6), sizes=[1, 2, 4, 6], mode="nearest")
        check(gather_resize, m, feeds, device)
        assert operators(m) == ["Identity"]

    @pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
    def test_aspect_ratio(self, device: Device, policy: str) -> None:
        m, feeds = resize(
            floats(1, 1, 4, 6), sizes=[7, 8], axes=[2, 3], keep_aspect_ratio_policy=policy, mode="nearest"
        )
        check(gather_resize, m, feeds, device)

    def test_extrapolation(self, device: Device) -> None:
        roi = [0, 0, -0.4, 0.6, 1, 1, 0.6, 1.7]
        settings_ = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 10.0}
        m, feeds = resize(floats(1, 1, 4, 6), sizes=[1, 1, 3, 5], roi=roi, mode="nearest", **settings_)
        check(gather_resize, m, feeds, device)
        assert operators(m) == ["Gather", "Gather", "Where"]

    @pytest.mark.parametrize("dtype", [np.uint8, np.int32])
    def test_integers(self, device: Device, dtype: type) -> None:
        m, feeds = resize((floats(1, 1, 4, 6) * 30).astype(dtype), sizes=[1, 1, 9, 5], mode="nearest")
        check(gather_resize, m, feeds, device, atol=0)

    def test_after_a_transpose_that_stock_computes_wrongly(self, device: Device) -> None:
        m = model(
            "(float[1,4,6,2] x) => (float[1,2,8,12] y) { t = Transpose <perm=[0,3,1,2]> (x)  y = Resize (t, , s) }",
            s=np.array([1, 1, 2, 2], np.float32),
        )
        expected = run(ir.to_proto(m))["y"]
        gather_resize.run(m, Context())
        assert operators(m) == ["Transpose", "Gather", "Gather"]
        np.testing.assert_array_equal(device.run(ir.to_proto(m))[0], expected)


class TestInterpolation:
    @pytest.mark.parametrize("mode", ["linear", "cubic"])
    @pytest.mark.parametrize("antialias", [0, 1])
    def test_modes(self, device: Device, mode: str, antialias: int) -> None:
        m, feeds = resize(floats(1, 2, 7, 5), scales=[1, 1, 0.6, 1.7], mode=mode, antialias=antialias)
        check(matmul_resize, m, feeds, device)
        assert operators(m) == ["MatMul", "MatMul"]

    def test_linear_between_two_elements(self, device: Device) -> None:
        m, feeds = resize(floats(1, 2, 7, 5), scales=[1, 1, 0.6, 1.7], mode="linear")
        check(lerp_resize, m, feeds, device)
        assert operators(m) == ["Gather", "Gather", "Mul", "Mul", "Add"] * 2

    def test_cubic_coefficient_and_excluded_outside(self, device: Device) -> None:
        m, feeds = resize(floats(1, 2, 4, 5), sizes=[1, 2, 9, 3], mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1)
        check(matmul_resize, m, feeds, device)

    @pytest.mark.parametrize("step", _STEPS)
    def test_axes_that_are_not_the_last(self, device: Device, step: NodeRewrite) -> None:
        m, feeds = resize(floats(1, 4, 5, 3), scales=[1, 2, 0.8, 1], mode="linear")
        check(step, m, feeds, device)

    @pytest.mark.parametrize("step", _STEPS)
    def test_three_axes(self, device: Device, step: NodeRewrite) -> None:
        m, feeds = resize(floats(1, 1, 3, 4, 5), scales=[1, 1, 2, 1.5, 0.8], mode="linear")
        check(step, m, feeds, device)

    def test_float16_is_computed_in_float32(self, device: Device) -> None:
        m, feeds = resize(floats(1, 1, 4, 4).astype(np.float16), sizes=[1, 1, 8, 8], mode="linear")
        check(matmul_resize, m, feeds, device, rtol=2e-3)  # MIGraphX takes some casts away: a step of float16
        assert operators(m) == ["Cast", "MatMul", "MatMul", "Cast"]

    @pytest.mark.parametrize("step", _STEPS)
    def test_integers_are_truncated(self, device: Device, step: NodeRewrite) -> None:
        m, feeds = resize((floats(1, 1, 4, 4) * 90).astype(np.int32), sizes=[1, 1, 8, 8], mode="linear")
        check(step, m, feeds, device, atol=0)

    def test_antialias_of_bytes_is_rounded_after_each_axis(self, device: Device) -> None:
        x = np.random.default_rng(1).integers(0, 256, (1, 1, 9, 9)).astype(np.uint8)
        m, feeds = resize(x, sizes=[1, 1, 4, 5], mode="linear", antialias=1)
        check(matmul_resize, m, feeds, device, atol=0)

    @pytest.mark.parametrize("opset", [7, 9])
    def test_upsample(self, device: Device, opset: int) -> None:
        scales = np.array([1, 1, 2, 1.5], np.float32)
        for mode, step in (("nearest", gather_resize), ("linear", lerp_resize), ("linear", matmul_resize)):
            if opset == 7:
                m, feeds = one("Upsample", {"x": floats(1, 2, 3, 4)}, opset=7, mode=mode, scales=scales.tolist())
            else:
                inputs: dict[str, Array | None] = {"x": floats(1, 2, 3, 4), "scales": scales}
                m, feeds = one("Upsample", inputs, opset=9, constants=("scales",), mode=mode)
            check(step, m, feeds, device)

    @pytest.mark.parametrize("scale", [0.6, 1.5])
    def test_opset_10(self, device: Device, scale: float) -> None:
        scales = np.array([1, 1, scale, 2], np.float32)
        for mode, step in (("nearest", gather_resize), ("linear", lerp_resize), ("linear", matmul_resize)):
            m, feeds = one("Resize", {"x": floats(1, 1, 5, 3), "s": scales}, opset=10, constants=("s",), mode=mode)
            check(step, m, feeds, device)


class TestSkips:
    @pytest.mark.parametrize("step", [gather_resize, matmul_resize], ids=lambda step: step.name)
    def test_sizes_that_are_not_constant(self, step: NodeRewrite) -> None:
        mode = "nearest" if step is gather_resize else "linear"
        inputs: dict[str, Array | None] = {"x": floats(1, 1, 2, 2), "r": None, "s": None, "z": np.array([1, 1, 4, 4])}
        m, _ = one("Resize", inputs, mode=mode)
        assert skipped(step, m) == ["sizes is not constant: freeze it with --freeze z=VALUE"]

    def test_open_dimensions(self) -> None:
        m = model(
            "(float[N,1,2,2] x) => (float[N,1,4,4] y) { y = Resize (x, , s) }", s=np.array([1, 1, 2, 2], np.float32)
        )
        assert skipped(gather_resize, m) == [UNKNOWN_SHAPE]

    def test_antialias_of_int8(self) -> None:
        m, _ = resize(np.ones((1, 1, 4, 4), np.int8), sizes=[1, 1, 2, 2], mode="linear", antialias=1)
        assert "antialias of int8" in skipped(matmul_resize, m)[0]

    def test_empty_output(self) -> None:
        m, _ = resize(floats(1, 1, 1, 4), scales=[1, 1, 0.5, 1], mode="linear")
        assert skipped(matmul_resize, m) == ["the output is empty"]

    def test_the_other_mode(self) -> None:
        m, _ = resize(floats(1, 1, 2, 2), sizes=[1, 1, 4, 4], mode="linear")
        assert skipped(gather_resize, m) == []

    @pytest.mark.parametrize("a", [{"mode": "cubic"}, {"mode": "linear", "antialias": 1}])
    def test_more_than_two_elements(self, a: dict[str, Any]) -> None:
        m, _ = resize(floats(1, 1, 2, 2), sizes=[1, 1, 4, 4], **a)
        assert skipped(lerp_resize, m) == []


@st.composite
def resizes(draw: st.DrawFn) -> tuple[ir.Model, dict[str, Array]]:
    """Resize of two axes of an image, in all that ONNX Runtime does in floats."""
    opset = draw(st.sampled_from([11, 13, 18, 19]))
    mode = draw(st.sampled_from(["nearest", "linear", "cubic"]))
    frames = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize"]
    frames += ["half_pixel_symmetric"] * (opset >= 19) + ["tf_half_pixel_for_nn"] * (opset < 13)
    frame = draw(st.sampled_from(frames))
    a: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": frame}
    if mode == "nearest":
        a["nearest_mode"] = draw(st.sampled_from(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]))
    antialias = mode != "nearest" and opset >= 18 and draw(st.booleans())
    if antialias:
        a["antialias"] = 1
    if mode == "cubic" or antialias:
        a["exclude_outside"] = draw(st.integers(0, 1))
    shape = [draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 6)), draw(st.integers(1, 6))]
    whole = opset < 18 or draw(st.booleans())
    if not whole:
        a["axes"] = [2, 3]
    lead = [1, 1] if whole else []
    empty: list[float] | None = [] if opset < 13 else None
    options: dict[str, Any] = {"roi": empty, "scales": empty}
    if draw(st.booleans()):
        sizes = [draw(st.integers(1, 9)) for _ in range(2)]
        options["sizes"] = [*shape[:2], *sizes] if whole else sizes
        if not whole and draw(st.booleans()):
            a["keep_aspect_ratio_policy"] = draw(st.sampled_from(["not_larger", "not_smaller"]))
    else:
        options["scales"] = [*lead, *(draw(st.sampled_from([0.5, 0.6, 0.8, 1, 1.5, 2, 2.3, 3])) for _ in range(2))]
    if frame == "tf_crop_and_resize":
        a["extrapolation_value"] = draw(st.sampled_from([0.0, 10.0]))
        starts = [draw(st.sampled_from([0, 0.2, -0.3])) for _ in range(2)]
        ends = [draw(st.sampled_from([1, 0.6, 1.3])) for _ in range(2)]
        options["roi"] = [*[0.0] * len(lead), *starts, *[1.0] * len(lead), *ends]
    return resize(floats(*shape), opset=opset, **options, **a)


@settings(max_examples=60, deadline=None)
@given(resizes())
def test_every_resize(device: Device, drawn: tuple[ir.Model, dict[str, Array]]) -> None:
    m, feeds = drawn
    assume(not refused(m, feeds))
    a = m.graph[0].attributes
    step = gather_resize if a.get_string("mode") == "nearest" else matmul_resize
    if run(ir.to_proto(m), feeds)["y0"].size == 0:
        assert skipped(step, m) == ["the output is empty"]
        return
    plain = not any(a.get_int(name, 0) for name in ("antialias", "exclude_outside"))
    if a.get_string("mode") == "linear" and plain:
        check(lerp_resize, m.clone(), feeds, device, atol=1e-4)
    check(step, m, feeds, device, atol=1e-4)
