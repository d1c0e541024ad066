"""Replace linear layers of ``torch.ao.quantization.quantize_dynamic`` by operators that can be exported.

    quantized::linear_dynamic(x)   =   F.linear(dequantize(quantize(x, s, z)), dequantize(W), b),   s, z = extremes of x

Their weights are packed for the kernels of one machine, which no exporter can read. A replacement computes the same
with the operators of PT2E: 8-bit integers (7-bit except on qnnpack, as in its kernels), and exact sums of products.

Skips: LSTM and GRU, whose kernels do not document their rounding.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F

_PACKED = "torch.ao.nn.quantized.dynamic"
_QUANTIZED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")


def is_packed(module: nn.Module) -> bool:
    """Return whether a module is one of torch's eager quantized modules, which are for inference only."""
    return any(kind.__module__.startswith(_QUANTIZED) for kind in type(module).__mro__)


def is_dynamic_linear(module: nn.Module) -> bool:
    """Return whether a module is such a linear layer."""
    kind, packed = type(module), cast(Any, module)
    return kind.__module__.startswith(_PACKED) and kind.__name__ == "Linear" and packed.weight().dtype == torch.qint8


class DynamicLinear(nn.Module):
    """The replacement of one layer."""

    bias: torch.Tensor | None

    def __init__(self, packed: Any) -> None:
        super().__init__()
        import torch.ao.quantization.fx._decomposed  # registers the operators

        weight = packed.weight()
        per_channel = weight.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric)
        scales = weight.q_per_channel_scales() if per_channel else torch.tensor([weight.q_scale()])
        zeros = weight.q_per_channel_zero_points() if per_channel else torch.tensor([weight.q_zero_point()])
        self.register_buffer("integers", weight.int_repr())
        self.register_buffer("scales", scales.expand(len(weight)).float())
        self.register_buffer("zeros", zeros.expand(len(weight)).long())
        self.register_buffer("bias", None if packed.bias() is None else packed.bias().detach())
        self.highest = 255 if torch.backends.quantized.engine == "qnnpack" else 127

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ops, eps = torch.ops.quantized_decomposed, torch.finfo(torch.float32).eps
        scale, zero = ops.choose_qparams.tensor(x, 0, self.highest, eps, torch.uint8)
        x = ops.quantize_per_tensor.tensor(x, scale, zero, 0, self.highest, torch.uint8)
        x = ops.dequantize_per_tensor.tensor(x, scale, zero, 0, self.highest, torch.uint8)
        weight = ops.dequantize_per_channel(self.integers, self.scales, self.zeros, 0, -128, 127, torch.int8)
        return F.linear(x, weight, self.bias)
