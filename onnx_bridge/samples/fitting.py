"""The way in which an array that does not fit an input can be made to: images above all, whose layouts vary.

    [32, 32, 3] of bytes, for float32 [1, 3, 32, 32]    →    np.moveaxis(x[None], -1, -3).astype(np.float32) / 255

Axes are counted from the end, so that it is right for several samples that are stacked as well.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnx_bridge.core.values import Array
from onnx_bridge.samples.roles import Dim

_BATCH, _CHANNEL = "the batch axis is missing", "the channel axis is missing"
_NEW_AXES: Mapping[str, tuple[tuple[int, ...], str]] = {
    "": ((), ""),
    "[None]": ((0,), _BATCH),
    "[:, None]": ((1,), _CHANNEL),
    "[..., None]": ((-1,), _CHANNEL),
    "[None, None]": ((0, 1), f"{_BATCH}, and {_CHANNEL}"),
    "[None, ..., None]": ((0, -1), f"{_BATCH}, and {_CHANNEL}"),
}
"""The expression of new axes: which these are, and what an array without them lacks."""


@dataclass(frozen=True)
class Fitting:
    """What an array lacks, in words, and the expression of numpy that has it."""

    words: str
    expression: str

    @classmethod
    def of(cls, name: str, array: Any, shape: Sequence[Dim] | None, dtype: np.dtype[Any]) -> Fitting | None:
        """Return how an array of a name can fit a shape and a dtype; None if it does, or nothing is known."""
        if not isinstance(array, np.ndarray) or shape is None or not {array.dtype.kind, dtype.kind} <= {*"fiub"}:
            return None
        layouts = (layout for layout in _layouts(name, array, len(shape)) if _fits(layout[2], shape))
        missing, expression, _ = next(layouts, ("", "", ()))
        if not expression:
            return None
        said = [missing] if missing else []
        if array.dtype != dtype:
            if dtype.kind != "f" and (dtype.kind, array.dtype.kind) not in (("i", "i"), ("i", "u")):
                return None
            expression += f".astype(np.{dtype.name})"
            if array.dtype == np.uint8 and len(shape) > 2:
                expression += " / 255"
                said.append("pixels of bytes are usually divided by 255, and normalized as in training")
        return cls(", and ".join(said), expression) if expression != name else None


def _fits(sizes: Sequence[int], shape: Sequence[Dim]) -> bool:
    """Return whether sizes fit a shape, apart from the batch."""
    return all(dim in (size, None) or isinstance(dim, str) for dim, size in zip(shape[1:], sizes[1:], strict=True))


def _layouts(name: str, array: Array, rank: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield the shapes of an array with new axes, and channels at the other end, in words and as expressions."""
    for expression, (axes, missing) in _NEW_AXES.items():
        if array.ndim + len(axes) != rank:
            continue
        expanded = np.expand_dims(array, axes)
        yield missing, name + expression, expanded.shape
        ways = ((-1, 1 - rank, "last"), (1 - rank, -1, "first"), (-1, -rank, "last"), (-rank, -1, "first"))
        for begin, end, place in ways if rank > 2 else ():
            shape = np.moveaxis(expanded, begin, end).shape
            words = ", and ".join(filter(None, (missing, f"the channels are {place}")))
            yield words, f"np.moveaxis({name}{expression}, {begin}, {end})", shape


def fitting_command(path: Path, fittings: Mapping[str, Fitting]) -> str:
    """Return the line to type that writes arrays that fit beside an ``.npz`` or ``.npy``; of this, the only one."""
    file, out = json.dumps(str(path)), json.dumps(str(path.with_stem(f"{path.stem}-fitting")))
    if path.suffix == ".npy":
        (fitting,) = fittings.values()
        code = f"x = np.load({file}); np.save({out}, {fitting.expression})"
    else:
        assigned = "; ".join(f"x[{json.dumps(name)}] = {fitting.expression}" for name, fitting in fittings.items())
        code = f"x = dict(np.load({file})); {assigned}; np.savez({out}, **x)"
    return shlex.join(["python3", "-c", f"import numpy as np; {code}"])
