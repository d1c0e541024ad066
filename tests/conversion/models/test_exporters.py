"""What exporters write: weights that are inputs as well, operators that ONNX has not, values for what is no input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ml_dtypes import float8_e4m3fn as float8
from onnx import helper, numpy_helper

import onnx_bridge
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.model import io as models
from onnx_bridge.reference.reference import Reference

X = np.linspace(-3, 3, 16, dtype=np.float32).reshape(1, 4, 2, 2)
W = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32)


def weights_as_inputs(path: Path, ir_version: int = 10, listed: bool = True) -> Path:
    """A product behind a Reshape, whose shape and weights are inputs with a default."""
    weights = [numpy_helper.from_array(np.array([1, 16]), "shape"), numpy_helper.from_array(W, "w")]
    infos = [("x", 1, [1, 4, 2, 2]), *([("shape", 7, [2]), ("w", 1, [16, 4])] if listed else [])]
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["r"]), helper.make_node("MatMul", ["r", "w"], ["z"])]
    inputs = [helper.make_tensor_value_info(*info) for info in infos]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("z", 1, [1, 4])], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=ir_version), path)
    return path


class TestWeightsAsInputs:
    @pytest.mark.parametrize("precision", ["fp32", "int8"])
    def test_they_are_constant(self, runtime: Runtime, tmp_path: Path, precision: str) -> None:
        path = weights_as_inputs(tmp_path / "model.onnx")
        bundle = onnx_bridge.convert(path, tmp_path / "out", target="ref", precision=precision)
        assert bundle.wholly_on_migraphx
        assert [info.name for info in bundle.inputs] == ["x"]
        assert any("shape, w" in note for note in bundle.manifest.notes)
        np.testing.assert_allclose(bundle({"x": X})["z"], X.reshape(1, 16) @ W, atol=1e-5 if precision == "fp32" else 1)
        assert onnx_bridge.check(bundle).passed

    def test_one_whose_shape_is_given_is_an_input(self, runtime: Runtime, tmp_path: Path) -> None:
        path = weights_as_inputs(tmp_path / "model.onnx")
        bundle = onnx_bridge.convert(path, tmp_path / "out", target="ref", shapes={"w": (16, 4)})
        assert [info.name for info in bundle.inputs] == ["x", "w"]
        assert bundle.proof.comparable
        np.testing.assert_allclose(bundle({"x": X, "w": 2 * W})["z"], X.reshape(1, 16) @ W * 2, atol=1e-5)
        assert onnx_bridge.check(bundle).passed

    def test_one_that_is_frozen_has_another_value(self, runtime: Runtime, tmp_path: Path) -> None:
        path = weights_as_inputs(tmp_path / "model.onnx")
        bundle = onnx_bridge.convert(path, tmp_path / "out", target="ref", freeze={"w": np.ones_like(W)})
        assert bundle.proof.comparable
        np.testing.assert_allclose(bundle({"x": X})["z"], np.full((1, 4), X.sum()), atol=1e-5)

    @pytest.mark.parametrize("options", [{"ir_version": 3}, {"listed": False}])
    @pytest.mark.parametrize("verb", [onnx_bridge.clean, onnx_bridge.doctor])
    def test_a_constant_is_not_frozen(self, tmp_path: Path, verb: Any, options: dict[str, Any]) -> None:
        path = weights_as_inputs(tmp_path / "model.onnx", **options)
        with pytest.raises(InputError):
            verb(path, freeze={"shape": "[1,16]"})

    def test_a_pipeline_without_passes_changes_nothing(self, tmp_path: Path) -> None:
        path = weights_as_inputs(tmp_path / "model.onnx")
        assert len(onnx_bridge.clean(path, pipeline="none").model.graph.inputs) == 3
        assert len(onnx_bridge.clean(path).model.graph.inputs) == 1


def of_operator(name: str, path: Path, attributes: str = "", opset: int = 15) -> Path:
    graph = f"g (float[4,4,1] x) => (float[4,4,1] y) {{ y = {name}{attributes} (x) }}"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {graph}'), path)
    return path


class TestInventedOperators:
    @pytest.mark.parametrize(
        ("name", "function"),
        [
            ("Exp2", np.exp2),
            ("Expm1", np.expm1),
            ("HardSwish", lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
            ("Log10", np.log10),
            ("Log1p", np.log1p),
            ("Log2", np.log2),
            ("Mish", lambda x: x * np.tanh(np.log1p(np.exp(x)))),
            ("Relu6", lambda x: np.clip(x, 0, 6)),
            ("Rint", np.rint),
            ("Rsqrt", lambda x: 1 / np.sqrt(x)),
            ("Silu", lambda x: x / (1 + np.exp(-x))),
            ("SiLU", lambda x: x / (1 + np.exp(-x))),
            ("Square", np.square),
            ("Swish", lambda x: x / (1 + np.exp(-x))),
            ("Erfc", None),
        ],
    )
    @pytest.mark.parametrize("opset", [13, 15])
    def test_what_they_are(self, tmp_path: Path, name: str, function: Any, opset: int) -> None:
        x = np.linspace(0.1, 7, 16, dtype=np.float32).reshape(4, 4, 1)
        path = of_operator(name, tmp_path / "model.onnx", opset=13 if name == "HardSwish" else opset)
        assert models.load(path).functions
        found = Reference(path).run({"x": x})["y"]
        expected = (
            function(x) if function else 1 - Reference(of_operator("Erf", tmp_path / "e.onnx")).run({"x": x})["y"]
        )
        np.testing.assert_allclose(found, expected, atol=1e-6, rtol=1e-5)

    def test_before_constants_had_the_type_of_others(self, tmp_path: Path) -> None:
        text = """<ir_version: 7, opset_import: ["": 13]> g (float[4] x, float16[4] h) => (float[4] y, float16[4] z) {
            y = Erfc (x) z = Erfc (h) }"""
        onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
        x = np.linspace(-1, 1, 4, dtype=np.float32)
        found = Reference(tmp_path / "model.onnx").run({"x": x, "h": x.astype(np.float16)})
        np.testing.assert_allclose(found["z"], np.asarray(found["y"]), atol=1e-3)  # type: ignore[arg-type]

    def test_a_conversion_says_so(self, runtime: Runtime, tmp_path: Path) -> None:
        bundle = onnx_bridge.convert(of_operator("Erfc", tmp_path / "model.onnx"), tmp_path / "out", target="ref")
        assert bundle.wholly_on_migraphx
        assert bundle.proof.comparable
        assert any("Erfc" in note for note in bundle.manifest.notes)
        assert onnx_bridge.check(bundle).passed

    def test_roundings_to_float8_of_another_runtime(self, runtime: Runtime, tmp_path: Path) -> None:
        text = """<ir_version: 9, opset_import: ["": 20, "trt": 1]> g (float[2, 8] x) => (float[2, 3] y)
            <float s = {0.0625}, float[8, 3] w = {WEIGHTS}, uint8[2, 8] q> {
            q = trt.TRT_FP8QuantizeLinear (x, s) d = trt.TRT_FP8DequantizeLinear (q, s)
            v = trt.TRT_FP8QuantizeLinear (w, s) u = trt.TRT_FP8DequantizeLinear (v, s) y = MatMul (d, u) }"""
        weights = W.reshape(-1)[:24]
        text = text.replace("WEIGHTS", ", ".join(map(str, weights)))
        onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
        bundle = onnx_bridge.convert(tmp_path / "model.onnx", tmp_path / "out", target="ref")
        x = W.reshape(-1)[24:40].reshape(2, 8)
        x8, w8 = ((array / 0.0625).astype(float8).astype(np.float32) * 0.0625 for array in (x, weights.reshape(8, 3)))
        np.testing.assert_allclose(bundle({"x": x})["y"], x8 @ w8, atol=1e-5)  # type: ignore[arg-type]
        assert bundle.wholly_on_migraphx
        assert any("TRT_FP8QuantizeLinear" in note for note in bundle.manifest.notes)

    @pytest.mark.parametrize("most", [2, 5])
    def test_suppression_of_another_runtime(self, runtime: Runtime, tmp_path: Path, most: int) -> None:
        """Two boxes overlap, and one has a low score; what is left of the rows is 0."""
        text = f"""<ir_version: 8, opset_import: ["": 17, "TRT": 1]> g (float[2, 4, 4] b, float[2, 4, 2] p)
            => (int32[2, 1] number, float[2, {most}, 4] boxes, float[2, {most}] scores, int32[2, {most}] classes) {{
            number, boxes, scores, classes = TRT.EfficientNMS_TRT <background_class = -1, box_coding = 0,
                iou_threshold = 0.45, max_output_boxes = {most}, plugin_version = "1", score_activation = 0,
                score_threshold = 0.2> (b, p) }}"""
        onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
        boxes = np.array([[0, 0, 4, 4], [0, 0, 4, 5], [6, 6, 9, 9], [20, 20, 30, 30]], np.float32)
        scores = np.array([[0.9, 0.05], [0.8, 0.7], [0.1, 0.6], [0.1, 0.15]], np.float32)
        given = {"b": np.stack([boxes, boxes + 1]), "p": np.stack([scores, scores[::-1]])}
        bundle = onnx_bridge.convert(tmp_path / "model.onnx", tmp_path / "out", target="ref")
        found = bundle(given)
        rows = np.array([0.9, 0.7, 0.6, 0, 0], np.float32)[:most]
        np.testing.assert_allclose(found["scores"][0], rows)  # type: ignore[index]
        np.testing.assert_array_equal(found["classes"][0], [0, 1, 1, 0, 0][:most])  # type: ignore[index]
        np.testing.assert_array_equal(found["boxes"][0][: min(most, 3)], boxes[[0, 1, 2]][:most])  # type: ignore[index]
        assert found["number"][0] == min(most, 3)  # type: ignore[index]

    @pytest.mark.parametrize(
        ("name", "attributes", "opset"),
        [("Erfc", "<alpha = 1.0>", 15), ("HardSwish", "", 14), ("Mish", "", 18), ("Erfcx", "", 15)],
    )
    def test_left_alone(self, tmp_path: Path, name: str, attributes: str, opset: int) -> None:
        model = models.load(of_operator(name, tmp_path / "model.onnx", attributes, opset))
        assert not model.functions
        assert [(node.domain, node.op_type) for node in model.graph] == [("", name)]


@pytest.mark.parametrize("seed", [0, 1])
def test_one_verdict_on_float16_between_8_bits(runtime: Runtime, tmp_path: Path, seed: int) -> None:
    """As modelopt quantizes: what a conversion says is proven, a check says, too."""
    random, weights, nodes, x = np.random.default_rng(seed), [], [], "x"

    def constant(array: Any) -> str:
        weights.append(numpy_helper.from_array(np.asarray(array), f"c{len(weights)}"))
        return str(weights[-1].name)

    def op(kind: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"v{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    for kind in ("Sigmoid", "Tanh", "Relu"):
        scale, zero = constant(np.float32(random.uniform(0.02, 0.06))), constant(np.int8(0))
        half = op("Cast", op("DequantizeLinear", op("QuantizeLinear", x, scale, zero), scale, zero), to=10)
        integers = constant(random.integers(-127, 128, (16, 16)).astype(np.int8))
        w = op("Cast", op("DequantizeLinear", integers, constant(np.float32(0.02)), zero), to=10)
        x = op("Add", op("Cast", op(kind, op("MatMul", half, w)), to=1), x)
    nodes[-1].output[0] = "y"
    infos = [helper.make_tensor_value_info(name, 1, [4, 16]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], weights)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "model.onnx"
    )
    bundle = onnx_bridge.convert(tmp_path / "model.onnx", tmp_path / "out", target="ref")
    assert bundle.proof.comparable
    assert onnx_bridge.check(bundle).passed
