"""8-bit products that ONNX Runtime saturates on some processors: the same operators, without an int8 operand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper, parser

from passes.evaluation import saturation
from passes.evaluation.saturation import avoid_saturation, without_saturation

Array = np.ndarray[Any, np.dtype[Any]]
RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def on_a_processor_that_saturates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saturation, "saturates", lambda: True)


def compute(model: bytes, inputs: dict[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    found: list[Array] = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(None, inputs)
    return found


def ints(*shape: int, dtype: Any = np.int8, most: int = 10) -> Array:
    least = -most if np.dtype(dtype).kind == "i" else 0
    return RANDOM.integers(least, most, shape).astype(dtype)


def floats(*shape: int) -> Array:
    return RANDOM.uniform(0.01, 0.1, shape).astype(np.float32)


SCALE, ZERO, SIGNED_ZERO = np.array(0.02, np.float32), np.array(3, np.uint8), np.array(-2, np.int8)
LEFT = {"a": ints(3, 8, dtype=np.uint8)}
IMAGE = {"x": ints(1, 2, 5, 5, dtype=np.uint8)}
SCALED = {"as": SCALE, "az": ZERO}
LSTM = {"x": floats(3, 1, 4), "w": ints(1, 4, 8), "r": ints(1, 2, 8), "b": floats(1, 16)}
LSTM |= {"ws": floats(1), "wz": ints(1), "rs": floats(1), "rz": ints(1)}
CASES: dict[str, tuple[str, dict[str, Array], str, dict[str, Any]]] = {
    "MatMulInteger": ("", LEFT | {"b": ints(8, 4)}, "a b", {}),
    "MatMulInteger with zero points": (
        "",
        LEFT | {"b": ints(8, 4), "az": ZERO, "bz": ints(4)},
        "a b az bz",
        {},
    ),
    "ConvInteger": ("", IMAGE | {"w": ints(3, 2, 3, 3)}, "x w", {}),
    "QLinearMatMul": (
        "",
        LEFT | SCALED | {"b": ints(8, 4), "bs": floats(4), "bz": ints(4), "ys": SCALE, "yz": ZERO},
        "a as az b bs bz ys yz",
        {},
    ),
    "QLinearConv": (
        "",
        IMAGE | SCALED | {"w": ints(3, 2, 3, 3), "ws": SCALE, "wz": SIGNED_ZERO, "ys": SCALE, "yz": ZERO},
        "x as az w ws wz ys yz",
        {},
    ),
    "QGemm": (
        "com.microsoft",
        LEFT | SCALED | {"b": ints(8, 4), "bs": SCALE, "bz": SIGNED_ZERO},
        "a as az b bs bz",
        {},
    ),
    "MatMulIntegerToFloat": (
        "com.microsoft",
        LEFT | SCALED | {"b": ints(8, 4), "bs": SCALE, "bz": SIGNED_ZERO},
        "a b as bs az bz",
        {},
    ),
    "DynamicQuantizeMatMul": ("com.microsoft", {"x": floats(3, 8), "b": ints(8, 4), "bs": SCALE}, "x b bs", {}),
    "QAttention": (
        "com.microsoft",
        {"x": ints(1, 3, 4, dtype=np.uint8), "w": ints(4, 12), "c": floats(12), "as": SCALE, "bs": SCALE, "az": ZERO},
        "x w c as bs _ az",
        {"num_heads": 2},
    ),
    "DynamicQuantizeLSTM": ("com.microsoft", LSTM, "x w r b _ _ _ _ ws wz rs rz", {"hidden_size": 2}),
}


def build(case: str, constants: bool) -> tuple[onnx.ModelProto, dict[str, Array]]:
    domain, values, order, attributes = CASES[case]
    names = ["" if name == "_" else name for name in order.split()]
    node = helper.make_node(case.split()[0], names, ["y"], domain=domain, **attributes)
    held = {name: each for name, each in values.items() if constants and each.dtype == np.int8}
    given = {name: each for name, each in values.items() if name not in held}
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for name, each in given.items()
    ]
    weights = [numpy_helper.from_array(each, name) for name, each in held.items()]
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name="y")], weights)
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, ir_version=9, opset_imports=imports), given


@pytest.mark.parametrize("constants", [False, True], ids=["inputs", "constants"])
@pytest.mark.parametrize("case", CASES)
def test_the_same_numbers_without_int8(case: str, constants: bool) -> None:
    """Of small numbers, which do not saturate."""
    model, inputs = build(case, constants)
    before = model.SerializeToString()
    after = without_saturation(before)
    changed = ir.from_proto(onnx.ModelProto.FromString(after))
    (product,) = [node for node in changed.graph if node.op_type == case.split()[0]]
    assert after != before
    assert not [value for value in product.inputs if value is not None and value.dtype == ir.DataType.INT8]
    for one, other in zip(compute(before, inputs), compute(after, inputs), strict=True):
        np.testing.assert_array_equal(one, other)


def test_large_numbers_are_added_up() -> None:
    a, b = RANDOM.integers(200, 256, (3, 64)).astype(np.uint8), RANDOM.integers(100, 128, (64, 4)).astype(np.int8)
    text = '<ir_version: 9, opset_import: ["": 20]> g (uint8[3,64] a, int8[64,4] b) => (int32[3,4] y) {'
    model = parser.parse_model(f"{text} y = MatMulInteger(a, b) }}").SerializeToString()
    (found,) = compute(without_saturation(model), {"a": a, "b": b})
    np.testing.assert_array_equal(found, a.astype(np.int32) @ b.astype(np.int32))


def test_in_a_branch_and_of_shared_operands() -> None:
    text = """<ir_version: 9, opset_import: ["": 20]> g (bool c, uint8[3,8] a, int8[8,4] b) => (int32[3,4] y) {
        p = MatMulInteger(a, b)
        q = MatMulInteger(a, b)
        r = If(c) <then_branch = t () => (int32[3,4] s) { s = MatMulInteger(a, b) },
                   else_branch = e () => (int32[3,4] u) { u = Add(p, q) }>
        y = Add(p, r)
    }"""
    proto = parser.parse_model(text)
    model = ir.from_proto(proto)
    avoid_saturation(model)
    assert [node.op_type for node in model.graph].count("Cast") == 2
    inputs = {"c": np.array(True), "a": ints(3, 8, dtype=np.uint8), "b": ints(8, 4)}
    for one, other in zip(
        compute(proto.SerializeToString(), inputs), compute(ir.to_proto(model).SerializeToString(), inputs), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "text",
    [
        "(int8[3,8] a, int8[8,4] b) => (int32[3,4] y) { y = MatMulInteger(a, b) }",
        "(uint8[3,8] a, uint8[8,4] b) => (int32[3,4] y) { y = MatMulInteger(a, b) }",
        "(float[3,8] a, float[8,4] b) => (float[3,4] y) { y = MatMul(a, b) }",
    ],
)
def test_others_are_left_alone(text: str) -> None:
    model = ir.from_proto(parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> g {text}'))
    avoid_saturation(model)
    assert len(model.graph) == 1


def test_processors_without_the_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saturation, "saturates", lambda: False)
    model, _ = build("MatMulInteger", constants=True)
    assert without_saturation(model.SerializeToString()) == model.SerializeToString()
