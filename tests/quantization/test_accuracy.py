"""Digits are recognized as well wherever a quantized network runs, and nearly as well as in float."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fixtures.suites import accuracy


def test_accuracy_survives_every_step(tmp_path: Path) -> None:
    wanted = ("float", "PTQ int8, per channel", "QAT int8-pow2, TQT")
    versions = [each for each in accuracy.VERSIONS if each.name in wanted]
    assert len(versions) == 3
    original, *quantized = accuracy.measure(tmp_path, versions, seeds=(0,))
    assert original.torch > 0.9
    assert original.torch == original.onnxruntime == original.ref == original.gpu
    assert set(original.kernels) == {"float"}
    for each in quantized:
        assert set(each.kernels) == {"int8"}
        assert each.held
    assert accuracy.SUITE.counts([original, *quantized]) == "accuracy: rows 3, held 3, missed 0"
    assert not replace(quantized[-1], ref=0.9).held
    assert not replace(quantized[-1], least=1.0).held
