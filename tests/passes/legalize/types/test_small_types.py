"""carry-small-types: all numbers of each small dtype, chains of operators, and nodes that are unchanged."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import NodeProto
from onnx.helper import make_node

from passes.legalize.types.small_types import carry_small_types
from tests.passes.device import Device
from tests.passes.dtypes import T, chain, on_onnx, on_ort, rewritten, same, why_not
from tests.passes.harness import Array, operators

FLOATS = {
    "FLOAT8E4M3FN": "float8_e4m3fn",
    "FLOAT8E4M3FNUZ": "float8_e4m3fnuz",
    "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E5M2FNUZ": "float8_e5m2fnuz",
    "FLOAT4E2M1": "float4_e2m1fn",
}
INTEGERS = {"INT4": "int4", "UINT4": "uint4", "INT2": "int2", "UINT2": "uint2"}
SMALL = FLOATS | INTEGERS


def around(name: str) -> Array:
    """All numbers of a small float, the midpoints, their neighbours, and numbers out of range."""
    grid = np.unique(np.arange(256, dtype=np.uint8).view(name).astype(np.float32))
    grid = grid[np.isfinite(grid)]
    halves = (grid[1:] + grid[:-1]) / 2
    last = float(ml_dtypes.finfo(name).max)
    beyond = np.array([last * 1.01, last * 1.04, last * 1.0625, last * 1.1, 1e6, 3e38, np.inf, 0.0, 1e-30], np.float32)
    up, down = np.float32(np.inf), np.float32(-np.inf)
    parts = [grid, halves, np.nextafter(halves, up), np.nextafter(halves, down), beyond, -beyond]
    return np.concatenate(parts).astype(np.float32)


def expected(x: Array, name: str, saturate: bool = True) -> Array:
    """The standard's tables of Cast, computed by ml_dtypes."""
    x = x.astype(np.float32)
    if saturate:
        limit = float(ml_dtypes.finfo(name).max)
        x = np.clip(x, -limit, limit)
    return x.astype(name).astype(np.float32)


def casts(small: str, *between: NodeProto, **attributes: Any) -> list[NodeProto]:
    """i0 cast to a small dtype (q), the nodes of ``between`` up to r, and r cast to float."""
    there = make_node("Cast", ["i0"], ["q"], to=getattr(T, small), **attributes)
    return [there, *between, make_node("Cast", ["r" if between else "q"], ["y"], to=T.FLOAT)]


class TestCasts:
    @pytest.mark.parametrize("saturate", [1, 0])
    @pytest.mark.parametrize("small", FLOATS)
    def test_floats(self, small: str, saturate: int, device: Device) -> None:
        x = around(FLOATS[small])
        # what NaN and infinity are in float4 the standard does not say
        x = x[np.abs(x) < 1e30] if small == "FLOAT4E2M1" else np.append(x, np.float32(np.nan))
        m, inputs = chain(casts(small, saturate=saturate), {"i0": x}, {"y": T.FLOAT}, opset=23)
        wanted = [expected(x, FLOATS[small], bool(saturate))]
        if small != "FLOAT4E2M1" and saturate:  # else ONNX Runtime has NaN for 1.1 times the largest of float8e5m2
            same(on_ort(ir.to_proto(m), inputs), wanted)
        proto = rewritten(carry_small_types, m)
        assert not {value.dtype for node in m.graph for value in node.outputs} & {ir.DataType[small]}
        same(device.run(proto, inputs), wanted)
        same(on_ort(proto, inputs), wanted)

    @pytest.mark.parametrize("small", INTEGERS)
    def test_integers(self, small: str, device: Device) -> None:
        for x in (np.arange(-70, 70, dtype=np.int32), np.arange(-70, 70, dtype=np.float32) / 8):
            m, inputs = chain(casts(small), {"i0": x}, {"y": T.FLOAT}, opset=25)
            wanted = on_ort(ir.to_proto(m), inputs)
            proto = rewritten(carry_small_types, m)
            same(device.run(proto, inputs), wanted)
            same(on_ort(proto, inputs), wanted)

    def test_from_half_to_half(self, device: Device) -> None:
        with np.errstate(over="ignore"):
            x = around("float8_e5m2").astype(np.float16)
        nodes = casts("FLOAT8E5M2")
        nodes[-1] = make_node("Cast", ["q"], ["y"], to=T.FLOAT16)
        m, inputs = chain(nodes, {"i0": x}, {"y": T.FLOAT16}, opset=19)
        wanted = [expected(x, "float8_e5m2").astype(np.float16)]
        same(on_ort(ir.to_proto(m), inputs), wanted)
        same(device.run(rewritten(carry_small_types, m), inputs), wanted)

    def test_from_one_small_float_to_another(self, device: Device) -> None:
        x = around("float8_e4m3fn")
        between = make_node("Cast", ["q"], ["r"], to=T.FLOAT8E5M2)
        m, inputs = chain(casts("FLOAT8E4M3FN", between), {"i0": x}, {"y": T.FLOAT}, opset=19)
        wanted = [expected(expected(x, "float8_e4m3fn"), "float8_e5m2")]
        same(device.run(rewritten(carry_small_types, m), inputs), wanted)


class TestPowers:
    X = np.array([0, 1e-40, 2**-127, 2**-126, 0.3, 1, 1.2, 1.5, 1.7, 2, 5.9, 6, 2e38, 3e38, np.inf, np.nan], np.float32)

    @pytest.mark.parametrize("saturate", [1, 0])
    @pytest.mark.parametrize("mode", ["up", "down", "nearest"])
    def test_e8m0(self, mode: str, saturate: int, device: Device) -> None:
        nodes = casts("FLOAT8E8M0", round_mode=mode, saturate=saturate)
        m, inputs = chain(nodes, {"i0": self.X}, {"y": T.FLOAT}, opset=24)
        wide = self.X.astype(np.float64)
        with np.errstate(all="ignore"):
            powers = np.exp2(np.floor(np.log2(np.clip(wide, 2.0**-127, 3.4e38))))
            up = {"up": wide > powers, "nearest": wide >= 1.5 * powers, "down": np.zeros(wide.shape, bool)}[mode]
        powers[up] *= 2
        if saturate:
            powers = np.clip(powers, 2.0**-127, 2.0**127)
        else:
            powers[(wide < 2.0**-127) | (powers > 2.0**127) | np.isinf(wide)] = np.nan
        powers[np.isnan(wide)] = np.nan
        wanted = [powers.astype(np.float32)]
        proto = rewritten(carry_small_types, m)
        same(on_ort(proto, inputs), wanted)
        same(device.run(proto, inputs), wanted)


class TestBetween:
    def test_operators_that_move_elements(self, device: Device) -> None:
        x = around("float8_e4m3fn")[:120].reshape(2, 3, 20)
        between = [
            make_node("Transpose", ["q"], ["a"], perm=[2, 0, 1]),
            make_node("Reshape", ["a", "shape"], ["b"]),
            make_node("Split", ["b"], ["c", "d"], axis=0, num_outputs=2),
            make_node("Concat", ["d", "c", "w"], ["e"], axis=0),
            make_node("Gather", ["e", "index"], ["r"], axis=0),
        ]
        w = np.arange(6, dtype=np.float32).reshape(2, 3).astype("float8_e4m3fn")
        arrays = {"i0": x, "shape": np.array([40, 3]), "w": w, "index": np.array([41, 0, 7])}
        m, inputs = chain(casts("FLOAT8E4M3FN", *between), arrays, {"y": T.FLOAT}, ["shape", "w", "index"], opset=19)
        wanted = on_onnx(ir.to_proto(m), inputs)
        proto = rewritten(carry_small_types, m)
        same(device.run(proto, inputs), wanted)
        assert operators(m).count("Cast") == 0

    def test_cast_like(self, device: Device) -> None:
        nodes = [make_node("CastLike", ["i0", "w"], ["q"], saturate=0), make_node("Cast", ["q"], ["y"], to=T.FLOAT)]
        x = around("float8_e5m2")
        arrays = {"i0": x, "w": np.zeros(1, "float8_e5m2")}
        m, inputs = chain(nodes, arrays, {"y": T.FLOAT}, ["w"], opset=19)
        wanted = [expected(x, "float8_e5m2", saturate=False)]
        same(device.run(rewritten(carry_small_types, m), inputs), wanted)

    def test_two_readers(self, device: Device) -> None:
        nodes = [*casts("FLOAT8E5M2"), make_node("Cast", ["q"], ["z"], to=T.DOUBLE)]
        x = around("float8_e5m2")
        m, inputs = chain(nodes, {"i0": x}, {"y": T.FLOAT, "z": T.DOUBLE}, opset=19)
        wanted = [expected(x, "float8_e5m2"), expected(x, "float8_e5m2").astype(np.float64)]
        same(device.run(rewritten(carry_small_types, m), inputs), wanted)

    def test_operators_that_compute_are_unchanged(self) -> None:
        nodes = casts("FLOAT8E4M3FN", make_node("local", ["q"], ["r"], domain="com.microsoft"))
        m, _ = chain(nodes, {"i0": np.ones(3, np.float32)}, {"y": T.FLOAT}, opset=19)
        next(iter(m.graph[1].outputs)).dtype = ir.DataType.FLOAT8E4M3FN
        assert why_not(carry_small_types, m) == ["r is computed by local in float8e4m3fn"]

    def test_inputs_of_small_dtypes_are_unchanged(self) -> None:
        m, _ = chain(casts("FLOAT")[1:], {"q": np.ones(3, "float8_e4m3fn")}, {"y": T.FLOAT}, opset=19)
        assert why_not(carry_small_types, m) == ["q is an input of float8e4m3fn"]

    def test_outputs_of_small_dtypes_are_unchanged(self) -> None:
        m, _ = chain(casts("FLOAT8E5M2")[:1], {"i0": np.ones(3, np.float32)}, {"q": T.FLOAT8E5M2}, opset=19)
        assert why_not(carry_small_types, m) == []


class TestQuantized:
    @pytest.mark.parametrize("small", [*FLOATS, "INT4", "UINT4"])
    @pytest.mark.parametrize("axis", [None, 0, 2, "blocked"])
    def test_weights(self, small: str, axis: int | str | None, device: Device) -> None:
        random = np.random.default_rng(3)
        w = (random.standard_normal((4, 3, 6)) * 3).astype(SMALL[small])
        shape = {None: (), 0: (4,), 2: (6,), "blocked": (4, 3, 2)}[axis]
        scale = np.asarray(random.uniform(0.1, 2, shape), np.float32)
        attributes = {"axis": 2, "block_size": 3} if axis == "blocked" else {} if axis is None else {"axis": axis}
        arrays: dict[str, Array] = {"w": w, "s": scale}
        if small in INTEGERS:
            arrays["z"] = np.asarray(random.integers(0, 5, shape)).astype(SMALL[small])
        nodes = [
            make_node("DequantizeLinear", list(arrays), ["d"], **attributes),
            make_node("MatMul", ["d", "x"], ["y"]),
        ]
        x = np.eye(6, dtype=np.float32)
        m, inputs = chain(nodes, arrays | {"x": x}, {"y": T.FLOAT}, arrays, opset=23)
        wanted = on_onnx(ir.to_proto(m), inputs)
        proto = rewritten(carry_small_types, m)
        same(device.run(proto, inputs), wanted, 1e-6)
        assert ("DequantizeLinear" in operators(m)) == (small in INTEGERS)  # int8 kernels live on it

    @pytest.mark.parametrize("small", [*FLOATS, "INT4", "UINT4", "INT2", "UINT2"])
    def test_pairs(self, small: str, device: Device) -> None:
        x = np.random.default_rng(5).standard_normal((4, 30)).astype(np.float32) * 20
        scale = np.array([0.5, 1, 0.01, 3], np.float32)
        zero = np.zeros(4, SMALL[small]) if small in FLOATS else np.array([1, 0, 1, 0], SMALL[small])
        nodes = [
            make_node("QuantizeLinear", ["i0", "s", "z"], ["q"], axis=0),
            make_node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=0),
        ]
        m, inputs = chain(nodes, {"i0": x, "s": scale, "z": zero}, {"y": T.FLOAT}, ["s", "z"], opset=25)
        wanted = on_onnx(ir.to_proto(m), inputs)
        proto = rewritten(carry_small_types, m)
        same(device.run(proto, inputs), wanted, 1e-6)

    def test_a_zero_point_of_float4(self, device: Device) -> None:
        x = np.linspace(-9, 9, 40, dtype=np.float32)
        arrays = {"i0": x, "s": np.array(1.5, np.float32), "z": np.array(0.5, "float4_e2m1fn")}
        nodes = [make_node("QuantizeLinear", ["i0", "s", "z"], ["q"]), make_node("Cast", ["q"], ["y"], to=T.FLOAT)]
        m, inputs = chain(nodes, arrays, {"y": T.FLOAT}, ["s", "z"], opset=23)
        wanted = on_onnx(ir.to_proto(m), inputs)
        same(device.run(rewritten(carry_small_types, m), inputs), wanted)

    @pytest.mark.runtime
    def test_scales_of_e8m0(self, device: Device) -> None:
        scale = np.array([[0.5, 4], [1, 0.125]], np.float32).astype(ml_dtypes.float8_e8m0fnu)
        w = (np.random.default_rng(0).standard_normal((2, 8)) * 3).astype("float4_e2m1fn")
        node = make_node("DequantizeLinear", ["w", "s"], ["d"], axis=1, block_size=4, output_dtype=T.FLOAT)
        nodes = [node, make_node("Add", ["d", "x"], ["y"])]
        m, inputs = chain(
            nodes, {"w": w, "s": scale, "x": np.zeros(8, np.float32)}, {"y": T.FLOAT}, ["w", "s"], opset=28
        )
        numbers = w.astype(np.float32) * np.repeat(scale.astype(np.float32), 4, 1)
        same(device.run(rewritten(carry_small_types, m), inputs), [numbers + 0.0], 1e-7)

    def test_a_constant_that_is_cast(self, device: Device) -> None:
        w = np.array([1.5, -6, 0.5, 4], "float4_e2m1fn")
        nodes = [make_node("Cast", ["w"], ["d"], to=T.FLOAT16), make_node("Mul", ["d", "x"], ["y"])]
        m, inputs = chain(nodes, {"w": w, "x": np.ones(4, np.float16)}, {"y": T.FLOAT16}, ["w"], opset=23)
        same(device.run(rewritten(carry_small_types, m), inputs), [w.astype(np.float16)])


@settings(max_examples=40, deadline=None)
@given(
    small=st.sampled_from(["FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"]),
    saturate=st.integers(0, 1),
    shape=st.sampled_from([(), (5,), (2, 3), (0,)]),
    power=st.integers(-30, 30),
    seed=st.integers(0, 9999),
)
def test_any_numbers(small: str, saturate: int, shape: tuple[int, ...], power: int, seed: int) -> None:
    x = np.asarray(np.random.default_rng(seed).standard_normal(shape) * 2.0**power, np.float32)
    m, inputs = chain(casts(small, saturate=saturate), {"i0": x}, {"y": T.FLOAT}, opset=19)
    same(on_ort(rewritten(carry_small_types, m), inputs), [expected(x, FLOATS[small], bool(saturate))])
