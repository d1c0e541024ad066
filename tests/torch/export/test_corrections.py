"""Operators that torch.onnx translates wrongly or not at all: exported by dynamo, right by ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from onnx_bridge.reference.reference import Reference
from onnx_bridge.torch.export.export import export

aten = torch.ops.aten


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        super().__init__()
        self.function, self.arguments, self.options = function, arguments, options

    def forward(self, x: Tensor) -> Any:
        return self.function(x, *self.arguments, **self.options)


def assert_right(module: nn.Module, x: Tensor) -> None:
    exported = export(module, x, exporter="dynamo")
    assert len(exported.comparisons) == 2
    (name,) = (str(value.name) for value in exported.model.graph.inputs)
    x = x + 0.25
    found = list(Reference(exported.model).run({name: x.numpy()}).values())
    right = module(x)
    for one, other in zip(found, right if isinstance(right, tuple) else [right], strict=True):
        assert_close(torch.from_numpy(one).reshape(other.shape), other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize(("ignored", "weighted"), [(-100, True), (2, False), (2, True)])
def test_the_second_output_of_nll_loss_is_the_sum_of_weights(reduction: int, ignored: int, weighted: bool) -> None:
    target = torch.tensor([0, 2, 4, 2, 1, 2])
    weight = torch.linspace(0.2, 1.0, 5) if weighted else None
    assert_right(Calls(aten.nll_loss_forward.default, target, weight, reduction, ignored), torch.randn(6, 5))


def test_nll_loss_of_one_sample() -> None:
    assert_right(Calls(aten.nll_loss_forward.default, torch.tensor(2), None, 1, -100), torch.randn(5))


_DIMS = [(None, True), (None, False), (1, False)]
_ORDERS = [0, 0.5, 1, 2, 3, 4.3, -1, math.inf, -math.inf]


@pytest.mark.parametrize(
    ("order", "dim", "keep"), [*((2, *dim) for dim in _DIMS), *((order, [0, -1], True) for order in _ORDERS)]
)
def test_vector_norms(order: float, dim: Any, keep: bool) -> None:
    assert_right(Calls(torch.linalg.vector_norm, order, dim, keep), torch.rand(3, 4, 2) + 0.5)


@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "amin", "amax"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce_with_an_index_smaller_than_its_source(reduce: str, include_self: bool) -> None:
    index, source = torch.tensor([[0, 1, 2, 0, 0]]), torch.randn(2, 6)
    assert_right(Calls(aten.scatter_reduce.two, 0, index, source, reduce, include_self=include_self), torch.randn(3, 5))


def test_scatter_reduce_of_a_scalar() -> None:
    assert_right(Calls(aten.scatter_reduce.two, 0, torch.tensor(0), torch.tensor(2.0), "sum"), torch.tensor(1.5))


@pytest.mark.parametrize("scatter", [aten.scatter.src, aten.scatter_add.default])
def test_scatter_with_an_index_smaller_than_its_source(scatter: Any) -> None:
    assert_right(Calls(scatter, 1, torch.tensor([[0, 2], [4, 2]]), torch.randn(3, 3)), torch.randn(3, 5))


def test_the_mean_of_scattered_integers_is_refused() -> None:
    class Integers(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.scatter_reduce(0, torch.tensor([0, 0, 1]), torch.tensor([3, 4, 8]), "mean")

    with pytest.raises(Exception, match="rounded down"):
        export(Integers(), torch.tensor([1, 2, 3]), exporter="dynamo")


class Recurrent(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(5, 6, proj_size=3, **options)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Any:
        return self.lstm(x, (h, c))


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": False}],
    ids=["plain", "deep-bidirectional", "batch-first-without-bias"],
)
def test_lstm_with_projections(exporter: Any, options: dict[str, Any]) -> None:
    module = Recurrent(**options)
    count = (1 + module.lstm.bidirectional) * module.lstm.num_layers
    shape = (2, 4, 5) if module.lstm.batch_first else (4, 2, 5)
    arguments = torch.randn(shape), torch.randn(count, 2, 3), torch.randn(count, 2, 6)
    exported = export(module, arguments, exporter=exporter)
    assert len(exported.comparisons) == 2
    assert "LSTM" in {node.op_type for node in exported.model.graph.all_nodes()}
    assert dict(module.named_parameters()).keys() == dict(Recurrent(**options).named_parameters()).keys()


def test_lstm_with_projections_from_zero_states() -> None:
    class FromZero(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(5, 6, proj_size=3)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(x)[0]

    assert export(FromZero(), torch.randn(4, 2, 5)).exporter == "dynamo"
    assert export(FromZero(), torch.randn(4, 5)).exporter == "dynamo"
