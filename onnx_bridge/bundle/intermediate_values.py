"""The values inside a bundle: its partitions, parsed again with more outputs, and run in order.

Fetching values changes what MIGraphX fuses. So the outputs are fetched along with them, and whoever asks compares them
with those of the bundle.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.partitions import parse
from onnx_bridge.bundle.program import Program
from onnx_bridge.bundle.requantize import BY_CALIBRATION
from onnx_bridge.core.errors import InputError, MigraphxError
from onnx_bridge.core.values import Array, Value
from onnx_bridge.migraphx.compile_options import CompileOptions
from onnx_bridge.migraphx.program import Tensor, type_of
from onnx_bridge.model import io as models
from onnx_bridge.reference.reference import Reference
from onnx_bridge.reference.unfolded import unfolded
from passes.probing.partition import extract
from passes.shapes.inference import infer

Values = Mapping[str, Value]

_PACKED = ("int4", "uint4")


@dataclass
class InsideProgram:
    """The values inside a loaded program of a bundle that keeps its cleaned model."""

    program: Program

    @classmethod
    def of(cls, program: Program) -> InsideProgram | None:
        """Return the inside of a program; None if it keeps no model, or MIGraphX has quantized it."""
        quantized = program.manifest.request.precision in BY_CALIBRATION
        return None if program.model_path is None or quantized else cls(program)

    @cached_property
    def model(self) -> ir.Model:
        """The cleaned model, with inferred types; loops and branches are in its main graph if that is possible."""
        assert self.program.model_path is not None
        model = unfolded(models.load(self.program.model_path))
        infer(model)
        return model

    @cached_property
    def names(self) -> frozenset[str]:
        """The values that can be fetched."""
        return frozenset(name for name, value in self._made.items() if _can_fetch(value))

    def values(self, sample: Values, names: Sequence[str]) -> dict[str, Value]:
        """Return some values by name, and the outputs; raises RuntimeFailure, InputError."""
        values: dict[str, Value] = dict(sample)
        wanted = set(names) & self.names
        for inputs, outputs, device in self._pieces(wanted):
            part = extract(self.model, inputs, outputs)
            given = {name: values[name] for name in inputs}
            values |= self._run(part, given) if device else Reference(part).run(given)
        return {name: value for name, value in values.items() if name not in sample or name in wanted}

    def _pieces(self, wanted: set[str]) -> Iterator[tuple[list[str], list[str], bool]]:
        """Yield the inputs and outputs of each program and host partition, and whether MIGraphX runs it."""
        for info in self.program.info.partitions:
            inputs, outputs = [tensor.name for tensor in info.inputs], [output.name for output in info.outputs]
            nodes = list(extract(self.model, inputs, outputs).graph)
            inside = [str(value.name) for node in nodes for value in node.outputs if value.name in wanted]
            yield inputs, list(dict.fromkeys((*outputs, *inside))), info.program is not None

    @cached_property
    def _made(self) -> dict[str, ir.Value]:
        return {str(value.name): value for node in self.model.graph for value in node.outputs if value.name}

    def _run(self, part: ir.Model, inputs: Values) -> dict[str, Value]:
        names = [str(value.name) for value in part.graph.outputs]
        worker, manifest = self.program.worker, self.program.manifest
        if worker is None:
            raise InputError("the program is not loaded", where=str(self.program.path))
        shapes = {name: array.shape for name, array in inputs.items() if isinstance(array, np.ndarray)}
        for value in part.graph.inputs:
            value.shape = ir.Shape(shapes[str(value.name)])
        options = CompileOptions.of(manifest.request.options, worker.runtime, manifest.target)
        with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder, worker.limited(self.program.limits):
            path = Path(folder) / "model.onnx"
            models.save(part, path)
            program = parse(worker, path, shapes)
            if (count := len(program.get_output_shapes())) != len(names):
                raise MigraphxError(f"MIGraphX gives {count} outputs instead of {len(names)}")
            program.compile(manifest.target, **options.compile)
            parameters = program.get_parameter_shapes()
            tensors = {
                name: Tensor.of(array.astype(parameters[name].dtype) if array.dtype.name in _PACKED else array)
                for name, array in inputs.items()
                if name in parameters and isinstance(array, np.ndarray)
            }
            results = program.run(tensors)
        return {name: _restored(result.numpy(), self._made[name]) for name, result in zip(names, results, strict=True)}


def _can_fetch(value: ir.Value) -> bool:
    """Return whether MIGraphX has a type for a value."""
    if value.type is None:
        return True
    plain = isinstance(value.type, ir.TensorType) and value.dtype not in (None, ir.DataType.STRING)
    return plain and value.dtype is not None and type_of(value.dtype.numpy()) is not None


def _restored(array: Array, value: ir.Value) -> Array:
    """Return a scalar, which is of rank 1 in MIGraphX."""
    return array.reshape(()) if value.shape is not None and not len(value.shape) and array.shape == (1,) else array
