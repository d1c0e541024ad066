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
