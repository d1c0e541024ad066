"""Rewrite Fourier transforms as one product with a constant matrix each.

    DFT(x)_k   =  Σ_n x_n · e^(∓2πi·kn/N)     →  MatMul(x with (n, re/im) as its last axis, matrix of cos and sin)
    STFT(x)    =  DFT(window · x[t·step : t·step + N]) for every frame t
                                              →  MatMul(Gather(x, constant indices) · window, the same matrix)

The matrix maps (sample, re/im) to (frequency, re/im). It has no rows for samples that padding would add; samples beyond
the length are dropped. For a one-sided inverse, the other half of the spectrum is the mirror image: its frequencies
count twice, except 0 and N/2. Angles are reduced to [0, 2π) as integers, so that large transforms lose no accuracy.

Skips: axis, length or step that are not constant; dynamic shapes; what the standard does not define (one-sided spectra
of complex signals, one-sided inverses of real ones); half spectra that are padded or truncated, where ONNX Runtime
deviates from the standard; matrices of more than 2²⁵ elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Array
from passes.builders.operands import given, integers
from passes.builders.operators import cast, reshape, wide_float
from passes.graphs.scopes import Scope
from passes.rewriting.base import Exactness, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Match, NodeContext, NodeRewrite

_MAX_ELEMENTS = 2**25


@dataclass(frozen=True)
class Transform:
    """A discrete Fourier transform of one axis.

    Attributes:
        length: N.
        samples: number of input elements used, at most N; the others are 0.
        parts: 1 for real input, 2 for complex.
        inverse: whether it is the inverse transform.
        onesided: whether the spectrum (the input of an inverse, else the output) has its first half only.
    """

    length: int
    samples: int
    parts: int
    inverse: bool = False
    onesided: bool = False

    @classmethod
    def of(cls, length: int, size: int, parts: int, *, inverse: bool, onesided: bool) -> Transform | str:
        """The transform of an axis of ``size`` elements; a reason if it is not supported."""
        if onesided and parts != (2 if inverse else 1):
            direction, kind = "inverse" if inverse else "spectrum", "complex" if parts == 2 else "real"
            return f"the standard defines no one-sided {direction} of {kind} input"
        if length < 1:
            return f"its length {length} is not positive"
        if inverse and onesided and size != length // 2 + 1:
            return f"ONNX Runtime deviates from the standard for half a spectrum of {length} with {size} elements"
        found = cls(length, min(size, length), parts, inverse, onesided)
        elements = found.samples * parts * found.count * found.parts_after
        return found if elements <= _MAX_ELEMENTS else f"its matrix would have {elements} elements"

    @property
    def count(self) -> int:
        """The number of output elements."""
        return self.length // 2 + 1 if self.onesided and not self.inverse else self.length

    @property
    def parts_after(self) -> int:
        """1 for real output, 2 for complex."""
        return 1 if self.onesided and self.inverse else 2

    def matrix(self) -> Array:
        """The matrix in float64, (samples, parts, count, parts_after)."""
        before, after = np.arange(self.samples)[:, None], np.arange(self.count)[None]
        angles = 2 * np.pi / self.length * (before * after % self.length)
        real, imaginary = np.cos(angles), np.sin(angles) * (1 if self.inverse else -1)
        matrix = np.array([[real, imaginary], [-imaginary, real]])[: self.parts, : self.parts_after]
        if self.inverse:
            matrix /= self.length
            if self.onesided:
                alone = (before == 0) | (2 * before == self.length)
                matrix *= np.where(alone, 1, 2)
        return matrix.transpose(2, 0, 3, 1)


@dataclass(frozen=True)
class _DftMatch(Match):
    sizes: tuple[int, ...]
    transform: Transform
    axis: int


class MultiplyDft(NodeRewrite[_DftMatch]):
    """Rewrite a discrete Fourier transform as a matrix product."""

    name = "multiply-dft"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "DFT")})
    needs_shape = (0,)

    def match(self, node: ir.Node, context: NodeContext) -> _DftMatch | Skip | None:
        """Match a constant axis and length."""
        scope = context.scope
        sizes, axis = context.shape(node), _dft_axis(node, scope)
        if len(sizes) < 2 or sizes[-1] not in (1, 2):
            return Skip(f"its input, of shape {sizes}, has no last axis of 1 or 2 parts")
        if isinstance(axis, str):
            return Skip(axis)
        axis %= len(sizes)
        inverse, onesided = (bool(node.attributes.get_int(name, 0)) for name in ("inverse", "onesided"))
        length = integers(given(node, 1), "its dft_length", scope)
        after = scope.proven_sizes(node.outputs[0])
        if isinstance(length, str) and after is not None and not (onesided and not inverse):
            length = [after[axis]]
        if isinstance(length, str):
            return Skip(length)
        size = sizes[axis]
        number = length[0] if length else 2 * (size - 1) if inverse and onesided else size
        transform = Transform.of(number, size, sizes[-1], inverse=inverse, onesided=onesided)
        return Skip(transform) if isinstance(transform, str) else _DftMatch(node, sizes, transform, axis)

    def rewrite(self, match: _DftMatch, edit: Edit) -> Sequence[ir.Value | None]:
        """Truncate, move the axis to the end, multiply, and move it back."""
        x, axis, transform = match.node.inputs[0], match.axis, match.transform
        assert x is not None
        sizes, rank = list(match.sizes), len(match.sizes)
        if transform.samples < sizes[axis]:
            bounds = [edit.constant(np.array([each], np.int64)) for each in (0, transform.samples, axis)]
            x = edit.op("Slice", [x, *bounds])
        order = [each for each in range(rank - 1) if each != axis] + [axis, rank - 1]
        if order != sorted(order):
            x = edit.op("Transpose", [x], {"perm": order})
        x = reshape(edit, x, [-1, transform.samples * transform.parts])
        x = _multiply(edit, x, transform.matrix(), edit.scope.dtype(match.node.inputs[0]))
        x = reshape(edit, x, [*(sizes[each] for each in order[:-2]), transform.count, transform.parts_after])
        if order != sorted(order):
            x = edit.op("Transpose", [x], {"perm": np.argsort(order).tolist()})
        return [x]


def _dft_axis(node: ir.Node, scope: Scope) -> int | str:
    """The axis: an attribute, by default 1, before opset 20; then an input, by default −2. Else a reason."""
    if scope.opset() < 20:
        return int(node.attributes.get_int("axis", 1))
    axis = integers(given(node, 2), "its axis", scope)
    return axis if isinstance(axis, str) else axis[0] if axis else -2


def _multiply(edit: Edit, x: ir.Value, matrix: Array, dtype: ir.DataType | None) -> ir.Value:
    """The product of (rows, samples · parts) and a `Transform.matrix`."""
    flat = matrix.reshape(matrix.shape[0] * matrix.shape[1], -1)
    computed = wide_float(dtype) or ir.DataType.FLOAT
    product = edit.op("MatMul", [cast(edit, x, computed, dtype), edit.constant(flat.astype(computed.numpy()))])
    return cast(edit, product, dtype, computed)


@dataclass(frozen=True)
class _StftMatch(Match):
    sizes: tuple[int, int, int]
    transform: Transform
    step: int


class MultiplyStft(NodeRewrite[_StftMatch]):
    """Gather the frames of a signal, and transform them by one matrix product."""

    name = "multiply-stft"
    exactness = Exactness.ROUNDING
    operators = frozenset({("", "STFT")})
    needs_shape = (0, 2)

    def match(self, node: ir.Node, context: NodeContext) -> _StftMatch | Skip | None:
        """Match a constant step and length; the window may be computed."""
        scope = context.scope
        sizes, window = context.shape(node), scope.static_shape(given(node, 2))
        if len(sizes) == 2:  # ONNX Runtime accepts a real signal without an axis of parts
            sizes = (*sizes, 1)
        if len(sizes) != 3 or sizes[-1] not in (1, 2):
            return Skip(f"its signal, of shape {sizes}, is not a batch of signals of 1 or 2 parts")
        step = integers(node.inputs[1], "its frame_step", scope)
        length = integers(given(node, 3), "its frame_length", scope)
        if isinstance(step, str) or step is None:
            return Skip(step or "it has no frame_step")
        if isinstance(length, str):
            if window is None:
                return Skip(length)
            length = None
        number = length[0] if length else window[0] if window else sizes[1]
        if window is not None and window[0] != number:
            return Skip(f"its window has {window[0]} elements, its frames {number}")
        if step[0] < 1 or number > sizes[1]:
            return Skip(f"a signal of {sizes[1]} samples has no frames of {number} with step {step[0]}")
        onesided = bool(node.attributes.get_int("onesided", 1))
        transform = Transform.of(number, number, sizes[2], inverse=False, onesided=onesided)
        return Skip(transform) if isinstance(transform, str) else _StftMatch(node, sizes, transform, step[0])

    def rewrite(self, match: _StftMatch, edit: Edit) -> Sequence[ir.Value | None]:
        """A constant window is multiplied into the matrix."""
        signal, window = match.node.inputs[0], given(match.node, 2)
        assert signal is not None
        batch, size, parts = match.sizes
        transform, dtype = match.transform, edit.scope.dtype(signal)
        starts = np.arange(0, size - transform.length + 1, match.step, dtype=np.int64)
        indices = starts[:, None] + np.arange(transform.length, dtype=np.int64)
        x = edit.op("Gather", [reshape(edit, signal, match.sizes), edit.constant(indices)], {"axis": 1})
        matrix, weights = transform.matrix(), edit.scope.constant(window)
        if weights is not None:
            matrix = matrix * weights.numpy().astype(np.float64)[:, None, None, None]
        elif window is not None:
            x = edit.op("Mul", [x, reshape(edit, window, [transform.length, 1])])
        x = _multiply(edit, reshape(edit, x, [-1, transform.length * parts]), matrix, dtype)
        return [reshape(edit, x, [batch, len(starts), transform.count, 2])]


RULES: tuple[NodeRewrite[Any], ...] = (MultiplyDft(), MultiplyStft())
