"""The search for the most work in 8 bits at an accuracy (``quantize --min``)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import onnx_bridge
from fixtures.suites import assignment as suite
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array
from onnx_bridge.model import io as models
from onnx_bridge.quantization.assignment import share_in_8_bits
from onnx_bridge.reference.reference import Reference
from onnx_bridge.views.html.placement import page_of

Data = list[dict[str, Array]]


def sqnr(original: Path, quantized: Path | ir.Model, data: Data) -> float:
    pairs = [[Reference(model).run(sample)["y"] for sample in data] for model in (original, quantized)]
    expected, actual = (np.concatenate([np.asarray(array).ravel() for array in side]) for side in pairs)
    return float(10 * np.log10((expected**2).sum() / ((actual - expected) ** 2).sum()))


@pytest.mark.parametrize(("quantizer", "scheme", "least"), [("ort", "int8", 38), ("quark", "int8-pow2", 36)])
def test_the_accuracy_is_held_and_the_model_is_made_again(
    source: Path, data: Data, tmp_path: Path, quantizer: str, scheme: str, least: float
) -> None:
    out = tmp_path / "out.onnx"
    options = {"with_": quantizer, "scheme": scheme, "calibration": data}
    made = onnx_bridge.quantize(source, out, data=data, least={"sqnr": least}, **options)
    assignment = made.assignment
    assert assignment is not None
    assert assignment.points[0].scores[0].value < least <= sqnr(source, out, data)
    assert 0 < assignment.chosen.share < 1
    assert share_in_8_bits(models.load(out))[0] == assignment.chosen.share
    assert max(point.share for point in assignment.points if point.passed) == assignment.chosen.share
    again = onnx_bridge.quantize(source, exclude=assignment.exclude, **options)
    assert again.deviations == made.deviations
    assert assignment.runs <= 12
    assert f"{assignment.chosen.share:.1%}" in page_of(assignment, "out", {}).html()


def test_what_gains_nothing_stays_in_float(source: Path, data: Data) -> None:
    made = onnx_bridge.quantize(source, with_="ort", calibration=data, data=data, least={"cosine": 0.9997})
    assert made.assignment is not None
    assert made.assignment.chosen.share == 1
    assert set(made.assignment.exclude) == {"s", "p"}  # the sum and the pooling


def test_the_noise_of_a_product_is_that_of_quantizing_it_alone(source: Path, data: Data) -> None:
    made = onnx_bridge.quantize(source, with_="ort", calibration=data, data=data, least={"sqnr": 30})
    assert made.assignment is not None
    names = ["first", "second", "h", "y", "s", "p"]
    for name, result in (("second", "second"), ("h", "h"), ("first", "normal")):
        others = [other for other in names if other != name]
        alone = onnx_bridge.quantize(source, with_="ort", calibration=data, exclude=others)
        expected = -(alone.deviations[0].sqnr_db or 0.0)
        assert abs(10 * np.log10(made.assignment.noise[result]) - expected) < 6  # the quantizer rounds its results, too


def test_below_the_accuracy_nothing_is_written(source: Path, data: Data, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    for runs in (1, 3, 30):
        with pytest.raises(InputError, match="reaches sqnr 200; the nearest has"):
            onnx_bridge.quantize(source, out, with_="ort", calibration=data, data=data, least={"sqnr": 200}, runs=runs)
    labelled = [(sample, np.zeros(2, np.int64)) for sample in data]
    with pytest.raises(InputError, match="the float model itself has a top1 of"):
        onnx_bridge.quantize(source, out, with_="ort", calibration=data, data=labelled, least={"top1": 0.99})
    with pytest.raises(InputError, match="nothing would run in 8 bits"):
        onnx_bridge.quantize(source, out, scheme="int16", calibration=data, data=data, least={"sqnr": 20})
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.torch
def test_a_spread_network_needs_two_layers_in_float(tmp_path: Path) -> None:
    """`make suite NAME=assignment` compares five networks with the exhaustive search."""
    row = suite.compare(suite.NETWORKS[4], tmp_path, exhaustive=False)
    assert row.whole < suite.NETWORKS[4].least <= row.reached
    assert row.share > 0.8
    assert row.runs <= 4  # a fifth of the 24 of the exhaustive search
