"""The values inside a bundle: its partitions, parsed again with more outputs, and run in order.

Fetching values changes what MIGraphX fuses. So the outputs are fetched along with them, and whoever asks compares them
with those of the bundle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.device import Device, can_feed
from onnx_bridge.bundle.program import Program
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Value
from onnx_bridge.migraphx.compile_options import CompileOptions
from onnx_bridge.model import io as models
from onnx_bridge.reference.reference import Reference
from onnx_bridge.reference.unfolded import unfolded
from onnx_bridge.requests.conversion import BY_CALIBRATION
from passes.probing.partition import extract
from passes.shapes.inference import infer

Values = Mapping[str, Value]


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
        return frozenset(name for name, value in self._made.items() if can_feed(value))

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
        worker, manifest = self.program.worker, self.program.manifest
        if worker is None:
            raise InputError("the program is not loaded", where=str(self.program.path))
        for value in part.graph.inputs:
            value.shape = ir.Shape(np.shape(inputs[str(value.name)]))  # type: ignore[arg-type]
        options = CompileOptions.of(manifest.request.options, worker.runtime, manifest.target)
        device = Device(worker, manifest.target, self.program.limits, options=options.compile)
        names = [str(value.name) for value in part.graph.outputs]
        return device.run(part, inputs, {name: _like(self._made[name]) for name in names})


def _like(value: ir.Value) -> Value:
    """Return an array of the dtype and rank of a value; None if these are unknown."""
    if value.shape is None or value.dtype is None:
        return None
    return np.empty((1,) * len(value.shape), value.dtype.numpy())
