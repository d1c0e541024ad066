"""What viewers of graphs open: overlays by the names of nodes, and partitions as a graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnx_bridge
from docs.generator.folder import detector
from onnx_bridge.cli.bundles.inspect import inspect
from onnx_bridge.migraphx.runtime import Runtime


@pytest.fixture(scope="module")
def folder(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("viewers")
    onnx.save(detector(np.random.default_rng(0)), folder / "detector.onnx")
    onnx_bridge.convert(folder / "detector.onnx", folder / "detector", target="ref")
    inspect(folder / "detector", model_explorer=folder / "of-bundle")
    onnx_bridge.model_explorer(folder / "detector.onnx", folder / "of-model")
    return folder


def overlay(path: Path) -> dict[str, Any]:
    """Return the values of an overlay, whose form is that of Model Explorer's `GraphNodeData`."""
    data = json.loads(path.read_text())
    assert {*data} == {"name", "results"}
    assert all({*result} == {"value", "bgColor"} for result in data["results"].values())
    return {node: result["value"] for node, result in data["results"].items()}


def test_overlays_of_a_bundle_name_the_nodes_of_its_file(folder: Path) -> None:
    nodes = {node.name for node in onnx.load(folder / "detector/detector.onnx").graph.node}
    sides = overlay(folder / "of-bundle/runs-on.json")
    assert sides["NonMaxSuppression_0"] == "ONNX Runtime"
    assert {*sides} <= nodes
    for kind in ("local", "accumulated"):
        errors = overlay(folder / f"of-bundle/{kind}-error-of-tolerance.json")
        assert {*errors} <= nodes
        assert 0 < max(errors.values()) < 1


def test_overlays_of_a_model_say_the_verdicts(folder: Path) -> None:
    assert overlay(folder / "of-model/verdict.json")["Mish_0"] == "rejected"
    assert overlay(folder / "of-model/planned-action.json")["NonMaxSuppression_0"] == "host partition"


def test_partitions_are_a_graph(folder: Path) -> None:
    model = onnx.load(folder / "of-bundle/partitions.onnx")
    onnx.checker.check_model(model)
    first, second = model.graph.node
    assert (first.op_type, second.op_type) == ("MIGraphX", "ONNX Runtime")
    assert {*second.input} & {*first.output}
    assert [output.name for output in model.graph.output] == ["features", "detections"]
