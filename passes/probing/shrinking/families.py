"""Operators whose axes are more than sizes that are equal or not, and the sizes that select their behaviour.

Everything else is left to the general default: products, elementwise operators, reductions and most others only ask
that some axes are equal. A node whose sizes do not fit the words of its operator does not shrink.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from passes.operators import WEIGHTS
from passes.probing.shrinking.operands import Operands
from passes.probing.shrinking.sizes import Rule
from passes.shapes.axes.table import AXES
from passes.shapes.axes.words import Axes, Dims, Numbers


def _grouped(operands: Operands) -> dict[str, Rule]:
    """Require at least two channels per group."""
    return {} if operands.integer("group", 1) == 1 else {"g": Rule(least=2), "m": Rule(least=2)}


def _windows(operands: Operands) -> list[tuple[int, int]]:
    """Return the extent of the window along each spatial axis, with dilation, and the stride."""
    rank = max(operands.rank(0) - 2, 0)
    filters = operands.shape(WEIGHTS.get(operands.node.op_type, 1)) or (1,) * (rank + 2)
    kernel = operands.integers("kernel_shape", filters[2:])
    strides, dilations = (operands.integers(name) or [1] * rank for name in ("strides", "dilations"))
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=False)]
    return list(zip(spans, strides, strict=False))


def _windowed(operands: Operands) -> dict[str, Rule]:
    """Require more than the window, two positions of it or more, and the same remainder by the stride."""
    windows = enumerate(_windows(operands))
    sizes = {f"s{axis}": Rule(max(span + stride, 3), math.lcm(stride, 2)) for axis, (span, stride) in windows}
    return _grouped(operands) | sizes


def _overlapping(operands: Operands) -> dict[str, Rule]:
    """Require as many positions as overlap."""
    windows = enumerate(_windows(operands))
    sizes = {f"s{axis}": Rule(max(math.ceil(span / stride) + 1, 3)) for axis, (span, stride) in windows}
    return _grouped(operands) | sizes


def _blocks(attributes: Numbers, shapes: Sequence[Dims | None]) -> Numbers:
    """Return, of blocks with two numbers in a byte, whether the last one is alone."""
    count = -(-attributes.get("K", 0) // attributes.get("block_size", 1))
    return {"odd": count % 2 if attributes["bits"] == 4 else 0}


KINDS = {"N": "batch", "C": "channels", "g": "channels", "m": "channels", "s": "spatial", "w": "spatial"}
"""The kinds of letters; equal sizes of different kinds may become different sizes."""
RULES: Mapping[str, Callable[[Operands], Mapping[str, Rule]]] = {
    **dict.fromkeys(("Conv", "ConvInteger", "DeformConv", "FusedConv", "QLinearConv"), _windowed),
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _windowed),
    "ConvTranspose": _overlapping,
    "GroupNormalization": lambda _: {"g": Rule(2)},
    "LRN": lambda operands: {"C": Rule(operands.integer("size") + 1)},
    # ONNX Runtime requires halves of heads to be multiples of 8
    **dict.fromkeys(("GroupQueryAttention", "RotaryEmbedding"), lambda _: {"e": Rule(8, 8)}),
}
"""The rules of letters, if the default does not do."""

_IMAGE = Axes("N C s...")
_GROUPS = "N num_groups*g s..."
_ROTATED, _UNROTATED = "B H S 2*e | B S num_heads*2*e", "B H S = | B S ="

FAMILIES: Mapping[str, tuple[Axes, ...]] = {
    **AXES,
    **dict.fromkeys(("AveragePool", "MaxPool", "LpPool"), (_IMAGE,)),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "LRN"), (_IMAGE,)),
    "GroupNormalization": (
        Axes(f"{_GROUPS}; num_groups*g; num_groups*g", _GROUPS),
        Axes(f"{_GROUPS}; =; =", _GROUPS),
    ),
    "GroupNorm": (Axes("N s... groups*g; groups*g; groups*g", "N s... groups*g"),),
    "DepthToSpace": (Axes("N blocksize*blocksize*C s..."),),
    "SpaceToDepth": (Axes("N C blocksize*s blocksize*w"),),
    **dict.fromkeys(("RoiAlign", "MaxRoiPool"), (Axes("N C s w; R =; R"),)),
    "Col2Im": (Axes("B = ="),),
    "MaxUnpool": (Axes("B D =...; B D =..."),),
    "MatMulNBits": (
        Axes(
            ".... block_size*2*p+block_size*odd; O 2*p+odd =; O*2*p+O*odd | O 2*p+odd; O*p+O*odd | O p+odd; =; O",
            attributes={"K": "block_size*2*p+block_size*odd", "N": "O"},
            numbers=_blocks,
        ),
    ),
    "MatMulBnb4": (
        Axes(
            ".... 2*half*b; O*half*b; O*b",
            attributes={"K": "2*half*b", "N": "O"},
            numbers=lambda attributes, shapes: {"half": attributes.get("block_size", 2) // 2},
        ),
    ),
    "RotaryEmbedding": (
        Axes(f"{_ROTATED}; M e | B S e; M e | B S e; B S"),
        Axes(f"{_ROTATED}; B S | =; M e; M e"),
        Axes(f"{_UNROTATED}; M = | B S =; M = | B S =; B S"),
        Axes(f"{_UNROTATED}; B S | =; M =; M ="),
    ),
}
"""By operator name: the first that fits."""
