"""The axes of operators in the words of `words`: true of every node that computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from passes.shapes.axes.words import Axes, Dims, Numbers


def _recurrent(gates: int) -> tuple[Axes, Axes]:
    """Return the axes of a recurrent operator, with steps first and with batches first."""
    weights = f"D {gates}*H I; D {gates}*H H; D {2 * gates}*H; B"
    size = {"hidden_size": "H"}
    return (
        Axes(f"T B I; {weights}; D B H; D B H; D 3*H", attributes=size, when={"layout": 0}),
        Axes(f"B T I; {weights}; B D H; B D H; D 3*H", attributes=size, when={"layout": 1}),
    )


def _without_past(index: int, shapes: Sequence[Dims | None]) -> Numbers:
    """Return the number of keys in the cache, an input, if it is omitted."""
    return {} if len(shapes) > index and shapes[index] else {"P": 0}


def _ratio(attributes: Numbers, shapes: Sequence[Dims | None]) -> Numbers:
    """Return how many heads of queries share one of keys."""
    heads = [shape[1] for shape in shapes[:2] if shape and len(shape) == 4 and isinstance(shape[1], int)]
    ratio = {"ratio": heads[0] // heads[1]} if len(heads) == 2 and heads[1] else {}
    return {**ratio, **_without_past(4, shapes)}


def _packed_heads(attributes: Numbers, shapes: Sequence[Dims | None]) -> Numbers:
    """Return the number of heads in the first input, which has those of keys and values, too, if they are omitted."""
    is_packed = len(shapes) < 2 or not shapes[1]
    packed = 2 * attributes.get("kv_num_heads", 0) if is_packed else 0
    return {"heads": attributes.get("num_heads", 0) + packed}


_DATA, _FILTERS = "N group*g s...", "group*m g =..."
_NORMALIZED = Axes("N C s...; C; C; C; C")
_MASK = "~S ~P+L | . ~S ~P+L | . . ~S ~P+L"
_KEYS = "B L kv_num_heads*2*e"
_CACHE = "B kv_num_heads P 2*e"

AXES: Mapping[str, tuple[Axes, ...]] = {
    "Conv": (Axes(f"{_DATA}; {_FILTERS}; group*m"),),
    "FusedConv": (Axes(f"{_DATA}; {_FILTERS}; group*m; N group*m =..."),),
    "DeformConv": (Axes(f"{_DATA}; {_FILTERS}; N = =...; group*m; N = =..."),),
    "ConvInteger": (Axes(f"{_DATA}; {_FILTERS}; ; ~group*m"),),
    "QLinearConv": (Axes(f"{_DATA}; ; ; {_FILTERS}; ~group*m; ~group*m; ; ; group*m"),),
    "ConvTranspose": (Axes(f"{_DATA}; group*g m =...; group*m"),),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), (_NORMALIZED,)),
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "RNN": _recurrent(1),
    "DynamicQuantizeLSTM": (
        Axes(
            "T B I; D I 4*H; D H 4*H; D 8*H; B; D B H; D B H; D 3*H" + "; D | D 4*H" * 4,
            attributes={"hidden_size": "H"},
        ),
    ),
    "Attention": (
        Axes(
            "B S q_num_heads*d; B L kv_num_heads*d; B L kv_num_heads*v; "
            f"{_MASK}; B kv_num_heads P d; B kv_num_heads P v",
            numbers=lambda attributes, shapes: _without_past(4, shapes),
        ),
        Axes(f"B ratio*h S d; B h L d; B h L v; {_MASK}; B h P d; B h P v", numbers=_ratio),
    ),
    "com.microsoft.Attention": (
        Axes(
            "B S I; I 3*num_heads*d; 3*num_heads*d; . | B P+S | B S P+S; 2 B num_heads P d; . = S P+S",
            numbers=lambda attributes, shapes: _without_past(4, shapes),
            when={"qkv_hidden_sizes": None},
        ),
    ),
    "MultiHeadAttention": (
        Axes(
            "B S num_heads*d | B S = = d; B L num_heads*d | B L = = d | B = L d; B L num_heads*v | B = L v; "
            "num_heads*d+num_heads*d+num_heads*v; . | B P+L | B S P+L; . = S P+L; B num_heads P d; B num_heads P v",
            "B S num_heads*v; B = P+L d; B = P+L v",
            numbers=lambda attributes, shapes: _without_past(6, shapes),
        ),
    ),
    "GroupQueryAttention": (
        Axes(f"B S heads*2*e; {_KEYS}; {_KEYS}; {_CACHE}; {_CACHE}; B; =; M e; M e", numbers=_packed_heads),
    ),
}
"""By operator, behind its domain if another one has the same name; if a node suits several, the first that fits."""
