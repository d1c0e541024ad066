"""ONNX models, quantized by both quantizers to every scheme that they can do."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from PIL import Image

import onnx_bridge
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array
from onnx_bridge.model import io as models
from onnx_bridge.quantization import quark
from onnx_bridge.quantization.calibration_data import CalibrationReader
from onnx_bridge.quantization.prepare import Source
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests.schemes import METHODS, QUANTIZERS, SCHEMES, Recipe
from passes.isolation import worker

Data = list[dict[str, Array]]

LEAST = {
    "int8": 28,
    "int8-pow2": 24,
    "uint8": 28,
    "int16": 34,
    "fp8": 14,
    "bf16": 40,
    "bfp16": 28,
    "mxfp4": 6,
    "int4-weights": 15,
}
"""Decibels of signal over noise that each scheme must leave: 6 a bit of the mantissa, less what a few layers add up.
ONNX Runtime's scales of float8 are those of a standard deviation, and cost some more."""
PAIRS = [(quantizer, name) for quantizer in QUANTIZERS for name in SCHEMES]
POSSIBLE = [(quantizer, name) for quantizer, name in PAIRS if quantizer not in SCHEMES[name].refusals]
IMPOSSIBLE = [(quantizer, name) for quantizer, name in PAIRS if quantizer in SCHEMES[name].refusals]


def operators(model: ir.Model) -> Counter[str]:
    return Counter(f"{node.domain}::{node.op_type}".removeprefix("::") for node in model.graph)


def scales(model: ir.Model, operator: str) -> list[Array]:
    values = [node.inputs[1] for node in model.graph if node.op_type == operator]
    return [value.const_value.numpy() for value in values if value is not None and value.const_value is not None]


def with_weights(text: str, **shapes: tuple[int, ...]) -> ir.Model:
    random = np.random.default_rng(0)
    model = ir.from_onnx_text(text)
    for name, shape in shapes.items():
        array = random.standard_normal(shape).astype(np.float32)
        value = next(given for node in model.graph for given in node.inputs if given and given.name == name)
        value.const_value = ir.Tensor(array, name=name)
        model.graph.register_initializer(value)
    return model


@pytest.mark.parametrize(("quantizer", "scheme"), POSSIBLE)
def test_every_scheme_runs_and_stays_near_float(
    source: Path, data: Data, tmp_path: Path, quantizer: str, scheme: str
) -> None:
    out = tmp_path / "out.onnx"
    stages: list[str] = []
    made = onnx_bridge.quantize(source, out, with_=quantizer, scheme=scheme, calibration=data, progress=stages.append)
    (output,) = made.deviations
    assert output.sqnr_db is not None
    assert LEAST[scheme] < output.sqnr_db < 90
    assert output.max_abs < output.largest
    assert made.samples == 16
    assert f"quantize to {scheme}{' on 16 samples in 8 batches' * SCHEMES[scheme].calibrated}" in stages
    counted = [stage.partition(",")[0] for stage in stages if stage.startswith("calibrate")]
    if SCHEMES[scheme].calibrated:
        assert counted[-8:] == [f"calibrate: sample {number} of 8" for number in range(1, 9)]
    written = models.load(out)
    assert operators(written)["BatchNormalization"] == 0  # folded before, or it would run in float
    x = data[0]["x"]
    expected = Reference(source).run({"x": x})["y"]
    found = Reference(written).run({"x": x})["y"]
    assert isinstance(expected, np.ndarray)
    assert isinstance(found, np.ndarray)
    assert 0 < np.abs(found - expected).max() <= output.max_abs * 1.000001


@pytest.mark.parametrize(("quantizer", "scheme"), IMPOSSIBLE)
def test_unsupported_schemes_are_errors_of_one_sentence(
    source: Path, data: Data, tmp_path: Path, quantizer: str, scheme: str
) -> None:
    with pytest.raises(InputError, match="cannot do it: ") as caught:
        onnx_bridge.quantize(source, tmp_path / "out.onnx", with_=quantizer, scheme=scheme, calibration=data)
    assert caught.value.hint is not None
    assert caught.value.hint.endswith("can")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("scheme", [name for name, each in SCHEMES.items() if not each.channels])
def test_schemes_without_scales_per_channel(source: Path, data: Data, scheme: str) -> None:
    able = next(each for each in QUANTIZERS if each not in SCHEMES[scheme].refusals)
    with pytest.raises(InputError, match="no scales per channel"):
        onnx_bridge.quantize(source, with_=able, scheme=scheme, calibration=data, per_channel=True)


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_scales_per_channel_are_more_accurate(source: Path, data: Data, quantizer: str) -> None:
    one, many = (
        onnx_bridge.quantize(source, with_=quantizer, calibration=data, per_channel=each) for each in (False, True)
    )
    assert many.per_channel
    assert (many.deviations[0].sqnr_db or 0) > (one.deviations[0].sqnr_db or 0)
    lengths = {
        value.const_value.size
        for node in many.model.graph
        if node.op_type == "DequantizeLinear"
        and (value := node.inputs[1]) is not None
        and value.const_value is not None
    }
    assert 8 in lengths


def test_scales_that_are_powers_of_two(source: Path, data: Data) -> None:
    made = onnx_bridge.quantize(source, scheme="int8-pow2", calibration=data)
    found = scales(made.model, "QuantizeLinear")
    assert found
    assert all((np.exp2(np.round(np.log2(each))) == each).all() for each in found)


@pytest.mark.parametrize(("quantizer", "scheme"), POSSIBLE)
def test_nodes_and_operators_stay_in_float(source: Path, data: Data, quantizer: str, scheme: str) -> None:
    conv = ["first"] if scheme != "int4-weights" else []  # there it would stay anyway
    excluded = [*conv, "MatMul"] if conv else [next(n.name for n in models.load(source).graph if n.op_type == "MatMul")]
    made = onnx_bridge.quantize(source, with_=quantizer, scheme=scheme, calibration=data, exclude=excluded)
    assert len(made.excluded) == (3 if conv else 1)  # with its normalization the convolution goes by a new name
    assert set(made.excluded) - {node.name for node in made.model.graph} == set()
    for node in made.model.graph:
        if node.op_type == "MatMul" or (node.op_type == "Conv" and node.name in made.excluded):
            weight = node.inputs[1]
            assert weight is not None
            assert weight.producer() is None


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_the_ends_stay_in_float(source: Path, data: Data, quantizer: str) -> None:
    whole = onnx_bridge.quantize(source, with_=quantizer, calibration=data)
    made = onnx_bridge.quantize(source, with_=quantizer, calibration=data, float_ends=True)
    assert len(made.excluded) == 2
    assert made.kernels == {"float": whole.kernels.get("float", 0) + 2, "int8": whole.kernels["int8"] - 2}


def test_weights_of_four_bits_are_stored_in_four_bits(source: Path) -> None:
    for quantizer in QUANTIZERS:
        made = onnx_bridge.quantize(source, with_=quantizer, scheme="int4-weights")  # which needs no data
        assert operators(made.model)["com.microsoft::MatMulNBits"] == 2
        assert made.calibration == "seeded samples"


@pytest.mark.parametrize("quantizer", QUANTIZERS)
@pytest.mark.parametrize("exclude", [[], ["last"]])
def test_weights_of_gemm_are_stored_in_four_bits(quantizer: str, exclude: list[str]) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
        g (float[2,64] x) => (float[2,32] y) {
            [first] h = Gemm <transB = 1> (x, w, b)
            [last] y = Gemm (h, v)
        }"""
    model = with_weights(text, w=(64, 64), b=(64,), v=(64, 32))
    made = onnx_bridge.quantize(model, with_=quantizer, scheme="int4-weights", exclude=exclude)
    assert operators(made.model)["com.microsoft::MatMulNBits"] == 2 - len(exclude)
    assert operators(made.model)["MatMul"] == len(made.excluded) == len(exclude)
    assert 15 < min(deviation.sqnr_db or 0 for deviation in made.deviations) < 90


@pytest.mark.parametrize("quantizer", QUANTIZERS)
@pytest.mark.parametrize("softmax", ["Softmax", "own.Softmax"])
def test_an_old_opset_whose_types_are_not_written(data: Data, quantizer: str, softmax: str) -> None:
    """Quantizers need a newer one; what the conversion needs to know, as the rank of Softmax's input, is inferred."""
    text = """<ir_version: 8, opset_import: ["": 11, "own": 1]> g (float[2,3,8,8] x) => (float[2,4,6,6] y) {
            c = Conv (x, w) y = %s (c)
        } <domain: "own", opset_import: ["": 11]> Softmax (x) => (y) { y = Softmax (x) }"""
    made = onnx_bridge.quantize(with_weights(text % softmax, w=(4, 3, 3, 3)), with_=quantizer, calibration=data)
    assert made.kernels == {"int8": 1}
    assert 20 < min(deviation.sqnr_db or 0 for deviation in made.deviations) < 90


def test_a_state_of_zeros_needs_no_range_if_none_is_measured() -> None:
    """The first step of a recurrent network has no other."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2,64] x, float[2,32] s) => (float[2,32] y) {
            h = MatMul (x, w) y = Add (h, s)
        }"""
    model = with_weights(text, w=(64, 32))
    samples = [{"x": np.ones((2, 64), np.float32), "s": np.zeros((2, 32), np.float32)}]
    made = onnx_bridge.quantize(model, with_="ort", scheme="int4-weights", calibration=samples)
    assert operators(made.model)["com.microsoft::MatMulNBits"] == 1
    with pytest.raises(InputError, match="the input s is 0 in all samples"):
        onnx_bridge.quantize(model, with_="ort", calibration=samples)


def test_a_model_in_memory_is_left_as_it_is(source: Path, data: Data) -> None:
    model = models.load(source)
    for node in model.graph:
        node.name = None
    made = onnx_bridge.quantize(model, with_="ort", calibration=data, exclude=["MatMul"])
    assert made.path is None
    assert len(made.excluded) == 2
    assert all(node.name is None for node in model.graph)
    assert operators(model)["DequantizeLinear"] == 0


def test_a_folder_of_images_for_a_batch_that_is_open(source: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for index in range(3):
        pixels = random.integers(0, 256, (10, 12, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{index}.png")
    made = onnx_bridge.quantize(source, with_="ort", calibration=tmp_path)
    assert made.samples == 3
    assert any("calibrated on 3 images" in note for note in made.notes)


def test_softmax_stays_in_float_where_there_is_no_float8_for_it(data: Data) -> None:
    text = """<ir_version: 9, opset_import: ["": 19]> g (float[4,8] x) => (float[4,8] y)
        <float[8,8] w = {%s}> { h = MatMul (x, w) y = Softmax (h) }"""
    model = ir.from_onnx_text(text % ",".join(str(each % 7 / 7) for each in range(64)))
    samples = [{"x": each["x"].reshape(-1)[:32].reshape(4, 8)} for each in data]
    made = onnx_bridge.quantize(model, with_="ort", scheme="fp8", calibration=samples)
    assert any("Softmax stays in float" in note for note in made.notes)


@pytest.mark.parametrize(
    ("quantizer", "scheme", "near"),
    [("ort", "uint8", 0.03), ("quark", "int8", 0.03), ("quark", "bfp16", 1e-5)],
    ids=lambda each: str(each),
)
def test_results_convert_and_compute_the_same(
    source: Path, data: Data, tmp_path: Path, quantizer: str, scheme: str, near: float
) -> None:
    path = tmp_path / "model.onnx"
    made = onnx_bridge.quantize(source, path, with_=quantizer, scheme=scheme, calibration=data)
    bundle = onnx_bridge.convert(path, tmp_path / "bundle", target="ref", dims={"N": 2})
    expected, found = Reference(path).run(data[0])["y"], bundle(data[0])["y"]
    assert isinstance(expected, np.ndarray)
    assert isinstance(found, np.ndarray)
    assert np.abs(found - expected).max() <= near * made.deviations[0].largest  # a rounding tie may fall otherwise


METHODS_OF = [
    (quantizer, scheme, method)
    for quantizer in QUANTIZERS
    for scheme, methods in METHODS[quantizer].items()
    for method in methods
]


@pytest.mark.parametrize(("quantizer", "scheme", "method"), METHODS_OF)
def test_every_method_finds_ranges_that_suit_the_scheme(
    source: Path, data: Data, quantizer: str, scheme: str, method: str
) -> None:
    made = onnx_bridge.quantize(source, with_=quantizer, scheme=scheme, calibration=data, calibrate=method)
    assert made.method == method
    assert (made.deviations[0].sqnr_db or 0) > LEAST[scheme] - 8 * (scheme == "int8-pow2" and method == "minmax")
    powers = [np.exp2(np.round(np.log2(each))) == each for each in scales(made.model, "QuantizeLinear")]
    assert all(map(np.all, powers)) == (scheme == "int8-pow2")


def test_calibration_has_the_activations_of_one_sample_in_memory(source: Path) -> None:
    """All would be 24 MiB for each of the samples, together more than the limit."""
    for each in (worker.shared(), worker.shared("quantizers")):
        each.close()  # what earlier tests left there counts as well
    random = np.random.default_rng(0)
    data = [{"x": random.standard_normal((1500, 3, 8, 8)).astype(np.float32)} for _ in range(32)]
    made = onnx_bridge.quantize(source, with_="ort", calibration=data, calibrate="percentile", memory=0.5)
    assert (made.deviations[0].sqnr_db or 0) > LEAST["int8"]


@pytest.mark.parametrize(
    ("recipe", "module", "name"),
    [
        (Recipe("int8", method="percentile"), "calibration.collectors", "OverridedHistogramCollector.collect"),
        (Recipe("int8-pow2", method="mse"), "calibration.collectors", "PowOfTwoCollector.collect"),
        (
            Recipe("int8", method="minmax", algorithms=(("adaround", {"iterations": 2}),)),
            "algorithm.finetuning.fast_finetune",
            "optimize_module",
        ),
    ],
)
def test_what_fails_inside_quark_is_not_done_in_another_way(
    source: Path, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Recipe, module: str, name: str
) -> None:
    """Quark would take the next simpler method, or leave the layers as they are, and only log it."""
    task = Source(source, tmp_path / "out.onnx", (), large=False)
    quark.quantize(task, recipe, CalibrationReader(data, lambda _: None))

    def fail(*_: object, **__: object) -> None:
        raise MemoryError("no memory is left")

    holder: object = quark.load(f"quark.onnx.{module}")
    *holders, attribute = name.split(".")
    for each in holders:
        holder = getattr(holder, each)
    monkeypatch.setattr(holder, attribute, fail)
    with pytest.raises(InputError) as caught:
        quark.quantize(task, recipe, CalibrationReader(data, lambda _: None))
    assert isinstance(caught.value.__cause__, MemoryError)


def test_methods_find_different_ranges(source: Path, data: Data) -> None:
    for quantizer, methods in (("quark", ("minmax", "entropy")), ("ort", ("minmax", "percentile"))):
        one, other = (
            onnx_bridge.quantize(source, with_=quantizer, calibration=data, calibrate=method).deviations[0].sqnr_db
            for method in methods
        )
        assert one != other
    entropy = onnx_bridge.quantize(source, with_="ort", calibration=data, calibrate="entropy")
    assert any("minmax" in note for note in entropy.notes)


@pytest.mark.parametrize(
    ("quantizer", "scheme", "method", "hint"),
    [
        ("quark", "int8", "mse", "it has minmax"),  # its scales would be powers of two
        ("quark", "int8-pow2", "entropy", "it has mse, minmax"),  # its scales would not be
        ("quark", "uint8", "distribution", "it has"),
        ("ort", "int8", "mse", "mode, from a PyTorch module, can"),
        ("ort", "fp8", "minmax", "mode, from a PyTorch module, can"),
        ("ort", "int4-weights", "minmax", "leave it out"),
        ("quark", "bf16", "entropy", "leave it out"),
    ],
)
def test_methods_that_a_scheme_does_not_have(
    source: Path, data: Data, quantizer: str, scheme: str, method: str, hint: str
) -> None:
    with pytest.raises(InputError, match=f"no {method} for {scheme}") as caught:
        onnx_bridge.quantize(source, with_=quantizer, scheme=scheme, calibration=data, calibrate=method)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("quantizer", "scheme", "algorithm", "least"),
    [
        ("quark", "int8", "cle", -0.5),
        ("quark", "uint8", "cle", -0.5),
        ("quark", "int8", "smoothquant", -0.5),
        ("quark", "uint8", "smoothquant", 0.1),
        ("quark", "int8", "bias-correction", -0.5),
        ("quark", "uint8", "bias-correction", -0.5),
        ("quark", "int8", "adaround{iterations=20}", 0.1),
        ("quark", "int8-pow2", "cle{steps=2},adaquant{iterations=20}", 0.1),
        ("ort", "int4-weights", "hqq", 0.1),
        ("ort", "int4-weights", "k-quant", -3),
    ],
)
def test_what_algorithms_bring_stands_in_the_result(
    source: Path, data: Data, quantizer: str, scheme: str, algorithm: str, least: float
) -> None:
    made = onnx_bridge.quantize(source, with_=quantizer, scheme=scheme, calibration=data, algorithm=algorithm)
    names = [part.partition("{")[0] for part in algorithm.split(",")]
    assert [gain.algorithm for gain in made.gains] == ["none", *names]
    first, last = made.gains[0], made.gains[-1]
    assert last.outputs == made.deviations
    assert last.worst - first.worst > least
    assert len(last.layers) == len(first.layers) > 0
    assert any("worse" in note for note in made.notes) == (algorithm == "k-quant")
    powers = [np.exp2(np.round(np.log2(scale))) == scale for scale in scales(made.model, "QuantizeLinear")]
    assert all(map(np.all, powers)) == (scheme in ("int8-pow2", "int4-weights"))
    kernels = {product.kernel for product in onnx_bridge.forecast(made.model).products if product.operator == "Conv"}
    assert kernels == {"float" if scheme in ("uint8", "int4-weights") else "int8"}


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"algorithm": "cel"}, "does not exist"),
        ({"algorithm": "cle{alpha=1}"}, "no option alpha"),
        ({"algorithm": "cle{steps=-1}"}, "cannot be -1"),
        ({"algorithm": "adaround,adaquant"}, "only one"),
        ({"algorithm": "gptq"}, "has no gptq for int8"),
        ({"algorithm": "smoothquant", "with_": "ort"}, "ONNX Runtime.s quantizer has no smoothquant for int8"),
        ({"algorithm": "bias-correction", "calibrate": "entropy"}, "not corrected"),
        ({"algorithm": "bias-correction", "scheme": "int8-pow2"}, "no bias-correction for int8-pow2"),
        ({"algorithm": "bias-correction", "scheme": "int16"}, "no bias-correction for int16"),
        ({"algorithm": "cle", "scheme": "bf16"}, "no cle for bf16"),
    ],
)
def test_algorithms_that_do_not_go_together(source: Path, data: Data, options: dict[str, str], word: str) -> None:
    with pytest.raises(InputError, match=word):
        onnx_bridge.quantize(source, calibration=data, **options)  # type: ignore[arg-type]
