"""MIGraphX as a device that submodels are run on."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.partitions import PACKED, as_declared, parse
from onnx_bridge.core.errors import MigraphxError
from onnx_bridge.core.values import Value, flat
from onnx_bridge.migraphx.program import Tensor, type_of
from onnx_bridge.migraphx.rehearsal.depth import Rehearsal
from onnx_bridge.migraphx.remote_program import RemoteProgram
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.model import io as models
from onnx_bridge.reference.comparison.inside import cut
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples.inputs import Sample
from passes.core.text import counted
from passes.graphs.scopes import required_names
from passes.isolation.limits import Limits


class Runner(Protocol):
    """A runtime that runs a model in memory with a sample; ``expected`` are the outputs of the reference, or alike."""

    def run(self, model: ir.Model, inputs: Mapping[str, Value], expected: Mapping[str, Value]) -> Sample: ...


@dataclass(frozen=True)
class Device:
    """MIGraphX in a worker process, for a target, with limits of each step.

    ``rehearsal`` is one of the gpu target, whose worker and target these are.
    ``options`` are the arguments of ``compile``.
    """

    worker: Worker
    target: str = "ref"
    limits: Limits = Limits()
    rehearsal: Rehearsal | None = None
    options: Mapping[str, bool] = field(default_factory=dict)

    def parse(self, model: ir.Model, inputs: Mapping[str, Value]) -> RemoteProgram:
        """Parse a model in memory, for the shapes of a sample; raises RuntimeFailure if MIGraphX fails."""
        with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
            path = Path(folder) / "model.onnx"
            models.save(model, path)
            return parse(self.worker, path, {name: np.shape(array) for name, array in flat(inputs).items()})

    def compile(self, program: RemoteProgram) -> None:
        """Compile a program, as it is rehearsed; raises RuntimeFailure if MIGraphX fails."""
        if self.rehearsal is not None:
            self.rehearsal.prepare(program)
        program.compile(self.target, **self.options)

    def run(self, model: ir.Model, inputs: Mapping[str, Value], expected: Mapping[str, Value]) -> Sample:
        """Parse, compile and run a model in memory, with a sample; raises RuntimeFailure if MIGraphX fails.

        The outputs of the model are those of ``expected``, in this order: the reference's, or alike (`run_program`).
        """
        with self.worker.limited(self.limits):
            program = self.parse(model, inputs)
            count = len(program.get_output_shapes())
            if count != len(expected):
                raise MigraphxError(f"MIGraphX gives {counted(count, 'output')} instead of {len(expected)}")
            self.compile(program)
            return run_program(program, inputs, expected)


@dataclass(frozen=True)
class InsideDevice:
    """The values inside a model, whose inputs have fixed shapes, on a runtime."""

    model: ir.Model
    device: Runner

    @cached_property
    def names(self) -> Collection[str]:
        """The values that can be fetched."""
        outputs = (value for node in self.model.graph for value in node.outputs if value.name)
        return frozenset(str(value.name) for value in outputs if can_feed(value))

    def values(self, sample: Mapping[str, Value], names: Sequence[str]) -> Sample:
        """Return some values and the outputs; raises RuntimeFailure if MIGraphX does not take the model with them."""
        outputs = [str(value.name) for value in self.model.graph.outputs]
        part = cut(self.model, {}, [*outputs, *names])
        given = {name: sample[name] for name in required_names(part)}
        return self.device.run(part, given, Reference(part).run(given))


def can_feed(value: ir.Value) -> bool:
    """Return whether MIGraphX has a type for a value, as an input or output; True if the type is unknown."""
    if value.type is None:
        return True
    if not isinstance(value.type, ir.TensorType) or value.dtype in (None, ir.DataType.UNDEFINED, ir.DataType.STRING):
        return False
    return _is_supported(value.dtype.numpy())


def can_feed_array(value: Value) -> bool:
    """Return whether MIGraphX has a type for a value that the reference computed."""
    return isinstance(value, np.ndarray) and _is_supported(value.dtype)


def _is_supported(dtype: np.dtype) -> bool:
    return type_of(dtype) is not None or dtype.name in PACKED


def run_program(program: RemoteProgram, inputs: Mapping[str, Value], expected: Mapping[str, Value]) -> Sample:
    """Run a compiled program, and undo how MIGraphX represents scalars (rank 1) and int4 (bytes).

    Args:
        program: the program, with the outputs of ``expected``, in this order.
        inputs: arrays alone.
        expected: the reference's outputs, or arrays of the same dtypes that are of rank 0 if those are.

    Raises:
        RuntimeFailure: MIGraphX fails, or has no type for an input.
    """
    results = program.run(to_tensors(program, inputs))
    outputs: Sample = {}
    for (name, right), result in zip(expected.items(), results, strict=True):
        array = result.numpy()
        outputs[name] = as_declared(array, right.shape, right.dtype) if isinstance(right, np.ndarray) else array
    return outputs


def to_tensors(program: RemoteProgram, inputs: Mapping[str, Value]) -> dict[str, Tensor]:
    """Return the parameters of a program; raises MigraphxError if one has no array, or one without a type there."""
    arrays, tensors = flat(inputs), {}
    for name, shape in program.get_parameter_shapes().items():
        if name not in arrays:
            raise MigraphxError(f"the value {name} cannot be given to MIGraphX")
        array = arrays[name]
        try:
            tensors[name] = Tensor.of(array.astype(shape.dtype) if array.dtype.name in PACKED else array)
        except TypeError as error:
            raise MigraphxError(str(error)) from None
    return tensors
