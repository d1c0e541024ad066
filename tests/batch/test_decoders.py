"""Decoders in a batch: the files of an encoder and a decoder are one model, whichever of them is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fixtures.models import decoder, encoder_decoder
from onnx_bridge.migraphx.runtime import Runtime
from tests.batch.inline import Inline
from tests.batch.requests import convert_all, job
from tests.batch.test_batch import statuses

LENGTH, SOURCE = 12, 4
REQUEST = job(target="ref", dims={"encoder_sequence_length": SOURCE}, decoder=True, max_length=LENGTH)


def other_encoder(folder: Path) -> None:
    """Change the weights of the encoder in a folder."""
    model = onnx.load(path := folder / "encoder_model.onnx")
    for weight in model.graph.initializer:
        array = numpy_helper.to_array(weight)
        if array.dtype == np.float32:
            weight.CopyFrom(numpy_helper.from_array(-array, weight.name))
    onnx.save(model, path)


@pytest.mark.parametrize("merged", [False, True])
def test_an_encoder_with_its_decoder_is_kept_until_one_of_them_changes(
    runtime: Runtime, tmp_path: Path, merged: bool
) -> None:
    path = encoder_decoder.write(tmp_path / "model", merged=merged)
    for expected in ("converted", "kept"):
        outcome = convert_all([path], tmp_path / "out", REQUEST, engine=Inline())
        assert set(statuses(outcome).values()) == {expected}
    other_encoder(path.parent)
    outcome = convert_all([path], tmp_path / "out", REQUEST, engine=Inline())
    assert set(statuses(outcome).values()) == {"converted"}


def test_one_decoder_behind_two_encoders_is_two_models(runtime: Runtime, tmp_path: Path) -> None:
    paths = [encoder_decoder.write(tmp_path / name) for name in ("one", "two")]
    other_encoder(paths[1].parent)
    outcome = convert_all(paths, tmp_path / "out", REQUEST, engine=Inline())
    assert set(statuses(outcome).values()) == {"converted"}
    manifests = [(tmp_path / "out" / name / "encoder" / "manifest.json").read_text() for name in statuses(outcome)]
    digests = {json.loads(each)["source"]["sha256"] for each in manifests}
    assert len(digests) == 2


def test_a_failure_behind_an_encoder_is_tried_again_once_that_is_mended(runtime: Runtime, tmp_path: Path) -> None:
    path = encoder_decoder.write(tmp_path / "model")
    encoder = path.with_name("encoder_model.onnx")
    content = encoder.read_bytes()
    encoder.write_bytes(b"no model")
    outcome = convert_all([path], tmp_path / "out", REQUEST, engine=Inline())
    assert not outcome.passed
    encoder.write_bytes(content)
    assert convert_all([path], tmp_path / "out", REQUEST, engine=Inline()).passed


def test_a_merged_decoder_is_kept(runtime: Runtime, tmp_path: Path) -> None:
    model = decoder.decoder()
    graph = model.graph
    (last,) = (node for node in graph.node if "logits" in node.output)
    last.output[:] = ["found"]
    branch = helper.make_graph([helper.make_node("Identity", ["found"], ["chosen"])], "branch", [], [])
    branch.output.append(helper.make_tensor_value_info("chosen", TensorProto.FLOAT, None))
    graph.input.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]))
    graph.node.append(helper.make_node("If", ["use_cache_branch"], ["logits"], then_branch=branch, else_branch=branch))
    onnx.save(model, path := tmp_path / "merged.onnx")
    for expected in ("converted", "kept"):
        request = job(target="ref", decoder=True, max_length=LENGTH)
        assert set(statuses(convert_all([path], tmp_path / "out", request, engine=Inline())).values()) == {expected}
