"""The named pipelines on whole models: the same numbers, fewer nodes, and nothing left to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from passes.rewriting.base import Context
from passes.rewriting.pipeline import Pipeline
from tests.passes import random_models
from tests.passes.harness import interface, run

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
BITWISE = "inline-functions,fold-constants,fold-qdq,fold-constants,remove-identity,remove-dead,infer-shapes"
"""The passes of the default pipeline that must not change a bit."""


def clean(proto: onnx.ModelProto, spec: str) -> onnx.ModelProto:
    """Run a pipeline: each pass must leave itself nothing to do, and all a valid model of the same interface."""
    source = ir.from_proto(proto)
    for step in Pipeline.parse(spec).passes:
        source = step.run(source, Context()).model
        assert not step.run(source.clone(), Context()).rewrites, step.name
    cleaned = ir.to_proto(source)
    onnx.checker.check_model(cleaned, full_check=True)
    assert interface(cleaned) == interface(proto)
    return cleaned


def reference(proto: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    """The numbers before; ONNX Runtime loses what some branches take from outside, and such models say nothing."""
    try:
        return run(proto, feeds)
    except Exception:
        reject()


@pytest.mark.slow
@given(random_models.models(), st.booleans())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_random_models_bit_by_bit(proto: onnx.ModelProto, condition: bool) -> None:
    feeds = {"x": np.random.default_rng(0).standard_normal(random_models.X, np.float32), "c": np.array(condition)}
    expected = reference(proto, feeds)
    actual = run(clean(proto, BITWISE), feeds)
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array)


@pytest.mark.slow
@given(random_models.models(), st.booleans())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_random_models(proto: onnx.ModelProto, condition: bool) -> None:
    feeds = {"x": np.random.default_rng(0).standard_normal(random_models.X, np.float32), "c": np.array(condition)}
    expected = reference(proto, feeds)
    actual = run(clean(proto, "default"), feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(actual[name], array, 1e-4, 1e-4)


@pytest.mark.slow
@given(random_models.models())
@settings(max_examples=50, deadline=None, derandomize=True)
def test_random_models_frozen(proto: onnx.ModelProto) -> None:
    feeds = {"x": np.random.default_rng(0).standard_normal(random_models.X, np.float32), "c": np.array(True)}
    expected = reference(proto, feeds)
    cleaned = clean(proto, f"freeze-shapes{{dims={{n={random_models.X[0]}}}}},{BITWISE}")
    assert not {"Shape", "ConstantOfShape"} & {node.op_type for node in cleaned.graph.node}
    actual = run(cleaned, feeds)
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array)


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", ["bert", "vit", "resnet"])
def test_exported_networks(exported: Callable[..., Path], name: str, exporter: str, dynamic: bool) -> None:
    proto = onnx.load(exported(name, exporter, dynamic_batch=dynamic))
    random = np.random.default_rng(0)
    if name == "bert":
        feeds = {"input_ids": random.integers(0, 1000, (2, 16)), "attention_mask": random.integers(0, 2, (2, 16))}
    else:
        feeds = {"pixel_values": random.standard_normal((2, 3, 32, 32), np.float32)}
    expected = run(proto, feeds)["output"]
    cleaned = clean(proto, BITWISE)
    np.testing.assert_array_equal(run(cleaned, feeds)["output"], expected)
    assert len(cleaned.graph.node) <= len(proto.graph.node)
    if exporter == "torchscript" and name != "resnet":
        assert len(cleaned.graph.node) < 0.7 * len(proto.graph.node)
    cleaned = clean(proto, "default")
    np.testing.assert_allclose(run(cleaned, feeds)["output"], expected, 1e-4, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(LIGHT.glob("*.onnx")), ids=lambda path: path.stem)
def test_light_models(path: Path) -> None:
    """Their weights are ConstantOfShape, most of which are small enough to be folded."""
    source = ir.load(path)
    steps = Pipeline.parse(BITWISE).run(source)
    assert steps[-1].nodes_after < steps[0].nodes_before
    left = [skip.node for step in steps for skip in step.result.skips if "larger than max-bytes" in skip.reason]
    assert {node.name for node in source.graph if node.op_type == "ConstantOfShape"} == set(left)
    assert not any(step.result.rewrites for step in Pipeline.parse(BITWISE).run(source))
    assert {node.op_type for node in source.graph}.isdisjoint({"Identity", "Dropout", "Constant"})
    assert all(value.shape is not None and value.shape.is_static() for node in source.graph for value in node.outputs)
