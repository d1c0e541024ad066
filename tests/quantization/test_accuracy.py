"""Digits are recognized as well wherever a quantized network runs, and nearly as well as in float."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fixtures.suites.accuracy import tasks
from fixtures.suites.accuracy.run import SUITE, Subject
from fixtures.suites.accuracy.versions import versions


class Digits(tasks.Digits):
    """Networks are trained half as long: one seed need not rank them."""

    epochs = (30, 15)


def test_accuracy_survives_every_step(tmp_path: Path) -> None:
    wanted = ("float", "PTQ int8, per channel (Quark on PyTorch)", "QAT int8-pow2, tqt (Quark on PyTorch)")
    subject = Subject(Digits(), tmp_path, seeds=(0,))
    original, *quantized = [subject.measure(version) for version in versions() if version.name in wanted]
    assert original.median > 0.9
    assert original.median == original.onnxruntime == original.ref == original.gpu
    assert set(original.kernels) == {"float"}
    assert len(quantized) == 2
    for each in quantized:
        assert set(each.kernels) == {"int8"}
        assert each.agrees
        assert each.median > original.median - 0.03  # of one seed; the suite judges the median of three
    held = replace(quantized[-1], least=0.9)
    rows = [held, replace(held, ref=0.9), replace(held, gpu=0.9), replace(held, least=1.0)]
    assert [row.held for row in rows] == [True, False, False, False]
    assert SUITE.counts(rows) == "accuracy: rows 4, held 1, missed 3"
