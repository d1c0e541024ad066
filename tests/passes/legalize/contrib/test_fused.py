"""ONNX Runtime's fused operators: products, activations, normalizations, and low-bit weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from passes.legalize.contrib.fused import (
    decompose_bias_softmax,
    decompose_contrib_gelu,
    decompose_fused_activation,
    decompose_fused_mat_mul,
)
from passes.legalize.contrib.normalization import (
    decompose_embed_layer_normalization,
    decompose_q_embed_layer_normalization,
    decompose_simplified_layer_normalization,
    decompose_skip_normalization,
)
from passes.legalize.contrib.quantized_weights import decompose_mat_mul_n_bits, unpack
from passes.rewriting.base import Context
from tests.passes.device import Device
from tests.passes.harness import Array, apply, operators, run
from tests.passes.legalize.contrib_nodes import holds, node_model, random, skips
from tests.passes.legalize.one_node import case, declare, legalized

B, S, D = 2, 3, 8
X = {"x": random(B, S, D)}
OPSETS = [13, 17, 20]


class TestFusedMatMul:
    @pytest.mark.parametrize(
        ("a", "b", "attributes"),
        [
            ((2, 3, 4), (2, 4, 5), {"alpha": 0.5}),
            ((2, 3, 4), (2, 3, 5), {"transA": 1}),
            ((2, 3, 4), (5, 4), {"transB": 1}),
            ((3, 2, 4), (2, 4, 5), {"transBatchA": 1}),
            ((4, 2, 6, 3), (5, 2, 6, 4), {"transBatchA": 1, "transA": 1, "transBatchB": 1, "transB": 1}),
            ((4,), (4, 5), {"transA": 1}),
        ],
    )
    def test_transposes(
        self, a: tuple[int, ...], b: tuple[int, ...], attributes: dict[str, Any], device: Device
    ) -> None:
        made = holds(
            decompose_fused_mat_mul,
            "FusedMatMul",
            {"a": random(*a), "b": random(*b)},
            ("y",),
            attributes,
            device=device,
        )
        assert made.count("MatMul") == 1
        assert ("Mul" in made) == ("alpha" in attributes)

    def test_the_old_name(self) -> None:
        inputs = {"a": random(2, 3, 4), "b": random(2, 5, 4)}
        made = holds(decompose_fused_mat_mul, "TransposeMatMul", inputs, attributes={"transB": 1, "alpha": 2.0})
        assert made == ["Transpose", "MatMul", "Mul"]

    def test_an_unknown_rank(self) -> None:
        model = node_model("FusedMatMul", {"a": random(2, 3), "b": random(3, 2)})
        model.graph.input[0].type.tensor_type.ClearField("shape")
        result = decompose_fused_mat_mul.run(ir.from_proto(model), Context())
        assert not result.rewrites
        assert "shape" in result.skips[0].reason


class TestFusedActivation:
    @pytest.mark.parametrize(
        ("activation", "parameters"),
        [
            ("Relu", {}),
            ("Tanh", {}),
            ("Sigmoid", {}),
            ("LeakyRelu", {"alpha": 0.2}),
            ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
            ("Elu", {"alpha": 0.3}),
            ("ThresholdedRelu", {"alpha": 0.3}),
            ("Softplus", {}),
            ("Softsign", {}),
        ],
    )
    def test_gemm(self, activation: str, parameters: dict[str, float], device: Device) -> None:
        own = {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}
        attributes = own | {"activation": activation} | {f"activation_{name}": x for name, x in parameters.items()}
        inputs = {"a": random(4, 3), "b": random(5, 4), "c": random(5)}
        made = holds(decompose_fused_activation, "FusedGemm", inputs, attributes=attributes, device=device)
        assert made == ["Gemm", activation]

    def test_an_unknown_activation(self) -> None:
        inputs = {"a": random(4, 3), "b": random(3, 4)}
        attributes = {
            "activation": "ParametricSoftplus",
            "activation_alpha": 1.0,
            "activation_beta": 1.0,
        }
        (reason,) = skips(decompose_fused_activation, "FusedGemm", inputs, attributes)
        assert reason == "the activation ParametricSoftplus is unknown"

    @pytest.mark.parametrize(
        ("activation", "parameters"),
        [("Relu", []), ("Clip", [-0.3, 0.4]), ("LeakyRelu", [0.2]), ("HardSigmoid", [0.3, 0.4])],
    )
    @pytest.mark.parametrize("summed", [False, True])
    def test_conv(self, activation: str, parameters: list[float], summed: bool, device: Device) -> None:
        attributes: dict[str, Any] = {"activation": activation, "pads": [1, 1, 1, 1], "strides": [2, 2]}
        if parameters:
            attributes["activation_params"] = parameters
        inputs = {"x": random(1, 3, 5, 5), "w": random(4, 3, 3, 3), "b": None if summed else random(4)}
        inputs |= {"z": random(1, 4, 3, 3)} if summed else {}
        made = holds(decompose_fused_activation, "FusedConv", inputs, attributes=attributes, device=device)
        assert made == ["Conv", *(["Add"] if summed else []), activation]


class TestGelu:
    @pytest.mark.parametrize("opset", OPSETS)
    @pytest.mark.parametrize(
        ("op_type", "biased"),
        [("Gelu", False), ("BiasGelu", True), ("FastGelu", False), ("FastGelu", True), ("QuickGelu", False)],
    )
    def test_forms(self, op_type: str, biased: bool, opset: int, device: Device) -> None:
        inputs = X | ({"bias": random(D)} if biased else {})
        made = holds(decompose_contrib_gelu, op_type, inputs, opset=opset, device=device)
        assert ("Gelu" in made) == (opset >= 20 and op_type != "QuickGelu")

    def test_the_factor_of_quick_gelu(self) -> None:
        holds(decompose_contrib_gelu, "QuickGelu", X, attributes={"alpha": 1.1})

    @pytest.mark.parametrize(
        ("op_type", "shapes", "result"),
        [
            ("BiasSplitGelu", [(2, 3, 8), (8,)], (2, 3, 4)),
            ("BiasAdd", [(2, 3, 8), (8,), (2, 3, 8)], (2, 3, 8)),
            ("GemmFastGelu", [(2, 3, 8), (8, 5), (5,)], (2, 3, 5)),
        ],
    )
    def test_operators_that_onnx_runtime_has_on_gpus_only(
        self, op_type: str, shapes: list[tuple[int, ...]], result: tuple[int, ...]
    ) -> None:
        names = [f"i{index}" for index in range(len(shapes))]
        text = ", ".join(f"float{list(shape)} {name}" for shape, name in zip(shapes, names, strict=True))
        proto = onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1]>'
            f"g ({text}) => (float{list(result)} y) {{ y = com.microsoft.{op_type}({', '.join(names)}) }}"
        )
        model = ir.from_proto(proto)
        assert decompose_contrib_gelu.run(model, Context()).rewrites
        arrays = [random(*shape) for shape in shapes]
        actual = run(ir.to_proto(model), dict(zip(names, arrays, strict=True)))["y"]
        np.testing.assert_allclose(actual, EXPECTED[op_type](*arrays), 1e-5, 1e-5)


def _erf_gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))), np.float32)


def _tanh_gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))), np.float32)


EXPECTED = {
    "BiasSplitGelu": lambda x, b: (x + b)[..., :4] * _erf_gelu((x + b)[..., 4:]),
    "BiasAdd": lambda x, b, skip: x + b + skip,
    "GemmFastGelu": lambda x, w, b: _tanh_gelu(x @ w + b),
}


class TestNormalization:
    WEIGHTS = {"scale": random(D), "shift": random(D, seed=1)}

    @pytest.mark.parametrize("opset", OPSETS)
    @pytest.mark.parametrize("shape", [(B, S, D), (1, S, D), (S, D)], ids=str)
    @pytest.mark.parametrize("biased", [False, True])
    def test_skip(self, shape: tuple[int, ...], opset: int, biased: bool, device: Device) -> None:
        inputs = {**X, "skip": random(*shape, seed=2), **self.WEIGHTS, "bias": random(D, seed=3) if biased else None}
        if biased:
            inputs["shift"] = None
        outputs = ("y", "", "", "total") if biased else ("y",)
        made = holds(
            decompose_skip_normalization,
            "SkipLayerNormalization",
            inputs,
            outputs,
            {"epsilon": 1e-3},
            opset=opset,
            device=device,
        )
        assert ("LayerNormalization" in made) == (opset >= 17)

    @pytest.mark.parametrize("biased", [False, True])
    def test_skip_simplified(self, biased: bool, device: Device) -> None:
        inputs = {**X, "skip": random(B, S, D, seed=2), "scale": random(D), "bias": random(D) if biased else None}
        outputs = ("y", "", "", "total") if biased else ("y",)
        rule = decompose_skip_normalization
        holds(rule, "SkipSimplifiedLayerNormalization", inputs, outputs, device=device)

    def test_the_mean_output(self) -> None:
        inputs = {**X, "skip": random(B, S, D), **self.WEIGHTS}
        model = ir.from_proto(node_model("SkipLayerNormalization", inputs))
        model.graph[0].resize_outputs(2)
        model.graph[0].outputs[1].name = "mean"
        model.graph.outputs.append(model.graph[0].outputs[1])
        result = decompose_skip_normalization.run(model, Context())
        assert "training" in result.skips[0].reason

    def test_half_floats_are_added_in_float32(self) -> None:
        inputs = {
            name: array.astype(np.float16)
            for name, array in {**X, "skip": random(B, S, D, seed=2), **self.WEIGHTS}.items()
        }
        made = holds(decompose_skip_normalization, "SkipLayerNormalization", inputs, tolerance=2e-3)
        assert made.count("Cast") == 5

    def test_the_dtype_is_that_of_a_weight(self) -> None:
        inputs = {**X, "skip": random(B, S, D), **self.WEIGHTS}
        model = ir.from_proto(node_model("SkipLayerNormalization", inputs, constants=("scale",)))
        for value in model.graph.inputs:
            value.type = None
        assert decompose_skip_normalization.run(model, Context()).rewrites

    @pytest.mark.parametrize(("axis", "shape"), [(-1, (D,)), (1, (S, D))])
    def test_simplified(self, axis: int, shape: tuple[int, ...], device: Device) -> None:
        holds(
            decompose_simplified_layer_normalization,
            "SimplifiedLayerNormalization",
            {**X, "scale": random(*shape)},
            ("y", "inverse"),
            {"axis": axis, "epsilon": 1e-3},
            domain="",
            device=device,
        )

    @pytest.mark.parametrize("opset", OPSETS)
    @pytest.mark.parametrize("form", ["plain", "masked", "without segments"])
    def test_embed(self, form: str, opset: int, device: Device) -> None:
        generator = np.random.default_rng(0)
        segments = form != "without segments"
        inputs = {
            "ids": generator.integers(0, 10, (B, S)).astype(np.int32),
            "segments": generator.integers(0, 2, (B, S)).astype(np.int32) if segments else None,
            "words": random(10, D),
            "positions": random(7, D),
            "kinds": random(2, D) if segments else None,
            **self.WEIGHTS,
            "mask": np.array([[1, 1, 0], [1, 1, 1]], np.int32) if form == "masked" else None,
            "places": None if segments else np.array([[2, 1, 0]], np.int32),
        }
        holds(
            decompose_embed_layer_normalization,
            "EmbedLayerNormalization",
            inputs,
            ("y", "count", "total"),
            opset=opset,
            dtypes={"count": onnx.TensorProto.INT32},
            device=device,
        )


class TestQEmbedLayerNormalization:
    @pytest.mark.parametrize("dtype", [np.int8, np.uint8])
    @pytest.mark.parametrize("more", [False, True])
    def test_tables_of_8_bits(self, dtype: type, more: bool, device: Device) -> None:
        numbers = np.random.default_rng(0)
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        tables = {"words": (20, D), "positions": (5, D), "segments": (2, D), "gamma": (D,), "beta": (D,)}
        inputs: dict[str, Array | None] = {
            "ids": numbers.integers(0, 20, (B, S)).astype(np.int32),
            "kinds": numbers.integers(0, 2, (B, S)).astype(np.int32) if more else None,
            **{
                name: numbers.integers(low, high, shape, dtype) if more or name != "segments" else None
                for name, shape in tables.items()
            },
            "mask": np.array([[1, 1, 0], [1, 1, 1]], np.int32) if more else None,
        }
        for name in tables:
            left_out = inputs[name] is None
            inputs[f"{name}_scale"] = None if left_out else np.array(numbers.uniform(0.01, 0.1), np.float32)
        for name in tables:
            left_out = inputs[name] is None
            inputs[f"{name}_zero"] = None if left_out else np.asarray(numbers.integers(low, high, dtype=dtype))
        holds(
            decompose_q_embed_layer_normalization,
            "QEmbedLayerNormalization",
            inputs,
            ("y", "count"),
            dtypes={"count": onnx.TensorProto.INT32},
            device=device,
        )


class TestBiasSoftmax:
    """ONNX Runtime has it on GPUs only."""

    @pytest.mark.parametrize(("axis", "shape"), [(3, (2, 1, 1, 5)), (-1, (4, 5)), (2, (2, 1, 4, 5)), (1, (5,))])
    @pytest.mark.parametrize("opset", [11, 17])
    def test_over_several_axes(self, axis: int, shape: tuple[int, ...], opset: int, device: Device) -> None:
        x, bias = random(2, 3, 4, 5), random(*shape, seed=1)
        total = (x + bias).reshape(int(np.prod(x.shape[:axis])), -1)
        weights = np.exp(total - total.max(axis=1, keepdims=True))
        y = (weights / weights.sum(axis=1, keepdims=True)).reshape(x.shape)
        attributes = {"axis": axis, "is_inner_broadcast": int(len(shape) == 4)}
        source = case("BiasSoftmax", [x, bias], attributes, domain="com.microsoft", opset=opset)
        legalized(decompose_bias_softmax, declare(source, [y]), [y], device=device)


class TestMatMulNBits:
    @pytest.mark.parametrize("bits", [2, 4, 8])
    @pytest.mark.parametrize("columns", [32, 40])
    @pytest.mark.parametrize("zeros", ["middle", "packed", "float"])
    def test_unpacks(self, bits: int, columns: int, zeros: str, device: Device) -> None:
        if bits == 8 and zeros == "float":
            zeros = "packed"  # ONNX Runtime takes no others there
        inputs, attributes = self.product(bits, columns, zeros)
        made = holds(
            decompose_mat_mul_n_bits,
            "MatMulNBits",
            inputs,
            attributes=attributes,
            constants=("w", "zeros"),
            device=device,
            tolerance=1e-3,
        )
        assert ("DequantizeLinear" in made) == (zeros != "float")
        assert ("Slice" in made) == (columns == 40)

    def test_weights_that_are_not_constant(self) -> None:
        inputs, attributes = self.product(4, 32, "middle")
        reasons = skips(decompose_mat_mul_n_bits, "MatMulNBits", inputs, attributes)
        assert reasons == ["the weights are not constant"]

    def test_the_lowest_bits_come_first(self) -> None:
        assert unpack(np.array([[0x21, 0x43]], np.uint8), 4, 3).tolist() == [[1, 2, 3]]
        assert unpack(np.array([[0b11100100]], np.uint8), 2, 4).tolist() == [[0, 1, 2, 3]]

    @staticmethod
    def product(bits: int, columns: int, zeros: str) -> tuple[dict[str, Array | None], dict[str, int]]:
        generator, rows, block = np.random.default_rng(0), 6, 16
        blocks = -(-columns // block)
        points: dict[str, Array | None] = {
            "middle": None,
            "packed": generator.integers(0, 256, (rows, -(-blocks * bits // 8))).astype(np.uint8),
            "float": random(rows, blocks),
        }
        inputs = {
            "a": random(2, 3, columns),
            "w": generator.integers(0, 256, (rows, blocks, block * bits // 8)).astype(np.uint8),
            "scales": random(rows, blocks),
            "zeros": points[zeros],
            "order": None,
            "bias": random(rows),
        }
        return inputs, {"K": columns, "N": rows, "bits": bits, "block_size": block}


@settings(max_examples=25, deadline=None)
@given(
    batch=st.lists(st.integers(1, 3), min_size=1, max_size=2),
    sizes=st.tuples(*[st.integers(1, 4)] * 3),
    flags=st.tuples(*[st.booleans()] * 4),
    alpha=st.sampled_from([1.0, -0.5]),
)
def test_any_fused_product(
    batch: list[int], sizes: tuple[int, int, int], flags: tuple[bool, bool, bool, bool], alpha: float
) -> None:
    def laid_out(rows: int, columns: int, matrix: bool, batched: bool) -> tuple[int, ...]:
        first, last = (columns, rows) if matrix else (rows, columns)
        return (first, *batch, last) if batched else (*batch, first, last)

    m, k, n = sizes
    shapes = laid_out(m, k, flags[0], flags[1]), laid_out(k, n, flags[2], flags[3])
    names = ("transA", "transBatchA", "transB", "transBatchB")
    attributes = {name: int(flag) for name, flag in zip(names, flags, strict=True)} | {"alpha": alpha}
    inputs = {"a": random(*shapes[0]), "b": random(*shapes[1])}
    model = ir.from_proto(node_model("FusedMatMul", inputs, attributes=attributes))
    apply(decompose_fused_mat_mul, model, inputs=inputs)
    assert "MatMul" in operators(model)
