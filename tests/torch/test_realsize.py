"""The suite of real sizes itself: its registry, and its judgement of right, wrong and refused bundles."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

import onnx_bridge
from fixtures.suites.realsize import judge, run
from fixtures.suites.realsize.quantized import SCHEMES
from onnx_bridge.migraphx.runtime import Runtime

WANTED = """
    unet unet-3d dcgan-generator espcn deeplab-head fpn-head resnet50 mobilenet-v2 efficientnet-b0 convnext-tiny
    yolo-head rt-detr wavenet wav2vec2-front-end whisper-encoder lstm bidirectional-gru bert-base vit-base swin-tiny
    llama-layer selective-scan stable-diffusion-block resnet18-qdq resnet18-qoperator bert-base-4-layers-qdq
    bert-base-4-layers-qoperator shuffle-then-transpose transposed-batch
"""
TEXT = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,3,6,6] x) => (float[1,4,6,6] y) {{
    c = Conv <pads = [1, 1, 1, 1]> (x, w) y = {activation} (c) }}"""
SAMPLE = {"x": np.random.default_rng(0).standard_normal((1, 3, 6, 6)).astype(np.float32)}


def model(path: Path, activation: str = "Relu") -> Path:
    proto = onnx.parser.parse_model(TEXT.format(activation=activation))
    weight = np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(proto, path)
    return path


def test_there_are_many_architectures_in_known_forms() -> None:
    known = run.load()
    assert len(known) >= 30
    assert set(WANTED.split()) <= set(known)
    assert {each.scheme for each in known.values()} == {"", *SCHEMES}
    assert all(name == each.name for name, each in known.items())
    assert any(each.network.products for each in known.values())


def test_weights_are_the_same_each_time_and_results_do_not_vanish() -> None:
    network = run.load()["espcn"].network
    first, arguments = network.make()
    second, _ = network.make()
    assert all((one == other).all() for one, other in zip(first.parameters(), second.parameters(), strict=True))
    assert first(*arguments.values()).detach().std() == pytest.approx(1, rel=0.01)


def test_a_bundle_that_agrees_is_what_convert_says(runtime: Runtime, tmp_path: Path) -> None:
    found = judge.judge(model(tmp_path / "m.onnx"), SAMPLE)
    assert (found.verdict, found.why, found.share) == ("proven", "", 1.0)
    assert found.error is not None
    assert found.error < 1e-5
    assert found.multiply_adds == 4 * 3 * 9 * 36
    assert found.runtime == runtime.version


def test_a_bundle_that_differs_is_wrong_whatever_convert_says(runtime: Runtime, tmp_path: Path) -> None:
    other = onnx_bridge.convert(model(tmp_path / "other.onnx", "Tanh"), tmp_path / "out", target="ref")
    found = judge.judge_bundle(other, model(tmp_path / "m.onnx"), SAMPLE)
    assert found.verdict == "wrong"
    assert found.why.startswith("y: ")


def test_what_convert_does_not_take_is_refused(runtime: Runtime, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"no model")
    found = judge.judge(path, SAMPLE)
    assert found.verdict == "refused"
    assert str(path) in found.why


def test_lines_and_sums() -> None:
    proven = judge.Outcome("proven", "", "2.14.0", 2_000_000, 1.0, 1e-6, 1.0, 2.0)
    wrong, refused = judge.Outcome("wrong", "y: differs"), judge.Outcome("refused", "no")
    shown = run.SUITE.line(run.Row("net", 1_500_000, proven, 4.0))
    assert shown.split() == ["net", "1.5M", "2M", "2.14.0", "100.0%", "1.0e-06", "1.0s", "2.0s", "4.0s", "proven"]
    assert run.SUITE.line(run.Row("net", 0, wrong, 4.0)).endswith("wrong: y: differs")
    outcomes = [proven, wrong, refused, judge.Outcome("witnessed"), judge.Outcome("unproven"), proven]
    rows = [run.Row("net", 0, outcome, 1.0) for outcome in outcomes]
    assert run.SUITE.counts(rows) == "realsize: proven 2, witnessed 1, unproven 1, wrong 1, of 6"


def test_rows_are_read_back() -> None:
    row = run.Row("net", 3, judge.Outcome("unproven", "too large", "2.14.0", 5, 0.9, None, 1.0, 2.0), 4.0)
    assert msgspec.convert({**row.__dict__, "outcome": row.outcome.__dict__}, run.Row) == row
