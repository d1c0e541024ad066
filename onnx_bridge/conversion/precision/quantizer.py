"""int8 and fp8 by MIGraphX's quantizers, program by program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.requantize import quantize
from onnx_bridge.conversion.precision.quantized_products import effect
from onnx_bridge.core.errors import MigraphxError
from onnx_bridge.core.values import flat
from onnx_bridge.migraphx.program import Program, Tensor
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples.calibration import Calibration
from passes.graphs.scopes import required_inputs
from passes.probing.partition import Partition, extract


@dataclass
class Quantizer:
    """Quantizes the programs of one model.

    Attributes:
        precision: ``int8`` or ``fp8``.
        target: the target that ranges are measured on.
        model: the cleaned model, of which partitions are parts.
        used: the tensors that each partition was calibrated on, by its inputs.
    """

    precision: str
    target: str
    calibration: Calibration
    model: ir.Model
    used: dict[tuple[str, ...], list[dict[str, Tensor]]] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        return [*self.calibration.notes, *effect(self.model, self.precision)]

    def __call__(self, program: Program, partition: Partition) -> None:
        """Quantize a parsed program; raises QuantizationError if MIGraphX refuses, or its process ends."""
        names = tuple(str(value.name) for value in partition.inputs)
        if names not in self.used:
            self.used[names] = self._tensors(names, program)
        quantize(program, self.precision, self.target, self.used[names])

    def _tensors(self, names: Sequence[str], program: Program) -> list[dict[str, Tensor]]:
        """Return the samples at the inputs of a partition; ONNX Runtime computes what other partitions would."""
        parameters = program.get_parameter_shapes()
        wanted = [name for name in names if name in parameters]
        given = {name for sample in self.calibration.samples for name in sample}
        inner = [name for name in wanted if name not in given]
        samples: list[Mapping[str, Any]] = list(self.calibration.samples)
        if inner:
            inputs = [str(value.name) for value in required_inputs(self.model)]
            before = Reference(extract(self.model, inputs, inner))
            samples = [
                {**sample, **before.run({name: sample[name] for name in before.input_names})} for sample in samples
            ]
        arrays = [{name: array for name, array in flat(sample).items() if name in wanted} for sample in samples]
        return [
            {name: Tensor.of(array.astype(parameters[name].dtype)) for name, array in sample.items()}
            for sample in arrays
        ]

    def save_samples(self, path: Path, partitions: Mapping[int, Sequence[str]]) -> None:
        """Write the samples of partitions, given by index and inputs, for `onnx_bridge.bundle.requantize`."""
        arrays = {
            f"{index}/{number}/{name}": tensor.data
            for index, inputs in partitions.items()
            for number, sample in enumerate(self.used[tuple(inputs)])
            for name, tensor in sample.items()
        }
        np.savez(path, **arrays)  # type: ignore[arg-type]


def loads_back(worker: Worker, path: Path) -> bool:
    """Return whether MIGraphX can read a program that it wrote."""
    try:
        worker.load(path)
    except MigraphxError:
        return False
    return True
