"""fold-qdq: what stays quantized, what is folded, and that saturation is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from passes.quantization.to_qdq.fold_qdq import FoldQdq
from passes.rewriting.base import Context, Exactness
from passes.rewriting.pipeline import Pipeline
from tests.passes.harness import apply, operators, reasons, run, stops
from tests.passes.helpers import sealed, tiny, weigh

W8 = np.arange(-6, 6, dtype=np.int8).reshape(4, 3)
W = W8.astype(np.float32) * 0.05
S = np.float32(0.05)
Z = np.int8(0)


def dtypes(source: ir.Model) -> dict[str, str]:
    return {str(value.name): str(value.dtype) for value in source.graph.initializers.values()}


class TestConstants:
    @pytest.mark.parametrize(
        "take",
        [
            "y = MatMul(x, d)",
            "y = Gemm(x, d)",
            "t = Transpose <perm = [0, 1]> (d) y = MatMul(x, t)",
            "t = Reshape(d, r) u = Unsqueeze(t, o) v = Squeeze(u, o) y = MatMul(x, v)",
            "e = Abs(d) m = MatMul(x, e) n = MatMul(x, d) y = Add(m, n)",
            'y = Einsum <equation = "ij,jk->ik"> (x, d)',
            "y = local.f(x, d)",
        ],
    )
    def test_operands_of_integer_kernels_stay(self, take: str) -> None:
        source = tiny(
            f"(float[2,4] x) => (float[2,3] y) {{ d = DequantizeLinear(w, s, z) {take} }}",
            functions='<domain: "local", opset_import: ["": 17]> f (a, b) => (c) { c = MatMul(a, b) }',
            w=W8,
            s=S,
            z=Z,
            r=np.array([4, 3]),
            o=np.array([0]),
        )
        assert not apply(FoldQdq(), source).rewrites
        assert dtypes(source)["w"] == "INT8"

    @pytest.mark.parametrize(
        "take",
        [
            "y = Add(x, d)",
            "t = Transpose(d) u = Transpose(t) y = Add(x, u)",
            "g = Gather(d, i) y = Add(x, g)",
        ],
    )
    def test_other_operands_are_folded(self, take: str) -> None:
        source = tiny(
            f"(float[4,3] x, int64[4] i) => (float[4,3] y) {{ [d] d = DequantizeLinear(w, s, z) {take} }}",
            w=W8,
            s=S,
            z=Z,
        )
        result = apply(FoldQdq(), source, inputs={"x": W, "i": np.array([0, 2, 1, 3])})
        assert [rewrite.before for rewrite in result.rewrites] == [("d",)]
        assert "DequantizeLinear" not in operators(source)
        assert dtypes(source) == {"d": "FLOAT"}

    @pytest.mark.parametrize(
        "text",
        [
            "(float[4,3] x, bool c) => (y) { y = If (c) <then_branch = t () => (p) { p = MatMul(x, d) }, else_branch = "
            "e () => (q) { q = Identity(x) }> d = DequantizeLinear(w, s, z) }",
            "(int64 n, bool c) => (y) { d = DequantizeLinear(w, s, z) "
            "y = Loop(n, c, d) <body = b (int64 i, bool k, float[4,3] u) => (bool l, float[4,3] v) { l = Identity(k) "
            "t = Transpose(u) v = MatMul(u, t) }> }",
            "(float[4,3] x) => (y, d) { d = DequantizeLinear(w, s, z) y = Add(x, d) }",
            "(float[4,3] x) => (y) { d = DequantizeLinear(w, s, z) q = QuantizeLinear(d, s, z) y = Cast <to = 1> (q) }",
        ],
    )
    def test_opaque_consumers(self, text: str) -> None:
        source = tiny(text, w=W8, s=S, z=Z)
        source.graph.sort()
        before = operators(source)
        FoldQdq().run(source, Context())
        assert operators(source)[: len(before)] == before

    def test_quantization_of_a_constant_is_folded_to_integers(self) -> None:
        source = tiny(
            """(float[2,4] x) => (float[2,3] y) {
                q = QuantizeLinear(w, s, z) d = DequantizeLinear(q, s, z) y = MatMul(x, d) }""",
            w=W,
            s=S,
            z=Z,
        )
        apply(FoldQdq(), source)
        assert operators(source) == ["DequantizeLinear", "MatMul"]
        assert dtypes(source) == {"s": "FLOAT", "z": "INT8", "q": "INT8"}
        tensor = source.graph.initializers["q"].const_value
        assert tensor is not None
        np.testing.assert_array_equal(tensor.numpy(), W8)

    def test_per_channel_and_in_blocks(self) -> None:
        source = tiny(
            """(float[4,3] x) => (float[4,3] y) {
                a = DequantizeLinear <axis = 1> (w, s, z) b = DequantizeLinear <axis = 0, block_size = 2> (w, t)
                c = Add(a, b) y = Add(x, c) }""",
            opset=21,
            w=W8,
            s=np.array([0.1, 0.2, 0.3], np.float32),
            z=np.array([0, 1, -1], np.int8),
            t=np.full((2, 3), 0.5, np.float32),
        )
        apply(FoldQdq(), source)
        assert operators(source) == ["Add", "Add"]

    def test_microsoft_domain(self) -> None:
        text = "(float[4,3] x) => (float[4,3] y) { d = com.microsoft.DequantizeLinear(w, s, z) y = Add(x, d) }"
        source = tiny(text, w=W8.astype(np.int16), s=S, z=np.int16(3))
        source.opset_imports["com.microsoft"] = 1
        apply(FoldQdq(), source)
        assert operators(source) == ["Add"]

    def test_max_bytes(self) -> None:
        text = "(float[4,3] x) => (float[4,3] y) { [d] d = DequantizeLinear(w, s, z) y = Add(x, d) }"
        source = tiny(text, w=W8, s=S, z=Z)
        result = apply(FoldQdq(max_bytes=47), source)
        assert [skip.node for skip in result.skips] == ["d"]
        assert "larger than max-bytes" in reasons(result)[0]
        assert apply(FoldQdq(max_bytes=48), source).rewrites
        source = tiny(text, w=W8, s=S, z=Z)
        assert apply(FoldQdq(policy="all", max_bytes=0), source).rewrites

    def test_weights_that_are_kept_are_not_read(self) -> None:
        source = tiny("(float[2,4096] x) => (y) { d = DequantizeLinear(w, s, z) y = MatMul(x, d) }", s=S, z=Z)
        weigh(source, "w", sealed(4096, 4096, dtype=ir.DataType.INT8))
        assert not FoldQdq().run(source, Context()).rewrites

    def test_weights_of_a_float_model(self) -> None:
        source = tiny(
            """(float[2,4] x) => (float[2,3] y) { d = DequantizeLinear(w, s, z) y = MatMul(x, d) }""",
            w=W8,
            s=S,
            z=Z,
        )
        apply(FoldQdq(policy="all"), source)
        assert operators(source) == ["MatMul"]
        assert dtypes(source)["d"] == "FLOAT"

    def test_in_functions(self) -> None:
        source = tiny(
            "(float[4,3] x) => (float[4,3] y) { y = local.f(x) }",
            functions="""<domain: "local", opset_import: ["": 17]> f (p) => (q) {
                w = Constant <value = int8[3] {1, 2, 3}> () s = Constant <value_float = 0.5> ()
                d = DequantizeLinear(w, s) q = Add(p, d) }""",
        )
        apply(FoldQdq(), source)
        assert operators(source) == ["f", "Add"]

    def test_float_model(self) -> None:
        source = tiny("(float[4,3] x) => (float[4,3] y) { n = Neg(w) y = Add(x, n) }", w=W)
        assert not apply(FoldQdq(policy="all"), source).rewrites


class TestPairs:
    """With policy ``all``, pairs on activations become their saturation."""

    step = FoldQdq(policy="all")
    x = np.linspace(-20, 20, 24, dtype=np.float32).reshape(2, 4, 3)

    def folded(self, text: str, *, opset: int = 21, step_size: float, **constants: Any) -> ir.Model:
        """Results may change by half a step; saturated results do not change."""
        source = tiny(text, opset=opset, **constants)
        before = run(ir.to_proto(source), {"x": self.x})["y"]
        assert self.step.run(source, Context()).rewrites
        proto = ir.to_proto(source)
        onnx.checker.check_model(proto, full_check=True)
        after = run(proto, {"x": self.x})["y"]
        assert after.dtype == before.dtype
        assert np.abs(after.astype(np.float64) - before).max() <= step_size / 2 * 1.0001
        assert not self.step.run(source, Context()).rewrites
        return source

    TEXT = "(float[2,4,3] x) => (float[2,4,3] y) { [q] q = QuantizeLinear(x, s, z) [d] y = DequantizeLinear(q, s, z) }"

    @pytest.mark.parametrize(
        "zero", [np.int8(0), np.int8(-128), np.uint8(0), np.uint8(255), np.int16(7), np.uint16(40000)], ids=repr
    )
    @pytest.mark.parametrize("opset", [13, 21])
    def test_per_tensor(self, zero: Any, opset: int) -> None:
        if zero.dtype.itemsize > 1 and opset < 21:
            opset = 21
        source = self.folded(self.TEXT, opset=opset, step_size=0.05, s=S, z=zero)
        assert operators(source) == ["Clip"]
        assert source.graph[0].name == "d/Clip"
        assert [value.name for value in source.graph.outputs] == ["y"]

    def test_default_uint8(self) -> None:
        text = "(float[2,4,3] x) => (float[2,4,3] y) { q = QuantizeLinear(x, s) y = DequantizeLinear(q, s) }"
        source = self.folded(text, step_size=0.05, s=S)
        low = source.graph[0].inputs[1]
        assert low is not None
        assert low.const_value is not None
        assert low.const_value.numpy() == 0
        self.folded(text.replace("(x, s)", "<output_dtype = 3> (x, s)"), step_size=0.05, s=S)

    def test_along_an_axis(self) -> None:
        text = """(float[2,4,3] x) => (float[2,4,3] y) {
            q = QuantizeLinear <axis = -2> (x, s, z) y = DequantizeLinear <axis = -2> (q, s, z) }"""
        source = self.folded(
            text, step_size=0.1, s=np.array([0.01, 0.02, 0.05, 0.1], np.float32), z=np.array([0, 5, -5, 127], np.int8)
        )
        assert operators(source) == ["Max", "Min"]

    def test_half_precision(self) -> None:
        text = """(float[2,4,3] x) => (float16[2,4,3] y) {
            h = Cast <to = 10> (x) q = QuantizeLinear(h, s, z) y = DequantizeLinear(q, s, z) }"""
        assert operators(self.folded(text, step_size=0.06, s=np.float16(0.05), z=Z)) == ["Cast", "Clip"]

    def test_several_dequantizers_of_one_quantizer(self) -> None:
        text = """(float[2,4,3] x) => (float[2,4,3] y) {
            q = QuantizeLinear(x, s, z) a = DequantizeLinear(q, s, z) b = DequantizeLinear(q, t, z) y = Max(a, b) }"""
        assert operators(self.folded(text, step_size=0.05, s=S, t=S, z=Z)) == ["Clip", "Clip", "Max"]

    def test_equal_parameters_stored_twice(self) -> None:
        text = "(float[2,4,3] x) => (float[2,4,3] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, t, u) }"
        self.folded(text, step_size=0.05, s=S, z=Z, t=S, u=Z)

    @pytest.mark.parametrize(
        ("text", "constants", "reason"),
        [
            (
                "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, t, z)",
                {"t": S * 2},
                "no QuantizeLinear of the same scale",
            ),
            (
                "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, t)",
                {"t": np.int8(1)},
                "no QuantizeLinear of the same scale",
            ),
            (
                "q = QuantizeLinear(x, s, z) r = Transpose <perm = [0, 1, 2]> (q) y = DequantizeLinear(r, s, z)",
                {},
                "no QuantizeLinear",
            ),
            ("n = Abs(k) q = QuantizeLinear(x, n, z) y = DequantizeLinear(q, n, z)", {}, "is not constant"),
            (
                "q = QuantizeLinear(x, s, f) y = DequantizeLinear(q, s, f)",
                {"f": np.array(0, ml_dtypes.float8_e4m3fn)},
                "FLOAT8E4M3FN rounds by each number's size",
            ),
            (
                """q = QuantizeLinear <axis = 1, block_size = 2> (x, b, c)
                   y = DequantizeLinear <axis = 1, block_size = 2> (q, b, c)""",
                {"b": np.ones((2, 2, 3), np.float32), "c": np.zeros((2, 2, 3), np.int8)},
                "the node quantizes in blocks",
            ),
        ],
    )
    def test_unchanged(self, text: str, constants: dict[str, Any], reason: str) -> None:
        source = tiny(f"(float[2,4,3] x, float k) => (float[2,4,3] y) {{ {text} }}", opset=21, s=S, z=Z, **constants)
        result = apply(self.step, source, inputs={"x": self.x, "k": np.array(0.1, np.float32)})
        assert not result.rewrites
        assert reason in reasons(result)[0]

    def test_exactness(self) -> None:
        assert self.step.exactness is Exactness.QUANTIZATION_STEP
        assert FoldQdq().exactness is Exactness.BITWISE

    def test_budget(self) -> None:
        text = """(float[4,3] x) => (float[4,3] y) { d = DequantizeLinear(w, s, z) a = Add(x, d)
            q = QuantizeLinear(a, s, z) y = DequantizeLinear(q, s, z) }"""
        counts = [stops(self.step, tiny(text, w=W8, s=S, z=Z), limit) for limit in range(4)]
        assert counts == [0, 1, 2, 2]


class Readings:
    """Calibration data for ORT's quantizer."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self._samples: Iterator[dict[str, Any]] = iter(
            [{"x": random.standard_normal((1, 3, 8, 8), np.float32)} for _ in range(4)]
        )

    def get_next(self) -> dict[str, Any] | None:
        return next(self._samples, None)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Convolution, normalization, ReLU, addition, pooling and a matrix product; in float, and quantized by ORT."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    folder: Path = tmp_path_factory.mktemp("quantized")
    random = np.random.default_rng(0)
    source = tiny(
        """(float[1,3,8,8] x) => (float[1,10] y) {
            a = Conv <pads = [1, 1, 1, 1]> (x, w, b) r = Relu(a) c = Conv <pads = [1, 1, 1, 1]> (r, v) s = Add(c, r)
            g = GlobalAveragePool(s) f = Flatten(g) y = Gemm(f, m, n) }""",
        w=random.standard_normal((8, 3, 3, 3), np.float32) / 3,
        b=random.standard_normal(8, np.float32),
        v=random.standard_normal((8, 8, 3, 3), np.float32) / 6,
        m=random.standard_normal((8, 10), np.float32),
        n=random.standard_normal(10, np.float32),
    )
    plain = ir.to_proto(source)
    onnx.save(plain, folder / "plain.onnx")
    quantize_static(
        folder / "plain.onnx",
        folder / "quantized.onnx",
        Readings(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
    )
    return plain, onnx.load(folder / "quantized.onnx")


class TestWholeNetworks:
    def test_the_default_pipeline_keeps_int8(self, network: tuple[onnx.ModelProto, onnx.ModelProto]) -> None:
        _, quantized = network
        source = ir.from_proto(quantized)
        Pipeline.parse("default").run(source)
        for node in source.graph:
            if node.op_type in ("Conv", "Gemm"):
                for value in node.inputs[:2]:
                    producer = value.producer() if value is not None else None
                    assert producer is not None
                    assert producer.op_type == "DequantizeLinear"
        np.testing.assert_array_equal(run(ir.to_proto(source))["y"], run(quantized)["y"])

    def test_policy_all_is_close_to_the_float_network(self, network: tuple[onnx.ModelProto, onnx.ModelProto]) -> None:
        """The quantizer removed the ReLU: the results agree only because saturation is kept."""
        plain, quantized = network
        source = ir.from_proto(quantized)
        assert "Relu" not in operators(source)
        Pipeline.parse("fold-qdq{policy=all},default").run(source)
        assert not {"QuantizeLinear", "DequantizeLinear"} & set(operators(source))
        expected, actual = run(plain)["y"], run(ir.to_proto(source))["y"]
        assert np.abs(expected - actual).max() < 0.03 * np.abs(expected).max()
