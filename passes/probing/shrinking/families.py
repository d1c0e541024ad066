"""Operators whose axes are more than sizes that are equal or not, in the words of `words`.

Everything else is left to the general default: products, elementwise operators, reductions and most others only ask
that some axes are equal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from passes.operators import WEIGHTS
from passes.probing.shrinking.operands import Operands
from passes.probing.shrinking.sizes import Rule
from passes.probing.shrinking.words import Family


def _grouped(operands: Operands) -> dict[str, Rule]:
    """Require at least two channels per group."""
    return {} if operands.integer("group", 1) == 1 else {"g": Rule(least=2), "m": Rule(least=2)}


def _windows(operands: Operands, weight: int | None = None) -> list[tuple[int, int]]:
    """Return the extent of the window along each spatial axis, with dilation, and the stride."""
    rank = max(operands.rank(0) - 2, 0)
    filters = operands.shape(weight) if weight is not None else None
    kernel = operands.integers("kernel_shape", (filters or (1,) * (rank + 2))[2:])
    strides, dilations = operands.integers("strides", [1] * rank), operands.integers("dilations", [1] * rank)
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=False)]
    return list(zip(spans, strides, strict=False))


def _window(operands: Operands, weight: int | None = None) -> dict[str, Rule]:
    """Require more than the window, two positions of it or more, and the same remainder by the stride."""
    windows = enumerate(_windows(operands, weight))
    return {f"s{axis}": Rule(max(span + stride, 3), math.lcm(stride, 2)) for axis, (span, stride) in windows}


def _overlapping(operands: Operands) -> dict[str, Rule]:
    """Require as many positions as overlap."""
    windows = enumerate(_windows(operands, 1))
    return {f"s{axis}": Rule(max(math.ceil(span / stride) + 1, 3)) for axis, (span, stride) in windows}


def _blocks(operands: Operands) -> dict[str, int]:
    """Return, of blocks with two numbers in a byte, whether the last one is alone."""
    whole, size = operands.integer("K"), operands.integer("block_size", 1)
    return {"odd": math.ceil(whole / size) % 2} if operands.integer("bits", 4) == 4 else {}


def _ratio(operands: Operands) -> dict[str, int]:
    """Return how many heads of queries share one of keys."""
    query, key = operands.shape(0), operands.shape(1)
    return {"ratio": query[1] // key[1]} if query and key and len(query) == len(key) == 4 and key[1] else {}


def _rotary(operands: Operands) -> dict[str, Rule]:
    """Require halves of heads to be multiples of 8, as ONNX Runtime does."""
    return {"e": Rule(8, 8)}


_KINDS = {"N": "batch", "C": "channels", "g": "channels", "m": "channels", "s": "spatial", "w": "spatial"}
_DATA, _FILTERS = "N group*g s...", "group*m g =..."
_GROUPS = "N num_groups*g s..."
_ONE_GROUP = {"group": 1}


def _convolution(axes: str) -> Family:
    def rules(operands: Operands) -> dict[str, Rule]:
        return _grouped(operands) | _window(operands, WEIGHTS.get(operands.node.op_type, 1))

    return Family(axes, "", rules, _KINDS, defaults=_ONE_GROUP)


def _recurrent(gates: int) -> tuple[Family, Family]:
    """Return the families of a recurrent operator, with steps first and with batches first."""
    weights = f"D {gates}*H I; D {gates}*H H; D {2 * gates}*H; N"
    return (
        Family(f"T N I; {weights}; D N H; D N H; D 3*H", attributes={"hidden_size": "H"}),
        Family(f"N T I; {weights}; N D H; N D H; D 3*H", attributes={"hidden_size": "H"}),
    )


_POOL = Family("N C s...", "", _window, _KINDS)
_NORMALIZED = Family("N C s...; C; C; C; C", kinds=_KINDS)
_MASK = "S P+L | . S P+L | . . S P+L"
_STANDARD_ATTENTION = (
    Family(f"N S q_num_heads*d; N L kv_num_heads*d; N L kv_num_heads*v; {_MASK}; N = P d; N = P v"),
    Family(f"N ratio*h S d; N h L d; N h L v; {_MASK}; N h P d; N h P v", numbers=_ratio),
)
_MULTI_HEAD = Family(
    "N S num_heads*d | N S = = d; N L num_heads*d | N L = = d | N = L d; N L num_heads*v | N = L v; "
    "num_heads*d+num_heads*d+num_heads*v; N | N P+L | N S P+L; . = S P+L; N = P d; N = P v",
    "N S num_heads*v; N = P+L d; N = P+L v",
)
_KEYS = "N L kv_num_heads*2*e"
_GROUPED_QUERY = Family(f"N S num_heads*2*e; {_KEYS}; {_KEYS}; N = P 2*e; N = P 2*e; N; =; M e; M e", rules=_rotary)
_ROTATED, _UNROTATED = "N H S 2*e | N S num_heads*2*e", "N H S = | N S ="
_ROTARY = (
    Family(f"{_ROTATED}; M e | N S e; M e | N S e; N S", rules=_rotary),
    Family(f"{_ROTATED}; N S | =; M e; M e", rules=_rotary),
    Family(f"{_UNROTATED}; M = | N S =; M = | N S =; N S"),
    Family(f"{_UNROTATED}; N S | =; M =; M ="),
)

FAMILIES: Mapping[str, tuple[Family, ...]] = {
    "Conv": (_convolution(f"{_DATA}; {_FILTERS}; group*m"),),
    "FusedConv": (_convolution(f"{_DATA}; {_FILTERS}; group*m; N group*m =..."),),
    "DeformConv": (_convolution(f"{_DATA}; {_FILTERS}; N = =...; group*m; N = =..."),),
    "ConvInteger": (_convolution(f"{_DATA}; {_FILTERS}; ; group*m"),),
    "QLinearConv": (_convolution(f"{_DATA}; ; ; {_FILTERS}; group*m; group*m; ; ; group*m"),),
    "ConvTranspose": (
        Family(
            f"{_DATA}; group*g m =...; group*m",
            rules=lambda operands: _grouped(operands) | _overlapping(operands),
            kinds=_KINDS,
            defaults=_ONE_GROUP,
        ),
    ),
    **dict.fromkeys(("AveragePool", "MaxPool", "LpPool"), (_POOL,)),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), (Family("N C s...", kinds=_KINDS),)),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), (_NORMALIZED,)),
    "LRN": (Family("N C s...", "", lambda operands: {"C": Rule(operands.integer("size") + 1)}, _KINDS),),
    "GroupNormalization": (
        Family(f"{_GROUPS}; num_groups*g; num_groups*g", _GROUPS, lambda _: {"g": Rule(2)}, _KINDS),
        Family(f"{_GROUPS}; =; =", _GROUPS, lambda _: {"g": Rule(2)}, _KINDS),
    ),
    "GroupNorm": (Family("N s... groups*g; groups*g; groups*g", "N s... groups*g", kinds=_KINDS),),
    "DepthToSpace": (Family("N blocksize*blocksize*C s...", kinds=_KINDS),),
    "SpaceToDepth": (Family("N C blocksize*s blocksize*w", kinds=_KINDS),),
    **dict.fromkeys(("RoiAlign", "MaxRoiPool"), (Family("N C s w; R =; R", kinds=_KINDS),)),
    "Col2Im": (Family("N = ="),),
    "MaxUnpool": (Family("N C =...; N C =..."),),
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "RNN": _recurrent(1),
    "DynamicQuantizeLSTM": (
        Family(
            "T N I; D I 4*H; D H 4*H; D 8*H; N; D N H; D N H; D 3*H" + "; D | D 4*H" * 4,
            attributes={"hidden_size": "H"},
        ),
    ),
    "MatMulNBits": (
        Family(
            ".... block_size*2*p+block_size*odd; O 2*p+odd =; O*2*p+O*odd | O 2*p+odd; O*p+O*odd | O p+odd; =; O",
            attributes={"K": "block_size*2*p+block_size*odd", "N": "O"},
            numbers=_blocks,
        ),
    ),
    "MatMulBnb4": (
        Family(
            ".... 2*half*b; O*half*b; O*b",
            attributes={"K": "2*half*b", "N": "O"},
            numbers=lambda operands: {"half": operands.integer("block_size", 2) // 2},
        ),
    ),
    "Attention": _STANDARD_ATTENTION,
    "MultiHeadAttention": (_MULTI_HEAD,),
    "RotaryEmbedding": _ROTARY,
    "GroupQueryAttention": (_GROUPED_QUERY,),
}
"""By operator name: the first family that fits."""
