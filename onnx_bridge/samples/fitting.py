"""The way in which an array that does not fit an input can be made to: images above all, whose layouts vary.

    [32, 32, 3] of bytes, for float32 [1, 3, 32, 32]    →    np.moveaxis(x[None], -1, -3).astype(np.float32) / 255

Axes are counted from the end, so that it is right for several samples that are stacked as well.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onnx_bridge.core.values import Array
from onnx_bridge.samples.dimensions import Dim

_BATCH, _CHANNEL = "the batch axis is missing", "the channel axis is missing"
_NEW_AXES: Mapping[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "": ((), ()),
    "[None]": ((0,), (_BATCH,)),
    "[:, None]": ((1,), (_CHANNEL,)),
    "[..., None]": ((-1,), (_CHANNEL,)),
    "[None, None]": ((0, 1), (_BATCH, _CHANNEL)),
    "[None, ..., None]": ((0, -1), (_BATCH, _CHANNEL)),
}
"""The expression of new axes: which these are, and what an array without them lacks."""


def fitting(name: str, array: Any, shape: Sequence[Dim] | None, dtype: np.dtype[Any]) -> tuple[list[str], str] | None:
    """Return what an array of a name lacks to fit a shape and a dtype, in words, and the expression that has it."""
    if not isinstance(array, np.ndarray) or shape is None or not {array.dtype.kind, dtype.kind} <= {*"fiub"}:
        return None
    layouts = (layout for layout in _layouts(name, array, len(shape)) if _fits(layout[2][1:], shape[1:]))
    lacks, expression, _ = next(layouts, ([], "", ()))
    if not expression:
        return None
    if array.dtype != dtype:
        if dtype.kind != "f" and (dtype.kind, array.dtype.kind) not in (("i", "i"), ("i", "u")):
            return None
        expression += f".astype(np.{dtype.name})"
        if array.dtype == np.uint8 and len(shape) > 2:
            expression += " / 255"
            lacks = [*lacks, "pixels of bytes are usually divided by 255, and normalized as in training"]
    return (lacks, expression) if expression != name else None


def _fits(sizes: Sequence[int], shape: Sequence[Dim]) -> bool:
    return all(dim in (size, None) or isinstance(dim, str) for dim, size in zip(shape, sizes, strict=True))


def _layouts(name: str, array: Array, rank: int) -> Iterator[tuple[list[str], str, tuple[int, ...]]]:
    """Yield the shapes of an array with new axes, and channels at the other end, in words and as expressions."""
    for index, (axes, lacks) in _NEW_AXES.items():
        if array.ndim + len(axes) != rank:
            continue
        expanded = np.expand_dims(array, axes)
        yield [*lacks], name + index, expanded.shape
        for place, *way in (("last", -1, 1 - rank), ("first", 1 - rank, -1), ("last", -1, -rank), ("first", -rank, -1)):
            if rank > 2:
                moved = f"np.moveaxis({name}{index}, {way[0]}, {way[1]})"
                yield [*lacks, f"the channels are {place}"], moved, np.moveaxis(expanded, *way).shape


def fitting_command(path: Path, expressions: Mapping[str, str]) -> str:
    """Return the line to type that writes the arrays of a file, called ``x``, beside it so that they fit."""
    file, out = json.dumps(str(path)), json.dumps(str(path.with_stem(f"{path.stem}-fitting")))
    code = f"x = np.load({file}); np.save({out}, {next(iter(expressions.values()))})"
    if path.suffix == ".npz":
        assigned = "; ".join(f"x[{json.dumps(name)}] = {expression}" for name, expression in expressions.items())
        code = f"x = dict(np.load({file})); {assigned}; np.savez({out}, **x)"
    return shlex.join(["python3", "-c", f"import numpy as np; {code}"])
