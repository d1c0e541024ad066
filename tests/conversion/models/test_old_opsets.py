"""Models of opsets 1 to 6: what MIGraphX computes of every version of every operator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnx_bridge
from onnx_bridge.migraphx.runtime import Runtime
from tests.passes.harness import run
from tests.passes.rewriting.test_old_signatures import INPUTS, ROWS, model


@pytest.mark.slow
@pytest.mark.parametrize("opset", [1, 6])
def test_on_migraphx(runtime: Runtime, tmp_path: Path, opset: int) -> None:
    rows = [(old, new) for versions, old, new in ROWS if opset in versions]
    onnx.save(model([old for old, _ in rows], opset, ir_version=4), tmp_path / "old.onnx")
    bundle = onnx_bridge.convert(tmp_path / "old.onnx", tmp_path / "bundle", target="ref")
    expected = run(model([new for _, new in rows], 13), INPUTS)
    found = bundle(INPUTS)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_allclose(found[name], array, 1e-4, 1e-5, err_msg=rows[int(name[1:].partition("_")[0])][0])
