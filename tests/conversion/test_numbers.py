"""Tiny models that used to be converted without a word and computed wrongly, by storage or by dtype."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper

import onnx_bridge
from onnx_bridge.conversion.steps.compile import WIDENED
from onnx_bridge.core.errors import ParityError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.reference.reference import Reference
from passes.graphs.tensors import tensor_proto
from passes.rewriting.base import Proof

Array = np.ndarray[Any, np.dtype[Any]]
FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def network(
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, Array],
    outputs: Mapping[str, int],
    *weights: onnx.TensorProto,
    opset: int = 21,
) -> onnx.ModelProto:
    """A model, whose outputs have the dtypes given."""
    given = [helper.make_tensor_value_info(name, kind(each), each.shape) for name, each in inputs.items()]
    wanted = [helper.make_tensor_value_info(name, dtype, None) for name, dtype in outputs.items()]
    graph = helper.make_graph(nodes, "g", given, wanted, list(weights))
    return helper.make_model(graph, ir_version=10 if opset < 25 else 13, opset_imports=[helper.make_opsetid("", opset)])


def kind(array: Array) -> int:
    return int(ir.DataType.from_numpy(array.dtype))


def stored(name: str, array: Array, *, numbers: bool = False) -> onnx.TensorProto:
    """A tensor with its elements as bytes, or as numbers in ``int32_data``."""
    if numbers:
        tensor = onnx.TensorProto(name=name, dims=array.shape, data_type=kind(array))
        tensor.int32_data.extend(array.view(f"u{array.itemsize}").reshape(-1).tolist())
        return tensor
    return tensor_proto(ir.tensor(array), name)


def converted(
    model: onnx.ModelProto, inputs: Mapping[str, Array], folder: Path
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return what the model computes on MIGraphX, and what it should."""
    onnx.save(model, folder / "model.onnx")
    bundle = onnx_bridge.convert(folder / "model.onnx", folder / "bundle", target="ref")
    assert bundle.wholly_on_migraphx
    return dict(bundle(dict(inputs))), dict(Reference(model.SerializeToString()).run(dict(inputs)))  # type: ignore[arg-type]


@pytest.mark.parametrize("numbers", [False, True], ids=["bytes", "int32_data"])
@pytest.mark.parametrize("name", [*FLOAT8, "bfloat16"])
def test_weights_by_their_storage(runtime: Runtime, tmp_path: Path, name: str, numbers: bool) -> None:
    draw = np.random.default_rng(0)
    weights = (50 * draw.standard_normal((8, 16))).astype(np.dtype(getattr(ml_dtypes, name)))
    inputs = {"x": draw.standard_normal((4, 8)).astype(np.float32)}
    if name == "bfloat16":
        widen = helper.make_node("Cast", ["w"], ["wide"], to=T.FLOAT)
    else:
        widen = helper.make_node("DequantizeLinear", ["w", "s"], ["wide"])
    nodes = [widen, helper.make_node("MatMul", ["x", "wide"], ["y"])]
    given = [stored("w", weights, numbers=numbers), stored("s", np.array(0.5, np.float32))]
    actual, expected = converted(network(nodes, inputs, {"y": T.FLOAT}, *given), inputs, tmp_path)
    np.testing.assert_allclose(actual["y"], expected["y"], rtol=1e-5, atol=1e-4)


INTEGER_DTYPES = {T.INT4: "int4", T.UINT4: "uint4", T.INT2: "int2", T.UINT2: "uint2"}


@pytest.mark.parametrize("dtype", INTEGER_DTYPES, ids=INTEGER_DTYPES.values())
@pytest.mark.parametrize("blocks", ["tensor", "axis", "blocked"])
def test_weights_of_few_bits(runtime: Runtime, tmp_path: Path, dtype: int, blocks: str) -> None:
    draw = np.random.default_rng(1)
    element = ir.DataType(dtype)
    weights = draw.integers(int(element.min), int(element.max), (8, 16), endpoint=True).astype(element.numpy())
    shape = {"tensor": (), "axis": (16,), "blocked": (2, 16)}[blocks]
    attributes = {"tensor": {}, "axis": {"axis": 1}, "blocked": {"axis": 0, "block_size": 4}}[blocks]
    widen = helper.make_node("DequantizeLinear", ["w", "s"], ["wide"], **attributes)
    inputs = {"x": draw.standard_normal((4, 8)).astype(np.float32)}
    given = [stored("w", weights), stored("s", draw.uniform(0.1, 1, shape).astype(np.float32))]
    model = network([widen, helper.make_node("MatMul", ["x", "wide"], ["y"])], inputs, {"y": T.FLOAT}, *given, opset=25)
    actual, expected = converted(model, inputs, tmp_path)
    np.testing.assert_allclose(actual["y"], expected["y"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", FLOAT8)
@pytest.mark.parametrize("scale", [(), (16,), (2, 16)], ids=["tensor", "axis", "blocked"])
def test_activations_in_float8(runtime: Runtime, tmp_path: Path, name: str, scale: tuple[int, ...]) -> None:
    draw = np.random.default_rng(2)
    dtype = np.dtype(getattr(ml_dtypes, name))
    inputs = {"x": np.float32(3) * draw.standard_normal((8, 16)).astype(np.float32)}
    inputs["x"][0, :4] = 0, 1e6, -1e6, -0.0
    attributes = {0: {}, 1: {"axis": 1}, 2: {"axis": 0, "block_size": 4}}[len(scale)]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **attributes),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **attributes),
    ]
    given = [stored("s", draw.uniform(0.01, 0.1, scale).astype(np.float32)), stored("z", np.zeros(scale, dtype))]
    actual, expected = converted(network(nodes, inputs, {"y": T.FLOAT}, *given), inputs, tmp_path)
    np.testing.assert_array_equal(actual["y"], expected["y"])


@pytest.mark.parametrize(
    "to", [T.BFLOAT16, T.FLOAT16, *[kind(np.zeros(0, getattr(ml_dtypes, each))) for each in FLOAT8]]
)
def test_a_round_trip_through_a_narrow_float(runtime: Runtime, tmp_path: Path, to: int) -> None:
    draw = np.random.default_rng(3)
    x = (draw.standard_normal(200) * 2.0 ** draw.integers(-8, 8, 200)).astype(np.float32)
    x[:10] = 0.0, -0.0, np.inf, -np.inf, np.nan, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, 65520.0
    nodes = [helper.make_node("Cast", ["x"], ["n"], to=to), helper.make_node("Cast", ["n"], ["y"], to=T.FLOAT)]
    actual, expected = converted(network(nodes, {"x": x}, {"y": T.FLOAT}, opset=19), {"x": x}, tmp_path)
    np.testing.assert_array_equal(actual["y"], expected["y"])


def test_int8_weights_with_float16_scales_stay_on_migraphx(runtime: Runtime, tmp_path: Path) -> None:
    """An absolute tolerance took the rounding of a float16 Conv with results up to 20 for a defect."""
    draw = np.random.default_rng(3)
    weights = draw.standard_normal((8, 4, 3, 3)).astype(np.float32)
    scale = (np.abs(weights).max(axis=(1, 2, 3)) / 127).astype(np.float16)
    integers = np.round(weights / scale.astype(np.float32).reshape(-1, 1, 1, 1)).clip(-127, 127).astype(np.int8)
    inputs = {"x": draw.standard_normal((1, 4, 10, 10)).astype(np.float16)}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["wide"], axis=0),
        helper.make_node("Conv", ["x", "wide"], ["y"]),
    ]
    model = network(nodes, inputs, {"y": T.FLOAT16}, stored("w", integers), stored("s", scale))
    actual, expected = converted(model, inputs, tmp_path)
    one_unit = 2.0**-10 * np.abs(expected["y"].astype(np.float32)).max()
    np.testing.assert_allclose(actual["y"].astype(np.float32), expected["y"].astype(np.float32), rtol=0, atol=one_unit)


@pytest.mark.parametrize("to", [T.UINT8, T.UINT16, T.UINT32, T.UINT64])
def test_negative_floats_as_unsigned_integers_are_those_of_onnx_runtime(
    runtime: Runtime, tmp_path: Path, to: int
) -> None:
    inputs = {"x": np.array([-7.9, -1.0, -0.5, 0.5, 3.7, 200.0], np.float32)}
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=to)]
    actual, expected = converted(network(nodes, inputs, {"y": to}), inputs, tmp_path)
    np.testing.assert_array_equal(actual["y"], expected["y"])


def deep_half(*more: onnx.NodeProto) -> onnx.ModelProto:
    """120 products with a rotation in float16, of which ``ref`` truncates each, so that the last is 4 % too small."""
    rotation, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((8, 8)))
    nodes = [helper.make_node("Cast", ["x"], ["v0"], to=T.FLOAT16)]
    for index in range(120):
        nodes += [
            helper.make_node("MatMul", [f"v{index}", "w"], [f"m{index}"]),
            helper.make_node("LeakyRelu", [f"m{index}"], [f"v{index + 1}"], alpha=0.99),
        ]
    nodes.append(helper.make_node("Cast", ["v120"], ["y"], to=T.FLOAT))
    outputs = {"y": T.FLOAT, **{name: T.FLOAT16 for node in more[-1:] for name in node.output}}
    return network([*nodes, *more], {"x": DEEP_INPUT}, outputs, stored("w", rotation.astype(np.float16)))


DEEP_INPUT = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)


def test_a_deep_model_of_float16(runtime: Runtime, tmp_path: Path) -> None:
    """The cleaned model stays in float16."""
    actual, expected = converted(deep_half(), {"x": DEEP_INPUT}, tmp_path)
    assert np.abs(actual["y"] - expected["y"]).max() < 2e-3 * np.abs(expected["y"]).max()
    bundle = onnx_bridge.load(tmp_path / "bundle")
    assert WIDENED in bundle.manifest.notes
    assert bundle.manifest.program.widened
    assert onnx_bridge.check(bundle, fresh=True).passed
    kept = onnx.load(tmp_path / "bundle" / "model.onnx")
    assert T.FLOAT16 in {each.data_type for each in kept.graph.initializer}


@pytest.mark.parametrize(("budget", "level"), [(1e-9, Proof.NONE), (0.01, Proof.WITNESS)])
def test_a_model_of_float16_that_is_not_run_at_real_size(
    runtime: Runtime, tmp_path: Path, budget: float, level: Proof
) -> None:
    """Nothing shows whether truncation stays within the tolerance, not even a witness."""
    convolution = helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 2])
    random = np.random.default_rng(0)
    x, w = (random.standard_normal(shape).astype(np.float16) for shape in ((4, 3, 96, 96), (4, 3, 3, 3)))
    model = network([convolution], {"x": x}, {"y": T.FLOAT16}, stored("w", w))
    onnx.save(model, tmp_path / "model.onnx")
    bundle = onnx_bridge.convert(tmp_path / "model.onnx", tmp_path / "bundle", target="ref", prove_budget=budget)
    assert bundle.proof.level is level
    assert WIDENED in bundle.manifest.notes
    assert bundle.manifest.program.widened
    assert onnx_bridge.check(bundle).passed


def test_a_deep_model_of_float16_that_nobody_wants_compared(runtime: Runtime, tmp_path: Path) -> None:
    onnx.save(deep_half(), tmp_path / "model.onnx")
    bundle = onnx_bridge.convert(tmp_path / "model.onnx", tmp_path / "bundle", target="ref", prove="never")
    assert not bundle.manifest.program.widened
    assert not onnx_bridge.check(bundle).passed


def test_what_is_kept_of_a_model_is_not_taken_for_the_same_one_rounded(runtime: Runtime, tmp_path: Path) -> None:
    """The cleaned model is its own reference, whose run is kept; ONNX Runtime rounds nothing in it by itself."""
    converted(deep_half(), {"x": DEEP_INPUT}, tmp_path)
    bundle = onnx_bridge.load(tmp_path / "bundle")
    for fresh in (True, False):
        report = onnx_bridge.check(bundle, reference=bundle.model_path, fresh=fresh)
        (output,) = report.legs[0].comparisons[0].outputs
        assert output.passed
        assert output.max_abs


def test_a_deep_model_that_overflows_in_float16(runtime: Runtime, tmp_path: Path) -> None:
    """In float32 it would not, nor does it on ONNX Runtime, which computes in float32 from one Cast to the next."""
    scale = helper.make_node("Mul", ["v120", "k"], ["large"])
    square = helper.make_node("Mul", ["large", "large"], ["larger"])
    model = deep_half(scale, square, helper.make_node("Sqrt", ["larger"], ["z"]))
    model.graph.initializer.append(stored("k", np.array(1e4, np.float16)))
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ParityError):
        onnx_bridge.convert(tmp_path / "model.onnx", tmp_path / "bundle", target="ref")


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_a_resize_far_behind_a_transpose(runtime: Runtime, tmp_path: Path, mode: str) -> None:
    """MIGraphX before 2.16 reads its elements in memory order, which is that of the Transpose."""
    between = "".join(f" c{index + 1} = LeakyRelu<alpha = 0.99>(c{index})" for index in range(60))
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 17]> g (float[1,4,6,3] x) => (float[1,3,16,24] y)
            <float[4] s = {{1.0, 1.0, 2.0, 2.0}}> {{
            c0 = Transpose<perm = [0,3,1,2]>(x){between} a = Resize<mode = "{mode}">(c60, , s) b = Neg(a)
            y = Resize<mode = "{mode}">(b, , s) }}"""
    )
    got, wanted = converted(model, {"x": np.random.default_rng(0).normal(size=(1, 4, 6, 3)).astype("f")}, tmp_path)
    np.testing.assert_allclose(got["y"], wanted["y"], rtol=1e-5, atol=1e-6)
