"""Sizes of usual inputs, which are proposed for dimensions that nobody chose."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onnx_bridge.samples.dimensions import named_dims

_TEXT = re.compile(r"seq|len|past|token|text|time|step", re.IGNORECASE)
_SOUND = re.compile(r"audio|sample|sound|wave|speech", re.IGNORECASE)
_TOKENS, _PIXELS, _VOXELS, _AMPLITUDES = 128, 224, 32, 16_000
_COARSE = 256
"""Pixels that fit strides of 64 and more, of which 224 is no multiple, in networks that add what they halved."""
_HALVINGS = 5
"""The most times that typical sizes are halved to try smaller ones."""


def typical_sizes(inputs: Iterable[ir.Value], names: Iterable[str]) -> Iterator[dict[str, int]]:
    """Yield typical sizes of some dimensions, then others; a dimension without a name is ``input[axis]``."""
    places = {dim: value for value in inputs for dim in named_dims(value) or ()}
    largest = {name: _typical(name, places) for name in names}
    yield largest
    if _PIXELS in largest.values():
        yield {name: _COARSE if size == _PIXELS else size for name, size in largest.items()}
    for halvings in range(1, _HALVINGS):
        yield {name: max(1, size >> halvings) for name, size in largest.items()}


def nobody_chose(names: Sequence[str]) -> str:
    """Return the sentence of an error that asks for the sizes of some dimensions."""
    return f"nobody chose the size{'s' * (len(names) > 1)} of {', '.join(names)}"


def _typical(name: str, places: Mapping[Any, ir.Value]) -> int:
    value = places.get(name)
    dims = () if value is None else named_dims(value) or ()
    if len(dims) > 3 and not _TEXT.search(name):
        return _PIXELS if len(dims) == 4 else _VOXELS
    is_last = not dims or name == dims[-1]  # frames have features behind
    return _AMPLITUDES if is_last and _SOUND.search(f"{name} {value and value.name}") else _TOKENS
