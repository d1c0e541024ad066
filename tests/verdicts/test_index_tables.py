"""Tables of indices that MIGraphX makes of Resize, and what takes their place."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from onnx_bridge.conversion.convert import convert
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.verdicts.index_tables import index_table
from passes.graphs.scopes import Scope
from passes.probing.probe import Probe
from passes.shapes import inference
from tests.passes.helpers import tiny


def resized(mode: str, size: int, *after: int) -> ir.Model:
    text = f'(float[1,64,{size},{size}] x) => (y) {{ y = Resize <mode = "{mode}"> (x, , , sizes) }}'
    model = tiny(text, sizes=np.array([1, 64, *after]))
    inference.infer(model)
    return model


def probe(mode: str, *sizes: int) -> Probe:
    model = resized(mode, *sizes)
    return Probe.of(list(model.graph), Scope(model, model.graph))


@pytest.fixture
def old(runtime: Runtime) -> Runtime:
    return dataclasses.replace(runtime, version="2.15.0")


def test_large_tables(old: Runtime) -> None:
    assert index_table(probe("linear", 40, 80, 80), old) == "it becomes a table of 1,638,400 indices"
    assert index_table(probe("nearest", 80, 160, 160), old) == "it becomes a table of 1,638,400 indices"


def test_small_tables(old: Runtime) -> None:
    assert index_table(probe("linear", 40, 64, 64), old) is None
    assert index_table(probe("linear", 80, 80, 81), old) is None  # interpolated along one axis
    assert index_table(probe("nearest", 40, 128, 128), old) is None


def test_shapes_that_no_resize_has(old: Runtime) -> None:
    model = resized("linear", 40, 80, 80)
    model.graph[0].outputs[0].shape = ir.Shape([64, 80, 80, 80, 80])
    assert index_table(Probe.of(list(model.graph), Scope(model, model.graph)), old) is None


def test_later_versions_make_none(old: Runtime) -> None:
    assert index_table(probe("linear", 40, 80, 80), dataclasses.replace(old, version="2.16.0")) is None


@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_the_program_is_as_small_with_any_runtime(tmp_path: Path, mode: str) -> None:
    bundle = convert(resized(mode, 81, 162, 162), tmp_path / "b", target="ref")
    assert sum(path.stat().st_size for path in bundle.path.glob("*.mxr")) < 200_000
    assert all(part.program is not None for part in bundle.manifest.partitions)
