"""Digits are recognized as well wherever a quantized network runs, and nearly as well as in float."""

from __future__ import annotations

from pathlib import Path

from fixtures.suites import accuracy


def test_accuracy_survives_every_step(tmp_path: Path) -> None:
    wanted = ("float", "PTQ int8, per channel", "QAT int8-pow2")
    versions = [each for each in accuracy.VERSIONS if each.name in wanted]
    assert len(versions) == 3
    original, *quantized = accuracy.measure(tmp_path, versions)
    assert original.torch > 0.9
    assert original.torch == original.onnxruntime == original.ref == original.gpu
    assert set(original.kernels) == {"float"}
    for each in quantized:
        assert set(each.kernels) == {"int8"}
        assert each.torch > original.torch - 0.03
        # a rounding tie that falls otherwise may turn a digit or two that were undecided
        assert abs(each.onnxruntime - each.torch) <= 3 / accuracy.HELD_OUT
        assert abs(each.ref - each.onnxruntime) <= 3 / accuracy.HELD_OUT
        assert abs(each.gpu - each.onnxruntime) <= 0.02
