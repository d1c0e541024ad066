"""Gradients through MIGraphX are an error, not silently zero."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from onnx_bridge.core.errors import InputError


class _Computed(torch.autograd.Function):
    """An identity whose gradient is an error."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        what = "MIGraphX computes no gradients, and it computed this output"
        raise InputError(what, hint="call it under torch.no_grad(), or train the original module")


def without_gradients(outputs: Mapping[str, torch.Tensor], inputs: Iterable[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return outputs whose ``backward()`` is an error if an input requires gradients."""
    anchor = next((tensor for tensor in inputs if tensor.requires_grad), None) if torch.is_grad_enabled() else None
    if anchor is None:
        return dict(outputs)
    return {
        name: _Computed.apply(anchor, output)  # type: ignore[no-untyped-call]
        if output.is_floating_point() or output.is_complex()
        else output
        for name, output in outputs.items()
    }
