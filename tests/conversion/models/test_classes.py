"""Classifiers that end in ZipMap, as those of skl2onnx: an array of scores, and the classes in the manifest."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import onnx_bridge
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.model import io as models
from onnx_bridge.model.classes import classes_of
from onnx_bridge.reference.reference import Reference

WORDS, NUMBERS = ["cat", "ant", "bee"], [7, -1, 3]
X = np.array([[1, 2, 3, 4], [-1, 0, 2, 5]], np.float32)


def classifier(path: Path, *, words: bool, standard: bool = True) -> Path:
    """A linear classifier; without ONNX's own operators it is as CatBoost exports."""
    labels = {"classlabels_strings": WORDS} if words else {"classlabels_int64s": NUMBERS}
    ints = {"classlabels_ints": NUMBERS} if not words else labels
    weights = np.random.default_rng(0).standard_normal(15).tolist()
    nodes = [
        helper.make_node(
            "LinearClassifier",
            ["x"],
            ["label", "scores"],
            domain="ai.onnx.ml",
            coefficients=weights[:12],
            intercepts=weights[12:],
            post_transform="SOFTMAX",
            **ints,
        ),
        helper.make_node("ZipMap", ["scores"], ["probabilities"], domain="ai.onnx.ml", **labels),
    ]
    key = onnx.TensorProto.STRING if words else onnx.TensorProto.INT64
    maps = helper.make_map_type_proto(key, helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ()))
    outputs = [
        helper.make_tensor_value_info("label", key, ["n"]),
        helper.make_value_info("probabilities", helper.make_sequence_type_proto(maps)),
    ]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, ["n", 4])], outputs)
    opsets = [helper.make_opsetid("ai.onnx.ml", 3), *([helper.make_opsetid("", 17)] if standard else [])]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def maps(path: Path) -> list[dict[str | int, float]]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found: list[dict[str | int, float]] = session.run(["probabilities"], {"x": X})[0]
    return found


@pytest.mark.parametrize("words", [True, False])
@pytest.mark.parametrize("standard", [True, False])
def test_the_reference_has_the_numbers_of_the_maps(tmp_path: Path, words: bool, standard: bool) -> None:
    path = classifier(tmp_path / "m.onnx", words=words, standard=standard)
    classes = classes_of(models.load(path).metadata_props)["probabilities"]
    assert classes == (WORDS if words else NUMBERS)
    scores = Reference(path).run({"x": X})["probabilities"]
    assert isinstance(scores, np.ndarray)
    expected = [[row[each] for each in classes] for row in maps(path)]
    np.testing.assert_array_equal(scores, np.array(expected, np.float32))


def test_a_bundle_has_scores_and_classes(runtime: Runtime, tmp_path: Path) -> None:
    path = classifier(tmp_path / "m.onnx", words=False)
    bundle = onnx_bridge.convert(path, tmp_path / "out", dims={"n": 2}, target="ref")
    (_, info) = onnx_bridge.load(tmp_path / "out").manifest.outputs  # type: ignore[union-attr]
    assert info.classes == tuple(NUMBERS)
    assert info.shape == (2, 3)
    assert any("7, -1, 3" in note for note in bundle.manifest.notes)
    scores = bundle({"x": X})["probabilities"]
    np.testing.assert_allclose(scores, [[row[each] for each in NUMBERS] for row in maps(path)], rtol=1e-5)  # type: ignore[arg-type]
    assert onnx_bridge.check(bundle).passed
    cleaned = onnx.load(bundle.model_path)  # type: ignore[arg-type]
    assert json.loads(cleaned.metadata_props[0].value) == NUMBERS


def test_other_maps_are_refused(tmp_path: Path) -> None:
    """One that a node of the model takes again."""
    path = classifier(tmp_path / "m.onnx", words=True)
    model = onnx.load(path)
    model.graph.node[1].output[0] = "maps"
    model.graph.node.append(helper.make_node("Identity", ["maps"], ["probabilities"]))
    onnx.save(model, path)
    with pytest.raises(InputError, match="'probabilities' is of map type"):
        models.load(path)


@pytest.mark.parametrize("noted", ["not json", "[" * 100_000, "5", '{"a": 1}', "[1.5]", "[[1]]"])
def test_metadata_that_is_none_of_ours(noted: str) -> None:
    assert classes_of({"onnx_bridge.classes.y": noted, "onnx_bridge.classes.z": '["a", 1]'}) == {"z": ["a", 1]}
