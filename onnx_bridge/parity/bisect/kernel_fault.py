"""From outputs of an emulated program that differ to the kernel at fault.

What a kernel computes mostly is a value of the model, in its order or transposed. A kernel is right if its result is
one of the reference's values, or if a kernel that takes it is right; the first of the others is at fault. Within a
fusion MIGraphX has values of its own, which nothing can be compared with: kernels that compute such values, and whose
results the one at fault takes, are named as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.device import to_tensors
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.core.values import Array, Value
from onnx_bridge.migraphx.gpu.kernels import Kernel, kernels
from onnx_bridge.migraphx.remote_program import RemoteProgram
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.reference.comparison.inside import InsideModel
from onnx_bridge.reference.comparison.tolerances import Tolerances

_MOST_AXES = 4
"""The most axes, of more than one element, of a value whose transposes are looked at."""


@dataclass(frozen=True)
class KernelFault(JsonRecord):
    """A kernel that computes something else than the reference.

    Attributes:
        symbol: the kernel's name, which MIGraphX makes of the operators in it.
        value: the value of the model that it should have computed.
        index: the first element of it that differs.
        actual: what the kernel computes there.
        expected: the reference's number.
        mismatched: how many elements differ.
        elements: how many there are.
        operands: kernels whose results it takes, and of which nothing is known: the fault may be theirs.
        instructions: the machine instructions that the kernel executed, each once.
    """

    symbol: str
    value: str
    index: tuple[int, ...]
    actual: float
    expected: float
    mismatched: int
    elements: int
    operands: tuple[str, ...] = ()
    instructions: tuple[str, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        element = f"{self.value}[{', '.join(map(str, self.index))}]" if self.index else self.value
        before = f", or {' or '.join(self.operands)} before it," if self.operands else ""
        return (
            f"the kernel {self.symbol} ({len(self.instructions)} instructions){before} computes {element} as "
            f"{self.actual:.7g} instead of {self.expected:.7g}, {self.mismatched} of {self.elements} elements: "
            "differs, confirm on hardware"
        )


def kernel_at_fault(
    program: RemoteProgram, model: ir.Model, sample: Mapping[str, Value], tolerances: Tolerances
) -> KernelFault | None:
    """Return the first kernel of an emulated program that computes none of the values of its model.

    Args:
        program: the program, compiled.
        model: the model that it was compiled from.
        sample: inputs with which an output differs.
        tolerances: the tolerances of the values.

    Raises:
        BridgeError: the program, or the reference, cannot run the sample.
    """
    inside = InsideModel(model, sample)
    values = inside.values(sample, sorted(inside.names))
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray) and value.size}
    return first_wrong(kernels(program, to_tensors(program, sample)), arrays, tolerances)


def first_wrong(launched: Sequence[Kernel], values: Mapping[str, Array], tolerances: Tolerances) -> KernelFault | None:
    """Return the first kernel whose result is none of some values; None if each is right, or like none of them."""
    right = {place for place, kernel in enumerate(launched) if _is_known(kernel.output, values, tolerances)}
    for place in reversed(range(len(launched))):  # those that take a result come later
        if place in right:
            right |= launched[place].operands
    unknown = []
    for place, kernel in enumerate(launched):
        if place in right:
            continue
        likeliest = min(_mismatches(kernel.output, values, tolerances), key=lambda pair: pair[1].sum(), default=None)
        if likeliest is None:
            unknown.append(place)
            continue
        (name, found), wrong = likeliest
        expected, flat = values[name], int(np.flatnonzero(wrong)[0])
        return KernelFault(
            kernel.symbol,
            name,
            tuple(map(int, np.unravel_index(flat, expected.shape))),
            float(found.ravel()[flat]),
            float(expected.ravel()[flat]),
            int(wrong.sum()),
            wrong.size,
            tuple(launched[other].symbol for other in unknown if other in kernel.operands),
            kernel.instructions,
        )
    return None


def _is_known(output: Array, values: Mapping[str, Array], tolerances: Tolerances) -> bool:
    return any(
        compare({name: array}, {name: values[name]}, tolerances).passed for name, array in _likened(output, values)
    )


def _mismatches(
    output: Array, values: Mapping[str, Array], tolerances: Tolerances
) -> Iterator[tuple[tuple[str, Array], np.ndarray]]:
    """Yield the result in the form of each value, with its name, and which elements differ."""
    for name, array in _likened(output, values):
        expected, allowed = values[name], tolerances.of(name, values[name])
        with np.errstate(all="ignore"):
            near = np.isclose(array.astype(np.float64), expected.astype(np.float64), allowed.rtol, allowed.atol, True)
        if not near.all():
            yield (name, array), ~near.ravel()


def _likened(output: Array, values: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    """Yield a result in the form of each value that it may be: in its order, or transposed."""
    for name, value in values.items():
        if output.size != value.size or (output.dtype.kind in "iub") != (value.dtype.kind in "iub"):
            continue
        plain = np.asarray(output, value.dtype)
        yield name, plain.reshape(value.shape)
        sizes = [size for size in value.shape if size != 1]
        for axes in itertools.permutations(range(len(sizes))) if len(sizes) <= _MOST_AXES else ():
            if axes != tuple(range(len(sizes))) and [s for s in output.shape if s != 1] == [sizes[a] for a in axes]:
                yield name, plain.reshape([sizes[a] for a in axes]).transpose(np.argsort(axes)).reshape(value.shape)
