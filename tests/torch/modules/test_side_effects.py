"""What a module does besides returning tensors, decisions on data, and exports in several threads."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.third_party import suppressed_output
from onnx_bridge.torch.export.export import export
from onnx_bridge.torch.modules.modules import inference_copy


class Deciding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x * 3


def test_branches_that_do_not_depend_on_the_order_of_values_are_found() -> None:
    with pytest.raises(InputError, match="torchscript: ONNX Runtime differs from PyTorch on other arguments"):
        export(Deciding(), torch.rand(2, 3))


class Counting(nn.Module):
    """Writes to buffers: one that later calls read, and one that they do not."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("last", torch.zeros(2, 3))
        self.register_buffer("flag", torch.tensor(False))
        self.reads = reads

    def forward(self, x: Tensor) -> Tensor:
        self.last.copy_(x)
        self.flag = ~self.flag
        if self.reads:
            self.calls += 1
        return x * 2 + self.last + self.calls


@pytest.mark.parametrize(("exporter", "reads"), [("dynamo", True), ("dynamo", False), ("torchscript", False)])
def test_buffers_are_restored_and_state_is_noted(exporter: Any, reads: bool) -> None:
    module = Counting(reads).eval()
    flag = module.flag
    exported = export(module, torch.randn(2, 3), exporter=exporter)
    assert not module.calls.any()
    assert not module.last.any()
    assert module.flag is flag
    if reads:
        (said,) = exported.changing
        assert said.startswith("the module writes to its buffers 'calls', 'last', 'flag', which a later call reads")
        assert said in exported.notes
    else:
        assert not exported.changing
        assert "the module writes to its buffers 'last', 'flag', and the graph does not" in exported.notes


def test_overlapping_threads_restore_the_state_of_the_process() -> None:
    before = (sys.stdout, sys.stderr, logging.root.manager.disable, torch.backends.mha.get_fastpath_enabled())
    module = nn.ReLU()
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    for stack in (first, second):  # as two threads would have it
        stack.enter_context(inference_copy(module))
        stack.enter_context(suppressed_output())
    first.close()
    assert sys.stdout is not before[0]
    second.close()
    assert before == (sys.stdout, sys.stderr, logging.root.manager.disable, torch.backends.mha.get_fastpath_enabled())


def test_exports_in_threads_are_independent() -> None:
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda size: export(nn.Linear(size, 2), torch.randn(2, size)), (3, 4, 5)))
    assert [each.exporter for each in made] == ["dynamo"] * 3


class Total(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        return x + 1, (x * torch.arange(4.0)).sum().detach().numpy()


def test_returned_values_that_differ_between_samples() -> None:
    exported = export(Total(), torch.randn(4), exporter="torchscript")
    (said,) = exported.changing
    assert "values that are not tensors differ between samples" in said
