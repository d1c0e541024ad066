"""Compiling the device partitions of a model, and finding the smallest part that fails."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.bundle.partitions import parse, part_file
from onnx_bridge.bundle.requantize import QuantizationError
from onnx_bridge.conversion.compiling.forecast import CompileForecast
from onnx_bridge.conversion.compiling.retry import RECOVERABLE
from onnx_bridge.conversion.precision.quantizer import Quantizer
from onnx_bridge.conversion.stopwatch import Stopwatch
from onnx_bridge.core.delta_debug import bisect_first
from onnx_bridge.core.errors import (
    OutOfMemory,
    ProgramLost,
    RuntimeFailure,
    RuntimeNotFound,
    WorkerCrashed,
    WorkerTimeout,
)
from onnx_bridge.core.progress import QUIET_SECONDS, Stage, TimedProgress
from onnx_bridge.migraphx.gpu.compiler import GpuCompiler
from onnx_bridge.migraphx.remote_program import RemoteProgram
from onnx_bridge.migraphx.worker import Worker
from passes.core.text import counted
from passes.graphs.traversal import ancestors_of_last
from passes.probing.partition import Partition, Side, boundary, can_cross, extract
from passes.rewriting.base import Context
from passes.specialize.convert_precision import ConvertPrecision

_LIMITS = (OutOfMemory, WorkerTimeout, RuntimeNotFound, ProgramLost)
"""Failures that are not attributed to a node."""
_SEARCH_SECONDS, _GPU_SEARCH_SECONDS = 60.0, 600.0
"""The longest predicted duration of a search for the part that fails; kernels are compiled once."""


class CompilationFailed(Exception):
    """MIGraphX failed on the nodes of a partition after some seconds, while parsing or ``compiling``."""

    def __init__(
        self, compiler: Compiler, nodes: Sequence[ir.Node], error: RuntimeFailure, *, compiling: bool, seconds: float
    ) -> None:
        super().__init__(error)
        self.compiler = compiler
        self.nodes, self.error, self.compiling, self.seconds = nodes, error, compiling, seconds

    @property
    def accidental(self) -> bool:
        """True if another attempt may succeed: after a limit, or SIGKILL, which the system or a user sends."""
        killed = isinstance(self.error, WorkerCrashed) and self.error.signal is signal.SIGKILL
        return killed or isinstance(self.error, _LIMITS)


@dataclass
class Compiler:
    """Makes programs of partitions.

    Attributes:
        model: the cleaned model, with inferred types.
        worker: MIGraphX's process.
        target: the compilation target; None only parses.
        path: the file of the whole model, if there is one.
        quantizer: quantizes parsed programs.
        options: arguments of MIGraphX's ``compile``.
        stopwatch: announces and times the stages.
        gpu: what compiles for a GPU elsewhere, if the worker and the target are its.
        widened: whether what the model computes in 16 bits is computed in float32.
    """

    model: ir.Model
    worker: Worker
    target: str | None = None
    path: Path | None = None
    quantizer: Quantizer | None = None
    options: Mapping[str, bool] = field(default_factory=dict)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    gpu: GpuCompiler | None = None
    widened: bool = False

    def elsewhere(self, gpu: GpuCompiler, environment: Mapping[str, str]) -> Compiler:
        """Return the compiler of the same model for a GPU elsewhere, given further variables."""
        options = {**self.options, "exhaustive_tune": False}  # nothing can be measured
        worker = gpu.worker(environment)
        return replace(self, worker=worker, target=gpu.target, options=options, gpu=gpu, widened=False)

    def described(self, error: RuntimeFailure) -> RuntimeFailure:
        """Return an error that says for which GPU elsewhere MIGraphX failed."""
        if self.gpu is None:
            return error
        what = f"MIGraphX cannot compile the model for {self.gpu.architecture.name}: {error.what}"
        hint = f"onnx-bridge bisect MODEL {self.gpu.option} names the nodes"
        return RuntimeFailure(what, hint=hint, output=error.output)

    def compile(self, partition: Partition) -> RemoteProgram | None:
        """Return the program of a partition; None for a host partition.

        Raises:
            CompilationFailed: MIGraphX failed in a way that another attempt, or fewer nodes, may avoid.
            RuntimeFailure: MIGraphX failed in another way.
        """
        if partition.side is Side.HOST:
            return None
        graph = self.model.graph
        borders = [value for value in graph.inputs if not value.is_initializer()], list(graph.outputs)
        is_whole = (list(partition.inputs), list(partition.outputs)) == borders
        whole = self.path if is_whole and not self.widened else None
        forecast = CompileForecast.of([partition.nodes], self.worker.runtime)
        started, compiling = time.perf_counter(), False
        try:
            with self.stopwatch(Stage.PARSE):
                program = self._parse(partition.inputs, partition.outputs, whole)
            if self.quantizer is not None and self.target is not None:
                with self.stopwatch(Stage.QUANTIZE):
                    self.quantizer(program, partition)
            compiling = True
            if self.target is not None:
                with self.stopwatch(Stage.COMPILE):
                    self._tell(forecast)
                    program.compile(self.target, **self.options)
        except RuntimeFailure as error:
            if isinstance(error, WorkerTimeout) and compiling and self.gpu is None:
                error.hint = f"on an idle machine it takes {forecast}; {error.hint}"
            if isinstance(error, QuantizationError) or (
                isinstance(error, _LIMITS) and not isinstance(error, RECOVERABLE)
            ):
                raise
            seconds = time.perf_counter() - started
            raise CompilationFailed(self, partition.nodes, error, compiling=compiling, seconds=seconds) from error
        return program

    def _tell(self, forecast: CompileForecast) -> None:
        """Say how long compiling takes, unless that is short."""
        if forecast.seconds > QUIET_SECONDS and self.gpu is None:
            self.stopwatch.progress(TimedProgress(f"{forecast.instructions:,} instructions", forecast.seconds))

    def smallest_failing_part(self, failed: CompilationFailed) -> list[ir.Node]:
        """Return the smallest part of a partition, found by bisection, that fails in the same step.

        Empty if the search would take too long, or the failure is not reproduced.
        """
        nodes = list(failed.nodes)
        if not nodes:
            return []
        attempts = 2 * math.ceil(math.log2(len(nodes) + 1)) + 2
        if failed.seconds * attempts > (_GPU_SEARCH_SECONDS if self.gpu else _SEARCH_SECONDS):
            return []

        def fails(part: Sequence[ir.Node]) -> bool:
            return bool(part) and self._fails(part, failed.compiling)

        if not fails(nodes):
            return []
        end = bisect_first(range(1, len(nodes) + 1), lambda count: fails(nodes[:count]))
        start = end - bisect_first(range(1, end + 1), lambda count: fails(nodes[end - count : end]))
        part = nodes[start:end]
        related = ancestors_of_last(part)
        return related if fails(related) else part

    def _fails(self, nodes: Sequence[ir.Node], compiling: bool) -> bool:
        inputs, outputs = boundary(self.model.graph, nodes)
        if not all(map(can_cross, inputs)):
            return False  # MIGraphX cannot take these inputs, so that the attempt would prove nothing
        try:
            program = self._parse(inputs, outputs, None)
            if compiling and self.target is not None:
                program.compile(self.target, **self.options)
        except _LIMITS:
            raise
        except RuntimeFailure:
            return True
        return False

    def _parse(self, inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], whole: Path | None) -> RemoteProgram:
        names = [[str(value.name) for value in values] for values in (inputs, outputs)]
        with self._part_file(*names) if whole is None else contextlib.nullcontext(whole) as path:
            program = parse(self.worker, path, {str(tensor.name): _sizes(tensor) for tensor in inputs})
        shapes = program.get_output_shapes()
        if len(shapes) != len(outputs):
            listed = ", ".join(names[1])
            raise RuntimeFailure(
                f"MIGraphX returns {counted(len(shapes), 'output')} instead of {len(outputs)} ({listed})"
            )
        for value, shape in zip(outputs, shapes, strict=True):
            declared = _sizes(value)
            if shape.dynamic:
                raise RuntimeFailure(f"MIGraphX infers no fixed shape for {value.name}")
            if declared is not None and None not in declared and list(shape.lens) != (declared or [1]):
                raise RuntimeFailure(f"MIGraphX infers the shape {list(shape.lens)} for {value.name}, not {declared}")
        return program

    def _part_file(self, inputs: Sequence[str], outputs: Sequence[str]) -> contextlib.AbstractContextManager[Path]:
        part = extract(self.model, inputs, outputs)
        if self.widened:
            ConvertPrecision(to="fp32").run(part, Context())
        return part_file(part)


def _sizes(value: ir.Value) -> list[int | None] | None:
    return None if value.shape is None else [dim if isinstance(dim, int) else None for dim in value.shape]
