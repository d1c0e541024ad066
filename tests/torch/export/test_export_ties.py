"""Exports of modules that choose between values that tie: what they compute is not determined, and faults are found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onnx_bridge.core.errors import InputError
from onnx_bridge.torch.export.export import export


class Chooser(nn.Module):
    """Takes the rows of the largest scores; two scores differ by rounding alone, and PyTorch's own is nudged."""

    def __init__(self, nudge: float, shift: float = 0.0) -> None:
        super().__init__()
        self.nudge, self.shift = nudge, shift

    def forward(self, x: Tensor) -> Tensor:
        exporting = torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export()
        scores = x.sum(1)
        scores = scores + torch.tensor([0.0, 0.0 if exporting else self.nudge, 0.0, 0.0])
        rows = x[torch.topk(scores, 2).indices]
        return rows + (self.shift if exporting else 0.0)


TIED = torch.tensor([[2.0, 1.0, 3.0], [3.0, 2.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_a_tie_is_no_fault_of_the_export(exporter: Any) -> None:
    exported = export(Chooser(1e-6), TIED, exporter=exporter)
    (output,) = exported.comparisons[0].outputs
    assert not output.passed
    assert output.undetermined is not None
    assert "TopK" in output.undetermined
    assert any("TopK" in note for note in exported.notes)


def test_a_choice_between_values_that_differ_is_a_fault() -> None:
    with pytest.raises(InputError, match="ONNX Runtime differs from PyTorch on the given arguments"):
        export(Chooser(0.5), TIED)


def test_a_fault_behind_a_tie_is_found() -> None:
    with pytest.raises(InputError, match="ONNX Runtime differs from PyTorch on the given arguments"):
        export(Chooser(1e-6, shift=0.1), TIED)


class Detector(Chooser):
    """Chooses rows by the largest of their scores, as RT-DETR does, whose own places nobody reads, or are returned."""

    def __init__(self, nudge: float, shift: float = 0.0, *, returns_classes: bool = False) -> None:
        super().__init__(nudge, shift)
        self.returns_classes = returns_classes

    def forward(self, x: Tensor) -> Any:
        best = x.max(-1)
        rows = super().forward(x + best.values[:, None])
        return (rows, best.indices) if self.returns_classes else rows


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("returns_classes", [False, True])
def test_a_largest_value_whose_place_is_not_read_is_no_choice(exporter: Any, returns_classes: bool) -> None:
    exported = export(Detector(1e-6, returns_classes=returns_classes), TIED, exporter=exporter)
    output = exported.comparisons[0].outputs[0]
    assert output.undetermined is not None
    assert "TopK" in output.undetermined


def test_a_fault_behind_a_tie_and_a_largest_value_is_found() -> None:
    with pytest.raises(InputError, match="ONNX Runtime differs from PyTorch on the given arguments"):
        export(Detector(1e-6, shift=0.1), TIED)


class InPlace(Chooser):
    """Changes its scores, and the places, after the choice."""

    def forward(self, x: Tensor) -> Tensor:
        exporting = torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export()
        scores = x.sum(1) + torch.tensor([0.0, 0.0 if exporting else self.nudge, 0.0, 0.0])
        indices = torch.topk(scores, 2).indices
        rows = x[indices]
        if not exporting:
            scores.mul_(-1)
            indices.add_(1)
        return rows


def test_what_is_changed_in_place_after_a_choice() -> None:
    exported = export(InPlace(1e-6), TIED, exporter="torchscript")
    assert exported.comparisons[0].outputs[0].undetermined is not None
