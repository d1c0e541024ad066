"""Padding of tensors up to the sizes of a program, and the check that it changes no output of a module.

What grows where is decided by `onnx_bridge.bundle.padding`. Padded outputs, cut to the sizes that they have without
padding, have the same numbers only if padding does not affect them (a mask of zeros, a causal mask, a batch).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from onnx_bridge.bundle.manifest.axes import Axis
from onnx_bridge.bundle.padding import growth, kept
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.torch.modules.tensors import to_array

Tensors = Mapping[str, torch.Tensor]
Sizes = Mapping[str, int]
Dims = Sequence[Axis]
"""A shape: sizes, symbols or expressions of symbols; None is unknown."""


def padded(tensor: torch.Tensor, dims: Dims, small: Sizes, large: Sizes, before: Collection[str] = ()) -> torch.Tensor:
    """Return a tensor of small sizes, padded with zeros to large ones; the dimensions ``before`` at their start."""
    return padded_by(tensor, [growth(dim, small, large, before) for dim in dims])


def padded_by(tensor: torch.Tensor, widths: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Return a tensor with zeros at the start and at the end of each axis; the tensor itself without any."""
    if not any(map(any, widths)):
        return tensor
    pairs = list(zip(tensor.shape, widths, strict=True))
    shape = [start + size + end for size, (start, end) in pairs]
    padded = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
    padded[tuple(slice(start, start + size) for size, (start, _) in pairs)] = tensor
    return padded


def cut(tensor: torch.Tensor, dims: Dims, small: Sizes, large: Sizes, before: Collection[str] = ()) -> torch.Tensor:
    """Return a tensor of large sizes without what padding added, contiguous; unknown dimensions stay."""
    return tensor[kept(dims, small, large, before)].contiguous()


def changed_output(
    run: Callable[[Tensors, Sizes], Tensors],
    tensors: Tensors,
    dims: Mapping[str, Dims],
    small: Sizes,
    large: Sizes,
    before: Collection[str] = (),
) -> str | None:
    """Return the first output that padding changes, and by how much; None if all agree.

    They must agree for the given values and for others: the given ones in reverse order, floats negated.

    Args:
        run: runs the module on tensors of some sizes.
        tensors: inputs of the small sizes.
        dims: the dimensions of each input and output.
        small: sizes of symbols.
        large: the sizes to pad to.
        before: the symbols that are padded at their start.
    """
    for inverted in (False, True):
        given = {name: _inverted(tensor) if inverted else tensor for name, tensor in tensors.items()}
        expected = run(given, small)
        wide = {name: padded(tensor, dims[name], small, large, before) for name, tensor in given.items()}
        outputs = run(wide, large)
        compared = compare(
            {name: to_array(cut(tensor, dims[name], small, large, before)) for name, tensor in outputs.items()},
            {name: to_array(tensor) for name, tensor in expected.items()},
        )
        for output in compared.outputs:
            if not output.passed:
                return f"{output.name}: {output.reason}"
    return None


def _inverted(tensor: torch.Tensor) -> torch.Tensor:
    flipped = tensor.flip(-1) if tensor.dim() else tensor
    return -flipped if flipped.is_floating_point() and bool(flipped.isfinite().all()) else flipped
