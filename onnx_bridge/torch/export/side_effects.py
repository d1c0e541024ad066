"""What a module does besides returning tensors, which a graph does not do.

It may write into its arguments and buffers, read in one call what it wrote in the one before, and return numbers and
objects that are no tensors. A graph has all of that as it was when it was made. Each is a sentence for the user; those
for which a later call returns something else are apart, as `Effects.changing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from onnx_bridge.core.values import Array
from onnx_bridge.reference.compare import compare
from onnx_bridge.torch.export.calls import Flat, eager, quiet, untouched
from onnx_bridge.torch.export.fingerprint import fingerprint
from onnx_bridge.torch.export.structure import Structure, constants
from onnx_bridge.torch.export.tensors import to_array

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Effects:
    """What a graph lacks.

    Attributes:
        changing: what makes the module return something else in another call, and is fixed in the graph.
        notes: the rest.
    """

    changing: tuple[str, ...]
    notes: tuple[str, ...]


def of_writing(
    flat: Flat, tensors: Tensors, expected: Mapping[str, Array], inputs: Sequence[str], buffers: Sequence[str]
) -> Effects:
    """What becomes of what it writes.

    Args:
        flat: the module.
        tensors: its arguments.
        expected: what it returns for them, in order.
        inputs: the names of the arguments that it writes into.
        buffers: the names of the buffers that it writes into.
    """
    notes = [f"it writes into {_listed('input', inputs)}, and the graph does not"] if inputs else []
    if not buffers:
        return Effects((), tuple(notes))
    what = f"it writes into {_listed('buffer', buffers)}"
    if _reads(flat, tensors, expected, buffers):
        return Effects((f"{what} what a later call reads: take that as an argument, and return it",), tuple(notes))
    return Effects((), (*notes, f"{what}, and the graph does not"))


def of_constants(results: Sequence[Structure]) -> Effects:
    """What becomes of values that are no tensors, in what the module returned for each sample."""
    said = [constants(each) for each in results]
    count = sum(isinstance(value, int | float | str) for value in said[0])
    if len({_digest(each) for each in said}) > 1:
        what = "of what the module returns, values that are no tensors differ from sample to sample: return tensors"
        return Effects((what,), ())
    left = f"{count} of the values that the module returns are no tensors, and are left out of the graph"
    return Effects((), (left,) if count else ())


def repeats(flat: Flat, tensors: Tensors, expected: Mapping[str, Array]) -> bool:
    """Whether a call with the same arguments returns the same again."""
    try:
        with quiet():
            _, leaves = eager(flat, tensors)
    except Exception:  # the module's own, whatever it is
        return False
    found = dict(zip(expected, map(to_array, leaves.values()), strict=False))
    return len(leaves) == len(expected) and compare(found, expected).passed


def _reads(flat: Flat, tensors: Tensors, expected: Mapping[str, Array], buffers: Sequence[str]) -> bool:
    """Whether what it returns depends on what was in these buffers before."""
    with torch.no_grad(), untouched(flat.module):
        for name in buffers:
            buffer = flat.module.get_buffer(name)
            try:
                buffer.logical_not_() if buffer.dtype is torch.bool else buffer.add_(1)
            except RuntimeError:  # there is no arithmetic in its dtype
                return True
        return not repeats(flat, tensors, expected)


def _digest(values: Sequence[object]) -> object:
    """What is equal where all values are; of which nothing can be said is equal to itself alone."""
    found = fingerprint(*values)
    return object() if found is None else found


def _listed(kind: str, names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"its {kind} {shown}" if len(names) == 1 else f"its {kind}s {shown}{more}"
