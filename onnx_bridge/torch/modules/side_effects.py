"""Side effects of a module, which its graph does not have.

A module may write to its arguments and buffers, read in a call what it wrote in an earlier one, and return numbers and
objects that are not tensors. The graph has these as they were when it was exported. Each effect is a sentence for the
user; effects that change the result of later calls are kept apart, as `Effects.changing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from onnx_bridge.core.third_party import suppressed_output
from onnx_bridge.core.values import Array
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.torch.modules.calls import FlatModule, Result, run_module
from onnx_bridge.torch.modules.fingerprint import fingerprint
from onnx_bridge.torch.modules.modules import restored_buffers
from onnx_bridge.torch.modules.structure import Structure, constants
from onnx_bridge.torch.modules.tensors import to_array

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Effects:
    """Side effects that the graph does not have.

    ``changing`` ones change what the module returns in a later call, and not what the graph returns; ``notes`` do not.
    """

    changing: tuple[str, ...]
    notes: tuple[str, ...]


def write_effects(flat: FlatModule, tensors: Tensors, expected: Mapping[str, Array], result: Result) -> Effects:
    """Return the effects of in-place writes of a call; ``expected`` are the outputs of an earlier one, in order."""
    inputs, buffers = result.written_inputs, result.written_buffers
    notes = [f"the module writes to {_listed('input', inputs)}, and the graph does not"] if inputs else []
    if not buffers:
        return Effects((), tuple(notes))
    what = f"the module writes to {_listed('buffer', buffers)}"
    if _reads(flat, tensors, expected, buffers):
        return Effects((f"{what}, which a later call reads: pass that as an argument, and return it",), tuple(notes))
    return Effects((), (*notes, f"{what}, and the graph does not"))


def constant_effects(results: Sequence[Structure]) -> Effects:
    """Return the effects of returned values that are not tensors, given the results of all samples."""
    values = [constants(result) for result in results]
    count = sum(isinstance(value, int | float | str) for value in values[0])
    if len({_digest(returned) for returned in values}) > 1:
        what = "returned values that are not tensors differ between samples, and are fixed in the graph: return tensors"
        return Effects((what,), ())
    left = f"{count} of the returned values are not tensors, and are not outputs of the graph"
    return Effects((), (left,) if count else ())


def is_repeatable(flat: FlatModule, tensors: Tensors, expected: Mapping[str, Array]) -> bool:
    """Return whether another call with the same arguments returns the same outputs."""
    try:
        with suppressed_output():
            leaves = run_module(flat, tensors).tensors
    except Exception:  # anything that the user's module raises
        return False
    outputs = dict(zip(expected, map(to_array, leaves.values()), strict=False))
    return len(leaves) == len(expected) and compare(outputs, expected).passed


def _reads(flat: FlatModule, tensors: Tensors, expected: Mapping[str, Array], buffers: Sequence[str]) -> bool:
    """Return whether the outputs depend on the contents of these buffers before the call."""
    with torch.no_grad(), restored_buffers(flat.module):
        for name in buffers:
            buffer = flat.module.get_buffer(name)
            try:
                buffer.logical_not_() if buffer.dtype is torch.bool else buffer.add_(1)
            except RuntimeError:  # its dtype has no arithmetic
                return True
        return not is_repeatable(flat, tensors, expected)


def _digest(values: Sequence[object]) -> object:
    """Return a key that is equal if all values are; values without a fingerprint equal only themselves."""
    digest = fingerprint(*values)
    return object() if digest is None else digest


def _listed(kind: str, names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"its {kind} {shown}" if len(names) == 1 else f"its {kind}s {shown}{more}"
