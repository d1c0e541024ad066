"""What other clean-up tools get wrong, the default pipeline gets right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnx_bridge
from fixtures.models.traps import TRAPS
from onnx_bridge.model import io as models
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples import inputs


@pytest.mark.parametrize("name", TRAPS)
def test_default_pipeline(tmp_path: Path, name: str) -> None:
    trap = TRAPS[name]
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    onnx.save(trap.model, before)
    onnx_bridge.clean(before, after)
    cleaned = onnx.load(after)
    onnx.checker.check_model(cleaned, full_check=True)
    assert trap.holds(cleaned), onnx.printer.to_text(cleaned)
    if not trap.deterministic:
        return
    for sample in inputs.generate(models.load(before), samples=3):
        expected, actual = Reference(before).run(sample), Reference(after).run(sample)
        assert actual.keys() == expected.keys()
        for output, array in expected.items():
            np.testing.assert_array_equal(actual[output], array)
            assert actual[output].dtype == array.dtype
