"""Gradients end at what MIGraphX computes: asking for them is an error, and not silently zero."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from onnx_bridge.core.errors import InputError


class _Computed(torch.autograd.Function):
    """An identity that has no gradient."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        what = "MIGraphX computes no gradients, and the output was computed by it"
        raise InputError(what, hint="call it under torch.no_grad(), or train the module that it was made from")


def without_gradients(outputs: Mapping[str, torch.Tensor], inputs: Iterable[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Outputs that, where the inputs want gradients, say on ``backward()`` that there are none."""
    anchor = next((each for each in inputs if each.requires_grad), None) if torch.is_grad_enabled() else None
    if anchor is None:
        return dict(outputs)
    return {
        name: _Computed.apply(anchor, each)  # type: ignore[no-untyped-call]
        if each.is_floating_point() or each.is_complex()
        else each
        for name, each in outputs.items()
    }
