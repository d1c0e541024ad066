"""Precision of a conversion: every one of them through `convert`, calibration data, options, and what is refused."""

from __future__ import annotations

import struct
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import onnx_bridge
from onnx_bridge.batch.jobs import gather as gather_jobs
from onnx_bridge.bundle.requantize import quantize_again
from onnx_bridge.cli.main import app
from onnx_bridge.conversion.precision.precision import Precision
from onnx_bridge.conversion.precision.quantized_products import quantize_products, with_pairs
from onnx_bridge.conversion.steps.compile import WIDENED
from onnx_bridge.core.errors import InputError, ParityError
from onnx_bridge.migraphx.compile_options import CompileOptions
from onnx_bridge.migraphx.program import Tensor
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.model import io as models
from onnx_bridge.requests import texts
from onnx_bridge.requests.conversion import PRECISIONS
from onnx_bridge.samples.calibration import load_calibration
from onnx_bridge.samples.images import ImageRules
from onnx_bridge.samples.inputs import TensorSpec
from passes.probing.partition import Partition, Side
from passes.rewriting.pipeline import Pipeline
from tests.passes.harness import model

RNG = np.random.default_rng(0)
CONSTANTS: dict[str, Any] = {
    "k": RNG.standard_normal((4, 3, 3, 3)).astype(np.float32) / 5,
    "w": RNG.standard_normal((64, 5)).astype(np.float32) / 8,
}
CNN = """(float[1,3,6,6] x) => (float[1,5] y) {
    a = Conv(x, k)  b = Relu(a)  c = Flatten(b)  y = MatMul(c, w)
}"""
QDQ = """(float[1,3,6,6] x) => (float[1,4,4,4] y) {
    q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  y = Conv(d, k)
}"""
SPEC = TensorSpec("x", np.dtype(np.float32), (1, 3, 6, 6))


@pytest.fixture
def cnn(tmp_path: Path) -> Path:
    path = tmp_path / "cnn.onnx"
    models.save(model(CNN, **CONSTANTS), path)
    return path


def data(count: int = 4) -> np.ndarray[Any, np.dtype[np.float32]]:
    return RNG.standard_normal((count, 1, 3, 6, 6)).astype(np.float32)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_precision_agrees_within_its_own_tolerance(cnn: Path, tmp_path: Path, precision: str) -> None:
    np.savez(tmp_path / "data.npz", x=data())
    calibration = tmp_path / "data.npz" if precision in ("int8", "fp8") else None
    bundle = onnx_bridge.convert(cnn, tmp_path / "out", target="ref", precision=precision, calibration=calibration)
    report = onnx_bridge.check(bundle, samples=2)
    assert report.passed, report.summary
    worst = max(each.outputs[0].max_abs or 0 for each in report.legs[-1].comparisons)
    assert (worst > 1e-4) == (precision != "fp32")
    assert bundle.manifest.request.precision == precision
    assert bundle.outputs[0].dtype == "float32"


def test_the_tolerance_of_a_bundle_is_that_of_its_precision(cnn: Path, tmp_path: Path) -> None:
    bundle = onnx_bridge.convert(cnn, tmp_path / "out", target="ref", precision="bf16")
    assert onnx_bridge.check(bundle).passed
    assert not onnx_bridge.check(bundle, tolerance="float32").passed


def test_a_deep_model_in_16_bits(tmp_path: Path) -> None:
    """``ref`` truncates, so that each of 120 products is too small; what ONNX Runtime rounds agrees."""
    layers = "".join(f"m{i} = MatMul(v{i}, w)  v{i + 1} = Elu(m{i})  " for i in range(1, 120))
    rotation, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((8, 8)))
    text = f"(float[4,8] x) => (float[4,8] y) {{ v1 = MatMul(x, w) {layers} y = MatMul(v120, w) }}"
    models.save(model(text, w=rotation.astype(np.float32)), tmp_path / "deep.onnx")
    bundle = onnx_bridge.convert(tmp_path / "deep.onnx", tmp_path / "out", target="ref", precision="fp16")
    assert WIDENED in bundle.manifest.notes
    assert bundle.manifest.proof.error is not None
    assert bundle.manifest.proof.error > 1e-5  # that of float16, not of the program


def test_what_overflows_in_16_bits_differs(tmp_path: Path) -> None:
    """The program of ``ref`` may compute in float32, which does not overflow."""
    text = "(float[4,8] x) => (float[4,8] y) { a = MatMul(x, w)  b = Mul(a, a)  y = Sqrt(b) }"
    models.save(model(text, w=1000 * np.eye(8, dtype=np.float32)), tmp_path / "large.onnx")
    with pytest.raises(ParityError):
        onnx_bridge.convert(tmp_path / "large.onnx", tmp_path / "out", target="ref", precision="fp16")


def test_a_note_lists_nodes_in_float32(cnn: Path, tmp_path: Path) -> None:
    bundle = onnx_bridge.convert(cnn, tmp_path / "out", target="ref", precision="fp16", keep_fp32=["MatMul"])
    (note,) = bundle.manifest.notes
    assert note.startswith("3 nodes are computed in fp16, 1 stay in float32")
    assert note.endswith("MatMul is kept in float32)")
    assert bundle.manifest.request.keep_fp32 == ("MatMul",)
    with pytest.raises(InputError, match="keep names no node or operator"):
        onnx_bridge.convert(cnn, tmp_path / "out", target="ref", precision="fp16", keep_fp32=["Gemm"])


def test_a_note_on_generated_calibration(cnn: Path, tmp_path: Path) -> None:
    bundle = onnx_bridge.convert(cnn, tmp_path / "out", target="ref", precision="int8")
    assert any("8 generated samples" in note for note in bundle.manifest.notes)
    assert bundle.manifest.program.calibration is not None
    assert bundle.manifest.program.calibration.data == "seeded samples"
    shown = CliRunner().invoke(app, ["inspect", str(bundle.path)]).output
    assert "on 8 samples (seeded samples)" in shown
    assert f"{len(bundle.manifest.program.forecast['products'])} int8" in shown


def test_keys_depend_on_precision_data_and_options(cnn: Path, tmp_path: Path) -> None:
    def key(**arguments: Any) -> str | None:
        return onnx_bridge.convert(cnn, tmp_path / "out", target="ref", **arguments).manifest.key

    keys = [key(), key(precision="fp16"), key(precision="fp16", keep_fp32=["Conv"]), key(options={"fast_math": False})]
    keys += [key(precision="int8", calibration={"x": each}) for each in data(2)]
    assert len(set(keys)) == len(keys)
    assert keys[1] == key(precision="fp16")


def test_ranges_come_from_the_data(cnn: Path, tmp_path: Path) -> None:
    """Data that is far too small saturates what is larger."""
    sample = {"x": data(1)[0]}
    good = onnx_bridge.convert(cnn, tmp_path / "a", target="ref", precision="int8", calibration=sample)
    small = {"x": sample["x"] / 100}
    bad = onnx_bridge.convert(cnn, tmp_path / "b", target="ref", precision="int8", calibration=small)
    assert onnx_bridge.check(good, inputs=sample).passed
    assert not onnx_bridge.check(bad, inputs=sample).passed


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_a_quantized_model_is_never_quantized_again(tmp_path: Path, precision: str) -> None:
    path = tmp_path / "qdq.onnx"
    quantized = model(QDQ, k=CONSTANTS["k"], s=np.float32(0.05), z=np.int8(0))
    next(iter(quantized.graph)).name = "first_q"
    models.save(quantized, path)
    with pytest.raises(InputError, match="quantized already: QuantizeLinear first_q"):
        onnx_bridge.convert(path, tmp_path / "out", target="ref", precision=precision)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "fp61"}, "the precision does not exist.*did you mean"),
        ({"name": "fp32", "keep": ("Conv",)}, "nothing can be kept: all is in float32"),
        ({"name": "fp16", "keep": ("Conv",), "calibration": "data.npz"}, "needs no calibration data"),
        ({"name": "fp16", "calibration": "data.npz"}, "needs no calibration data"),
    ],
)
def test_invalid_combinations(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Precision(**arguments)


@pytest.mark.parametrize("precision", ["int8", "fp8"])
@pytest.mark.parametrize("keep", ["Conv", "MatMul"])
def test_products_stay_in_float32(cnn: Path, tmp_path: Path, precision: str, keep: str) -> None:
    enough = np.random.default_rng(1).standard_normal((32, 1, 3, 6, 6)).astype(np.float32)  # for ranges that hold
    np.savez(tmp_path / "data.npz", x=enough)
    how: dict[str, Any] = {"target": "ref", "precision": precision, "calibration": tmp_path / "data.npz"}
    bundle = onnx_bridge.convert(cnn, tmp_path / "out", keep_fp32=[keep], **how)
    report = onnx_bridge.check(bundle, samples=2)
    assert report.passed, report.summary
    assert [each.name for each in report.legs] == ["cleaned on ONNX Runtime", "MIGraphX ref"]
    assert bundle.model_path is not None
    nodes = {node.op_type: node for node in models.load(bundle.model_path).graph}
    other = {"Conv": "MatMul", "MatMul": "Conv"}[keep]
    for name, quantized in ((keep, False), (other, True)):
        producers = [value.producer() for value in nodes[name].inputs[:2] if value is not None]
        assert [each is not None and each.op_type == "DequantizeLinear" for each in producers] == [quantized] * 2
    assert "1 of 2 products are quantized" in bundle.manifest.notes[-1]
    assert bundle.manifest.program.calibration is not None
    assert bundle.manifest.program.calibration.samples == 32
    again = onnx_bridge.convert(cnn, tmp_path / "out", keep_fp32=[keep], **how)  # not upon what is quantized already
    assert onnx_bridge.check(again).passed
    assert again.manifest.key == bundle.manifest.key


def test_products_are_kept_by_name_too() -> None:
    source = model(CNN, **CONSTANTS)
    first = next(iter(source.graph))
    first.name = "stem"
    found = Precision("int8", ("stem",), [{"x": data(1)[0]}], True).quantized_products(source)
    assert found is not None
    assert (found.kept, len(found.quantized)) == (("stem",), 1)
    assert len(source.graph) == 4  # which is left as it was
    assert Precision("int8", ("stem",), in_model=True).quantizer(source, "ref") is None
    assert Precision("int8").quantized_products(source) is None


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize(("precision", "end"), [("int8", 127.0), ("fp8", 448.0)])
def test_constants_saturate(precision: str, end: float) -> None:
    """A forecast takes ranges that no weight has."""
    weights = np.array([[1e6, -1e6, 0.75, np.inf, np.nan]], np.float32)
    source = model("(float[1,1] x) => (float[1,5] y) { y = MatMul(x, w) }", opset=19, w=weights)
    stored = with_pairs(source, precision).graph.initializers["w/quantized"].const_value
    assert stored is not None
    assert stored.numpy().astype(np.float32)[0, :4].tolist() == [end, -end, 1.0 if precision == "int8" else 0.75, end]


def test_int8_in_the_model_equals_int8_by_migraphx(cnn: Path, tmp_path: Path) -> None:
    """With nothing of it kept, the model gets the very numbers that MIGraphX's quantizer makes."""
    sample = {"x": data(1)[0]}
    source = models.load(cnn)
    calibration = load_calibration([sample], [SPEC])
    whole = quantize_products(source, "int8", (), calibration)
    models.save(whole.model, tmp_path / "qdq.onnx")
    by_model = onnx_bridge.convert(tmp_path / "qdq.onnx", tmp_path / "a", target="ref", pipeline="none")
    by_migraphx = onnx_bridge.convert(cnn, tmp_path / "b", target="ref", precision="int8", calibration=[sample])
    ours, theirs = by_model(sample)["y"], by_migraphx(sample)["y"]
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)  # type: ignore[arg-type]
    kernels = [bundle.manifest.program.forecast["kernels"] for bundle in (by_model, by_migraphx)]
    assert kernels[0] == kernels[1]


@pytest.mark.parametrize(
    ("keep", "message"),
    [(("Cnov",), "no such product to keep.*did you mean Conv"), (("Conv", "MatMul"), "nothing is left to quantize")],
)
def test_invalid_keep_fp32(keep: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Precision("int8", keep, in_model=True).quantized_products(model(CNN, **CONSTANTS))


def test_an_old_opset_is_raised_for_fp8(cnn: Path) -> None:
    old = models.load(cnn)
    old.graph.opset_imports[""] = 13
    for precision, first in (("int8", None), ("fp8", "convert-opset{to=19}")):
        steps = Precision(precision, ("Conv",), in_model=True).pipeline(Pipeline(), old)
        assert str(steps) == (first or "")


class _Old:
    """A MIGraphX from before bf16 and fp8."""

    version = "2.11"
    features: frozenset[str] = frozenset()


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_a_runtime_must_support_the_precision(precision: str) -> None:
    with pytest.raises(
        InputError, match=f"2.11\\) does not support the precision: quantize_{precision} is missing.*since 2.1[23]"
    ):
        Precision(precision).check_runtime(_Old())  # type: ignore[arg-type]


def test_a_program_is_quantized_again_from_kept_samples(cnn: Path, tmp_path: Path, worker: Worker) -> None:
    source = models.load(cnn)
    samples = [{"x": each} for each in data()]
    quantizer = Precision("int8", (), samples).quantizer(source, "ref")
    assert quantizer is not None
    first, again = worker.parse_onnx(cnn), worker.parse_onnx(cnn)
    whole = Partition(Side.DEVICE, tuple(source.graph), tuple(source.graph.inputs), tuple(source.graph.outputs))
    quantizer(first, whole)
    quantizer.save_samples(tmp_path / "calibration.npz", {0: ["x"]})
    with zipfile.ZipFile(tmp_path / "calibration.npz", "a") as archive:
        archive.writestr("1/0/x.npy", b"is of another partition, and not read")
    bundle = onnx_bridge.convert(cnn, tmp_path / "out", target="ref")
    manifest = replace(bundle.manifest, request=replace(bundle.manifest.request, precision="int8"))
    quantize_again(again, 0, manifest, tmp_path)
    sample = {"x": Tensor.of(data(1)[0])}
    results = []
    for program in (first, again):
        program.compile("ref")
        results.append(program.run(sample)[0].numpy())
    np.testing.assert_array_equal(results[0], results[1])
    (tmp_path / "calibration.npz").unlink()
    with pytest.raises(InputError, match="the calibration samples are missing"):
        quantize_again(worker.parse_onnx(cnn), 0, manifest, tmp_path)


# Calibration data


def test_npy_holds_one_sample_several_or_a_longer_batch(tmp_path: Path) -> None:
    arrays = {"one": data(1)[0], "several": data(3), "batch": data(5).reshape(5, 3, 6, 6)}
    counts = {}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
        counts[name] = len(load_calibration(tmp_path / f"{name}.npy", [SPEC]).samples)
    assert counts == {"one": 1, "several": 3, "batch": 5}


def test_samples_may_be_several_batches_long_and_have_labels(tmp_path: Path) -> None:
    rows = data(6).reshape(6, 3, 6, 6)
    np.savez(tmp_path / "x.npz", x=rows, label=np.arange(6))
    for given, batch in ((tmp_path / "x.npz", 2), ({"x": rows}, 3), ([{"x": rows}], 1), (lambda: [{"x": rows}], 6)):
        spec = replace(SPEC, shape=(batch, 3, 6, 6))
        pieces = [np.asarray(sample["x"]) for sample in load_calibration(given, [spec]).samples]
        assert len(pieces) == 6 // batch
        np.testing.assert_array_equal(np.concatenate(pieces), rows)
    with pytest.raises(InputError, match="multiple"):
        load_calibration({"x": rows}, [replace(SPEC, shape=(4, 3, 6, 6))])


def test_npy_is_for_one_input(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", data(1)[0])
    with pytest.raises(InputError, match="takes 2 inputs"):
        load_calibration(tmp_path / "x.npy", [SPEC, TensorSpec("z", np.dtype(np.float32), (1,))])
    (tmp_path / "broken.npy").write_bytes(b"no")
    with pytest.raises(InputError, match="broken.npy"):
        load_calibration(tmp_path / "broken.npy", [SPEC])


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "no samples"),
        ([{"x": np.zeros((1, 3, 6, 6), np.float32)}], "0 in all samples"),
        ([{"x": np.full((1, 3, 6, 6), np.nan, np.float32)}], "the samples have no range.*NaN"),
        ([{"x": np.zeros((1, 3, 5, 6), np.float32)}], "the shape is"),
        ([{"y": np.zeros((1, 3, 6, 6), np.float32)}], "none of its arrays"),
    ],
)
def test_wrong_data_is_refused(samples: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_calibration(samples, [SPEC])


def picture(path: Path, size: tuple[int, int], colour: tuple[int, int, int]) -> None:
    from PIL import Image

    Image.new("RGB", size, colour).save(path)


def test_images_are_resized_and_normalised_as_declared(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", (20, 10), (255, 0, 51))
    picture(tmp_path / "b.jpg", (7, 9), (10, 10, 10))
    found = load_calibration(tmp_path, [SPEC])
    assert len(found.samples) == 2
    assert "2 images" in found.notes[0]
    array = found.samples[0]["x"]
    assert isinstance(array, np.ndarray)
    rules = ImageRules()
    expected = [
        (value / 255 - mean) / std for value, mean, std in zip((255, 0, 51), rules.mean, rules.std, strict=True)
    ]
    np.testing.assert_allclose(array[0].mean(axis=(1, 2)), expected, rtol=1e-5)
    (tmp_path / "images.toml").write_text('channels = "bgr"\nscale = 1.0\nmean = 0\nstd = 2\nresize = 0\n')
    array = load_calibration(tmp_path, [SPEC]).samples[0]["x"]
    assert isinstance(array, np.ndarray)
    np.testing.assert_allclose(array[0, :, 3, 3], [25.5, 0, 127.5])


def test_images_keep_their_proportions_and_fill_batches(tmp_path: Path) -> None:
    from PIL import Image

    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 200  # the centre, which is what is cut out
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    (tmp_path / "images.toml").write_text("resize = 1.0\nscale = 1\nmean = 0\nstd = 1\n")
    spec = TensorSpec("x", np.dtype(np.float32), (2, 10, 10, 1))
    (sample,) = load_calibration(tmp_path, [spec]).samples
    assert isinstance(sample["x"], np.ndarray)
    np.testing.assert_allclose(sample["x"], 200)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shear = 1", "the rule 'shear' does not exist"),
        ("std = 0", "std cannot be 0"),
        ("mean = [1, 2]", "mean cannot be"),
        ("=", "read"),
        ("mean = " + "[" * 20_000, "read"),
        ("resize = 1e308", "resize cannot be 1e"),
        ("resize = -1", "resize cannot be -1"),
        ("scale = inf", "scale cannot be inf"),
        ("mean = nan", "mean cannot be nan"),
        ("std = 1e-300", "std cannot be 1e-300"),
        (f"scale = 1{'0' * 400}", "scale cannot be 10+…"),
        (f"mean = [1{'0' * 400}]", "mean cannot be"),
    ],
)
def test_wrong_rules_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "images.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        ImageRules.read(tmp_path / "images.toml")


def test_images_need_a_model_of_images(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", (8, 8), (1, 2, 3))
    with pytest.raises(InputError, match="the model does not take images"):
        load_calibration(tmp_path, [TensorSpec("x", np.dtype(np.float32), (1, 8))])
    (tmp_path / "a.png").write_bytes(b"no image")
    with pytest.raises(InputError, match="the file is not an image: it has none of the formats"):
        load_calibration(tmp_path, [SPEC])


def huge_png(width: int, height: int) -> bytes:
    """The header of a black image, and its first rows."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(width + 1))), (b"IEND", b""))
    made = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.png", huge_png(30_000, 30_000), "DecompressionBombError"),
        ("a.png", huge_png(8, 8)[:46], "the file is not an image: OSError"),
        ("a.bmp", b"BM" + b"\xff" * 60, "the file is not an image: OSError"),
        ("a.webp", b"RIFF\xff\0\0\0WEBPVP8 " + b"\xff" * 50, "the file is not an image: OSError"),
        ("a.tif", b"II*\0\x08\0\0\0\x01\0\0\1\4\0" + b"\xff" * 8, "none of the formats"),
        ("a.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "none of the formats"),
    ],
    ids=["huge", "cut off", "bmp", "webp", "tiff", "another format"],
)
def test_images_that_are_damaged_or_huge(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        load_calibration(tmp_path, [SPEC])
    assert "\n" not in str(caught.value)


def test_a_strip_that_is_huge_when_it_is_resized(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", (1, 50_000), (1, 2, 3))
    spec = TensorSpec("x", np.dtype(np.float32), (1, 3, 224, 224))
    with pytest.raises(InputError, match="the image has 1 × 50000 pixels, and 256 × 12800000"):
        load_calibration(tmp_path, [spec])
    (tmp_path / "images.toml").write_text("resize = 0")
    assert load_calibration(tmp_path, [spec]).samples


@pytest.mark.filterwarnings("error")
def test_images_beyond_the_range_of_the_input(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", (8, 8), (1, 2, 3))
    (tmp_path / "images.toml").write_text("scale = 1e9\nstd = 1e-9")
    with pytest.raises(InputError, match="the samples have no range"):
        load_calibration(tmp_path, [replace(SPEC, dtype=np.dtype(np.float16))])


# CompileOptions


def test_compile_options_and_environment(cnn: Path, tmp_path: Path) -> None:
    given: dict[str, bool | str] = {"fast_math": "false", "disable_pointwise_fusion": True}
    bundle = onnx_bridge.convert(cnn, tmp_path / "out", target="ref", options=given)
    assert bundle.manifest.request.options == given
    assert bundle.manifest.program.environment == {"MIGRAPHX_DISABLE_POINTWISE_FUSION": "1"}
    assert onnx_bridge.check(bundle).passed
    assert bundle.program.worker is not None
    assert bundle.program.worker.environment == {"MIGRAPHX_DISABLE_POINTWISE_FUSION": "1"}


@pytest.mark.parametrize(
    ("given", "target", "message"),
    [
        ({"fastmath": True}, "ref", "no such option.*did you mean fast_math"),
        ({"fast_math": "perhaps"}, "ref", "true or false"),
        (
            {"miopen_find_mode": "1"},
            "ref",
            "this runtime does not support the option: no library of MIGraphX .* reads MIOPEN_FIND_MODE",
        ),
        ({"offload_copy": False}, "gpu", "takes arrays in host memory"),
        ({"disable_passes": ""}, "ref", "no value"),
    ],
)
def test_unknown_options_are_errors(runtime: Runtime, given: dict[str, Any], target: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        CompileOptions.of(given, runtime, target)


def test_options_as_text() -> None:
    assert texts.compile_options(["exhaustive-tune=true"]) == {"exhaustive_tune": "true"}
    with pytest.raises(InputError, match="not NAME=VALUE"):
        texts.compile_options(["fast_math"])


def test_job_files_have_precisions(cnn: Path, tmp_path: Path) -> None:
    job = tmp_path / "jobs.toml"
    job.write_text(
        '[[jobs]]\nmodel = "cnn.onnx"\nprecision = "fp16"\nkeep_fp32 = ["Conv"]\noptions = {fast_math = false}\n'
        'calibration = "data.npz"\n'
    )
    (found,) = gather_jobs([job], tmp_path / "out")
    request = found.request.conversion
    assert (request.precision, request.keep_fp32) == ("fp16", ("Conv",))
    assert (request.options, request.calibration) == ({"fast_math": False}, tmp_path / "data.npz")
    assert type(request).from_json(request.to_json()) == request
