"""From outputs of an emulated program that differ to the kernel at fault.

What a kernel computes mostly is a value of the model, in its order or transposed. A kernel is right if its result is
one of the reference's values, or if a kernel that takes it is right; the first of the others is at
fault. Within a fusion MIGraphX has values of its own, which nothing can be compared with: kernels that compute such
values, and whose results the one at fault takes, are named as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.device import Device, InsideDevice, to_tensors
from onnx_bridge.core.errors import BridgeError
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.core.values import Array, Value
from onnx_bridge.migraphx.gpu.compiler import GpuCompiler
from onnx_bridge.migraphx.gpu.kernels import Kernel, kernels
from onnx_bridge.migraphx.remote_program import RemoteProgram
from onnx_bridge.reference.comparison.inside import InsideModel
from onnx_bridge.reference.comparison.tolerances import Tolerances
from onnx_bridge.reference.likeness import likenesses
from passes.core.text import counted

_MOVING = ("convert_kernel", "contiguous_kernel")
"""Kernels that only move numbers, or narrow them."""


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
        ref: the number that MIGraphX computes there on ``ref``; None if that fails.
        operands: kernels, and calls of libraries, whose results it takes, and of which nothing is known: the fault may
            be theirs.
        instructions: the machine instructions that the kernel executed, each once.
        source: the kernel's source, as MIGraphX wrote it; empty if it is not kept.
    """

    symbol: str
    value: str
    index: tuple[int, ...]
    actual: float
    expected: float
    mismatched: int
    elements: int
    ref: float | None = None
    operands: tuple[str, ...] = ()
    instructions: tuple[str, ...] = field(default=(), repr=False)
    source: str = field(default="", repr=False)

    def __str__(self) -> str:
        element = f"{self.value}[{', '.join(map(str, self.index))}]" if self.index else self.value
        ref = "" if self.ref is None else f" (on ref {self.ref:.9g})"
        before = f", or {' or '.join(self.operands)} before it," if self.operands else ""
        return (
            f"the kernel {self.symbol} ({len(self.instructions)} instructions){before} computes {element} as "
            f"{self.actual:.9g} instead of {self.expected:.9g}{ref}, "
            f"{self.mismatched} of {counted(self.elements, 'element')}: differs, confirm on hardware"
        )


def kernel_at_fault(
    device: Device, program: RemoteProgram, model: ir.Model, sample: Mapping[str, Value], tolerances: Tolerances
) -> KernelFault | None:
    """Return the first kernel of an emulated program that computes none of the values of its model.

    Args:
        device: computes the same value on ``ref``.
        program: the program, compiled.
        model: the model that it was compiled from.
        sample: inputs with which an output differs.
        tolerances: the tolerances of the values.

    Raises:
        BridgeError: the program, or the reference, cannot run the sample.
    """
    inside = InsideModel(model, sample)
    computed = _arrays(inside.values(sample, sorted(inside.names)))
    tensors = {name: value.const_value for name, value in model.graph.initializers.items()}
    constants = {name: tensor.numpy() for name, tensor in tensors.items() if tensor is not None}
    launched = kernels(program, to_tensors(program, sample))
    fault = first_wrong(launched, computed, tolerances, constants | _arrays(sample))
    if fault is None:
        return None
    on_ref = InsideDevice(model, replace(device, target="ref", rehearsal=None))
    with contextlib.suppress(BridgeError):
        value = on_ref.values(sample, [fault.value])[fault.value]
        fault = replace(fault, ref=float(np.asarray(value)[fault.index]))
    return fault


def _arrays(values: Mapping[str, Value]) -> dict[str, Array]:
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray) and value.size}


def kernel_of(
    device: Device, model: ir.Model, sample: Mapping[str, Value], tolerances: Tolerances
) -> KernelFault | None:
    """Compile a model for a GPU that is emulated, and return its kernel at fault; None on another device.

    It is None as well if the model cannot be compiled or run, by MIGraphX or the reference.
    """
    if isinstance(device.rehearsal, GpuCompiler):
        with device.worker.limited(device.limits), contextlib.suppress(BridgeError):
            device.compile(program := device.parse(model, sample))
            return kernel_at_fault(device, program, model, sample, tolerances)
    return None


def first_wrong(
    launched: Sequence[Kernel],
    values: Mapping[str, Array],
    tolerances: Tolerances,
    given: Mapping[str, Array] = MappingProxyType({}),
) -> KernelFault | None:
    """Return the first kernel whose result is none of some values; None if each is right, or like none of them.

    What only moves numbers may give one of the inputs and constants, ``given``.
    """
    right = set()
    for place, kernel in enumerate(launched):
        likely = {**values, **given} if kernel.symbol in _MOVING else values
        if any(not likeness.wrong.any() for likeness in likenesses(kernel.output, likely, tolerances)):
            right.add(place)
    for place in reversed(range(len(launched))):  # those that take a result come later
        if place in right:
            right |= launched[place].operands
    unknown = []
    for place, kernel in enumerate(launched):
        if place in right:
            continue
        likeliest = min(likenesses(kernel.output, values, tolerances), key=lambda pair: pair.wrong.sum(), default=None)
        if likeliest is None:
            unknown.append(place)
            continue
        expected, flat = likeliest.expected, int(np.flatnonzero(likeliest.wrong)[0])
        return KernelFault(
            kernel.symbol,
            likeliest.name,
            tuple(map(int, np.unravel_index(flat, expected.shape))),
            float(likeliest.actual.ravel()[flat]),
            float(expected.ravel()[flat]),
            int(likeliest.wrong.sum()),
            expected.size,
            operands=(
                *(launched[other].symbol for other in unknown if other in kernel.operands),
                *sorted(kernel.calls),
            ),
            instructions=kernel.instructions,
            source=kernel.source,
        )
    return None
