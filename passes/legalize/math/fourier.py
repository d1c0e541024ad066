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

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from passes.builders.arithmetic import Arithmetic, Array, wide_float
from passes.builders.operands import given
from passes.rewriting.base import Exactness, NotApplicable, Skip
from passes.rewriting.edit import Edit
from passes.rewriting.rewrite import Replacement, rewrite

_MAX_ELEMENTS = 2**25


@dataclass(frozen=True)
class Transform:
    """A discrete Fourier transform of one axis.

    Attributes:
        length: N.
        samples: number of input elements used, at most N; the others are 0.
        parts: 1 for real input, 2 for complex.
        onesided: whether the spectrum (the input of an inverse, else the output) has its first half only.
    """

    length: int
    samples: int
    parts: int
    inverse: bool = False
    onesided: bool = False

    @classmethod
    def of(cls, length: int, size: int, parts: int, *, inverse: bool, onesided: bool) -> Transform:
        """Return the transform of an axis of ``size`` elements."""
        if onesided and parts != (2 if inverse else 1):
            direction, kind = "inverse" if inverse else "spectrum", "complex" if parts == 2 else "real"
            raise NotApplicable(f"the standard defines no one-sided {direction} of {kind} input")
        if length < 1:
            raise NotApplicable(f"the length {length} is not positive")
        if inverse and onesided and size != length // 2 + 1:
            raise NotApplicable(
                f"ONNX Runtime deviates from the standard for half a spectrum of {length} with {size} elements"
            )
        transform = cls(length, min(size, length), parts, inverse, onesided)
        elements = transform.samples * parts * transform.count * transform.parts_after
        if elements > _MAX_ELEMENTS:
            raise NotApplicable(f"the matrix would have {elements} elements")
        return transform

    @property
    def count(self) -> int:
        """Return the number of output elements."""
        return self.length // 2 + 1 if self.onesided and not self.inverse else self.length

    @property
    def parts_after(self) -> int:
        """Return 1 for real output, 2 for complex."""
        return 1 if self.onesided and self.inverse else 2

    def matrix(self) -> Array:
        """Return the matrix in float64, (samples, parts, count, parts_after)."""
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


@rewrite("DFT", exactness=Exactness.ROUNDING, needs_shape=(0,), needs_dtype=(0,))
def multiply_dft(node: ir.Node, edit: Edit) -> Replacement:
    """Rewrite a discrete Fourier transform as a matrix product."""
    sizes, axis = edit.shape(node), _dft_axis(node, edit)
    if len(sizes) < 2 or sizes[-1] not in (1, 2):
        return Skip(f"the input, of shape {sizes}, has no last axis of 1 or 2 parts")
    rank = len(sizes)
    axis %= rank
    size, parts = sizes[axis], sizes[-1]
    inverse, onesided = (bool(node.attributes.get_int(name, 0)) for name in ("inverse", "onesided"))
    after = edit.scope.proven_sizes(node.outputs[0])
    try:
        length = edit.integers(node, 1, "the dft_length")
    except NotApplicable:
        if after is None or (onesided and not inverse):
            raise
        length = [after[axis]]
    if length is None:
        length = [2 * (size - 1) if inverse and onesided else size]
    transform = Transform.of(length[0], size, parts, inverse=inverse, onesided=onesided)
    x = edit.input(node)
    if transform.samples < size:
        x = edit.slice(x, axis, 0, transform.samples)
    order = [*(other for other in range(rank - 1) if other != axis), axis, rank - 1]
    if order != sorted(order):
        x = edit.op("Transpose", [x], {"perm": order})
    x = edit.reshape(x, [-1, transform.samples * transform.parts])
    x = _multiply(edit, x, transform.matrix(), edit.dtype(node))
    x = edit.reshape(x, [*(sizes[axis] for axis in order[:-2]), transform.count, transform.parts_after])
    if order != sorted(order):
        x = edit.op("Transpose", [x], {"perm": np.argsort(order).tolist()})
    return x


def _dft_axis(node: ir.Node, edit: Edit) -> int:
    """Return the axis: an attribute, by default 1, before opset 20; then an input, by default −2."""
    if edit.scope.opset() < 20:
        return int(node.attributes.get_int("axis", 1))
    axis = edit.integers(node, 2, "the axis")
    return axis[0] if axis else -2


def _multiply(edit: Edit, x: ir.Value, matrix: Array, dtype: ir.DataType) -> ir.Value:
    """Multiply (rows, samples · parts) by a `Transform.matrix`."""
    flat = matrix.reshape(matrix.shape[0] * matrix.shape[1], -1)
    a = Arithmetic(edit, wide_float(dtype))
    return a.cast(a("MatMul", a.cast(x), flat), dtype)


@rewrite("STFT", exactness=Exactness.ROUNDING, needs_shape=(0, 2), needs_dtype=(0,))
def multiply_stft(node: ir.Node, edit: Edit) -> Replacement:
    """Gather the frames of a signal, and transform them by one matrix product."""
    window = given(node, 2)
    sizes, window_sizes = edit.shape(node), edit.scope.static_shape(window)
    if len(sizes) == 2:  # ONNX Runtime accepts a real signal without an axis of parts
        sizes = (*sizes, 1)
    if len(sizes) != 3 or sizes[-1] not in (1, 2):
        return Skip(f"the signal, of shape {sizes}, is not a batch of signals of 1 or 2 parts")
    batch, size, parts = sizes
    step = edit.integers(node, 1, "the frame_step")
    if step is None:
        return Skip("the node has no frame_step")
    try:
        length = edit.integers(node, 3, "the frame_length")
    except NotApplicable:
        if window_sizes is None:
            raise
        length = None
    if length is None:
        length = [window_sizes[0] if window_sizes else size]
    count = length[0]
    if window_sizes is not None and window_sizes[0] != count:
        return Skip(f"the window has {window_sizes[0]} elements, its frames {count}")
    if step[0] < 1 or count > size:
        return Skip(f"a signal of {size} samples has no frames of {count} with step {step[0]}")
    onesided = bool(node.attributes.get_int("onesided", 1))
    transform = Transform.of(count, count, parts, inverse=False, onesided=onesided)
    starts = np.arange(0, size - count + 1, step[0])
    indices = edit.index(starts[:, None] + np.arange(count))
    x = edit.op("Gather", [edit.reshape(edit.input(node), sizes), indices], {"axis": 1})
    matrix, weights = transform.matrix(), edit.scope.constant(window)
    if weights is not None:
        matrix = matrix * weights.numpy().astype(np.float64)[:, None, None, None]
    elif window is not None:
        x = edit.op("Mul", [x, edit.reshape(window, [count, 1])])
    x = _multiply(edit, edit.reshape(x, [-1, count * parts]), matrix, edit.dtype(node))
    return edit.reshape(x, [batch, len(starts), transform.count, 2])
