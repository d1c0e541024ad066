"""The main job on real input: exported networks, a quantized one, the nine light models of the onnx package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnx_bridge
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.core.errors import BridgeError, InputError
from onnx_bridge.migraphx.runtime import Runtime

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name", ["resnet", "bert", "vit"])
def test_exported_networks_with_a_dynamic_batch(
    runtime: Runtime, exported: Callable[..., Path], tmp_path: Path, name: str, exporter: str
) -> None:
    model = exported(name, exporter, dynamic_batch=True)
    bundle = onnx_bridge.convert(model, tmp_path / name, target="ref", dims={"batch": 3})
    report = onnx_bridge.check(bundle, samples=2)
    assert report.passed, report.to_json()
    assert 0 < report.largest_error < 1e-4
    assert all(info.shape[0] == 3 for info in (*bundle.inputs, *bundle.outputs))
    assert (tmp_path / name / f"{name}-{exporter}-dynamic.mxr").exists()
    cleaned = onnx.load(bundle.model_path)
    onnx.checker.check_model(cleaned, full_check=True)
    assert len(cleaned.graph.node) <= len(onnx.load(model).graph.node)


class Readings:
    """Calibration data for ORT's quantizer."""

    def __init__(self) -> None:
        images = np.random.default_rng(0).standard_normal((4, 2, 3, 32, 32), np.float32)
        self._samples: Iterator[dict[str, Any]] = iter([{"pixel_values": each} for each in images])

    def get_next(self) -> dict[str, Any] | None:
        return next(self._samples, None)


def test_a_network_that_ort_quantized(runtime: Runtime, exported: Callable[..., Path], tmp_path: Path) -> None:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    quantize_static(
        exported("resnet", "torchscript"),
        tmp_path / "q.onnx",
        Readings(),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
    )
    report = onnx_bridge.check(tmp_path / "q.onnx", target="ref")
    assert report.passed, report.to_json()
    view = onnx_bridge.inspect(tmp_path / "q.onnx")
    assert view.to_json()["quantization"]["DequantizeLinear"] > 10
    # keep-int8: what convolutions and products are fed from stays quantized
    cleaned = onnx_bridge.clean(tmp_path / "q.onnx").model
    for node in cleaned.graph:
        if node.op_type in ("Conv", "Gemm", "MatMul"):
            assert all(value.producer().op_type == "DequantizeLinear" for value in node.inputs[:2])


@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda path: path.stem)
def test_light_models_clean_parse_and_compile(runtime: Runtime, tmp_path: Path, path: Path) -> None:
    """Their images have 224 × 224 pixels, which the ref target would take minutes to run; so they are not run."""
    bundle = onnx_bridge.convert(path, tmp_path / "program.mxr", target="ref", prove_budget=1)
    assert bundle.outputs[0].shape[1] == 1000
    steps = bundle.manifest.program.passes
    assert steps[-1]["nodes_after"] <= steps[0]["nodes_before"]


@pytest.fixture(scope="module")
def bundle(runtime: Runtime, exported: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("bundle") / "bert"
    return onnx_bridge.convert(exported("bert", dynamic_batch=True), out, target="ref", dims={"batch": 2})


OUTSIDE = {"file": "../../other.onnx", "bytes": 1, "sha256": ""}


class TestBundles:
    def test_layout_and_manifest(self, bundle: Bundle, exported: Callable[..., Path]) -> None:
        name = "bert-dynamo-dynamic"
        assert {path.name for path in bundle.path.iterdir()} == {f"{name}.mxr", f"{name}.onnx", "manifest.json"}
        manifest = json.loads((bundle.path / "manifest.json").read_text())
        assert manifest["source"]["path"] == str(exported("bert", dynamic_batch=True))
        assert len(manifest["source"]["sha256"]) == 64
        assert manifest["target"] == "ref"
        assert manifest["architecture"] is None
        assert manifest["versions"]["migraphx"].count(".") == 2
        assert manifest["inputs"][0] == {
            **{"name": "input_ids", "dtype": "int64", "shape": [2, 16]},
            "bounds": [[-1000, 999]],
        }
        assert manifest["outputs"] == [{"name": "output", "dtype": "float32", "shape": [2, 16, 64]}]
        assert {"clean", "write", "start", "parse", "compile", "save", "prove"} == set(manifest["timings"])
        names = [each["name"] for each in manifest["programs"][0]["passes"]]
        assert "fold-constants" in names
        assert any(each["rewrites"] for each in manifest["programs"][0]["passes"])

    def test_loading_in_another_process(self, bundle: Bundle, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        arrays = {"input_ids": rng.integers(0, 1000, (2, 16)), "attention_mask": np.ones((2, 16), np.int64)}
        np.savez(tmp_path / "x.npz", **arrays)
        here = bundle(arrays)["output"]
        code = (
            "import sys, numpy, onnx_bridge; b = onnx_bridge.load(sys.argv[1]);"
            "numpy.save(sys.argv[3], b(dict(numpy.load(sys.argv[2])))['output'])"
        )
        subprocess.run([sys.executable, "-c", code, bundle.path, tmp_path / "x.npz", tmp_path / "y.npy"], check=True)
        np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), here)

    def test_survives_the_end_of_its_worker(self, bundle: Bundle) -> None:
        arrays = {"input_ids": np.zeros((2, 16), np.int64), "attention_mask": np.ones((2, 16), np.int64)}
        before = bundle(arrays)["output"]
        assert bundle.program.worker is not None
        bundle.program.worker.close()
        np.testing.assert_array_equal(bundle(arrays)["output"], before)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"extra": np.zeros(1)}, "extra"),
            ({"input_ids": None}, "input_ids"),
            ({"input_ids": np.zeros((2, 16), np.float32)}, "int64"),
            ({"input_ids": np.zeros((2, 17), np.int64)}, "17"),
        ],
    )
    def test_wrong_arrays(self, bundle: Bundle, change: dict[str, Any], message: str) -> None:
        arrays = {"input_ids": np.zeros((2, 16), np.int64), "attention_mask": np.ones((2, 16), np.int64), **change}
        arrays = {name: array for name, array in arrays.items() if array is not None}
        with pytest.raises(BridgeError, match=message) as caught:
            bundle(arrays)
        assert caught.value.exit_code == 2

    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("format", 99, "has format 99.*make it again: onnx-bridge convert"),
            ("format", 1, "has format 1, and .* reads format 4 alone .*make it again: onnx-bridge convert .*onnx -o "),
            ("versions", {"migraphx": "1.2.3"}, r"compiled by MIGraphX 1.2.3, and the one here is"),
            ("target", "gpu", "GPU"),
            ("model", [OUTSIDE], "damaged.*other.onnx.*is not a file in the bundle"),
        ],
    )
    def test_refusals(self, bundle: Bundle, tmp_path: Path, field: str, value: Any, message: str) -> None:
        out = tmp_path / "copy"
        out.mkdir()
        for path in bundle.path.iterdir():
            os.link(path, out / path.name)
        manifest = json.loads((out / "manifest.json").read_text())
        manifest[field] = {**manifest[field], **value} if isinstance(value, dict) else value
        (out / "manifest.json").unlink()
        (out / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(BridgeError, match=message):
            onnx_bridge.load(out)
        if field == "format":  # which is no damage
            with pytest.raises(BridgeError, match=message):
                onnx_bridge.verify(out)

    @pytest.mark.parametrize("options", [{"dims": {"batch": 0}}, {"shapes": {"x": (0, 2)}}])
    def test_sizes_that_leave_nothing(self, runtime: Runtime, tmp_path: Path, options: dict[str, Any]) -> None:
        text = '<ir_version: 8, opset_import: ["": 17]> g (float[batch, 2] x) => (float[batch, 2] y) { y = Neg (x) }'
        onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
        with pytest.raises(InputError, match="empty"):
            onnx_bridge.convert(tmp_path / "model.onnx", tmp_path / "out", target="ref", **options)

    def test_a_damaged_program(self, bundle: Bundle, tmp_path: Path) -> None:
        out = tmp_path / "copy"
        out.mkdir()
        for path in bundle.path.iterdir():
            (out / path.name).write_bytes(path.read_bytes()[: 1000 if path.suffix == ".mxr" else None])
        with pytest.raises(BridgeError, match="not the one that the manifest describes.*convert again"):
            onnx_bridge.load(out)
        next(out.glob("*.mxr")).unlink()
        with pytest.raises(BridgeError, match="missing from the bundle"):
            onnx_bridge.load(out)

    def test_a_program_alone(self, runtime: Runtime, exported: Callable[..., Path], tmp_path: Path) -> None:
        model = exported("resnet", "torchscript")
        bundle = onnx_bridge.convert(model, tmp_path / "r.mxr", target="ref")
        assert {path.name for path in tmp_path.iterdir()} == {"r.mxr", "r.manifest.json"}
        assert onnx_bridge.check(bundle).passed
        loaded = onnx_bridge.load(tmp_path / "r.mxr")
        assert loaded({"pixel_values": np.zeros((2, 3, 32, 32), np.float32)})["output"].shape == (2, 10)

    def test_replacing_a_bundle(self, runtime: Runtime, exported: Callable[..., Path], tmp_path: Path) -> None:
        """What another model left in the folder goes; what is not ours stays."""
        out = tmp_path / "out"
        onnx_bridge.convert(exported("vit", "torchscript"), out, target="ref")
        (out / "notes.txt").write_text("mine")
        onnx_bridge.convert(exported("resnet", "torchscript"), out, target="ref")
        names = {path.name for path in out.iterdir()}
        assert names == {
            "resnet-torchscript-static.mxr",
            "resnet-torchscript-static.onnx",
            "manifest.json",
            "notes.txt",
        }

    def test_a_model_in_memory_is_not_modified(
        self, runtime: Runtime, exported: Callable[..., Path], tmp_path: Path
    ) -> None:
        from onnx_bridge.model import io as models

        model = models.load(exported("vit", "torchscript", dynamic_batch=True))
        nodes = [node.name for node in model.graph]
        bundle = onnx_bridge.convert(model, tmp_path / "vit", target="ref")
        assert [node.name for node in model.graph] == nodes
        assert bundle.inputs[0].shape == (1, 3, 32, 32)
        assert any("batch" in note and "--dim" in note for note in bundle.manifest.notes)


def test_scalars_and_empty_tensors(runtime: Runtime, tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float x, float[0,2] e, bool[2] b) => (float y, float[0,2] f, bool[2] n, int64 s) {
            y = Mul(x, x)  f = Neg(e)  n = Not(b)  c = Cast<to=7>(b)  s = ReduceSum<keepdims=0>(c) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    bundle = onnx_bridge.convert(tmp_path / "m.onnx", tmp_path / "m", target="ref")
    outputs = bundle(
        {
            "x": np.array(3, np.float32),
            "e": np.zeros((0, 2), np.float32),
            "b": np.array([True, False]),
        }
    )
    assert outputs["y"].shape == ()
    assert outputs["y"] == 9
    assert outputs["f"].shape == (0, 2)
    np.testing.assert_array_equal(outputs["n"], [False, True])
    assert outputs["s"].dtype == np.int64
    assert outputs["s"] == 1
    assert onnx_bridge.check(bundle).passed
