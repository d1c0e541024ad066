"""What MIGraphX makes of a model, and what is wrong with that: its symptom."""

from __future__ import annotations

import enum
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from onnx_bridge.bundle.submodel import parse
from onnx_bridge.core.errors import MigraphxError, OutOfMemory, RuntimeFailure, WorkerCrashed, WorkerTimeout
from onnx_bridge.core.values import Value, flat
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.limits import Limits
from onnx_bridge.migraphx.program import Tensor
from onnx_bridge.migraphx.remote_program import RemoteProgram
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.model import io as models
from onnx_bridge.parity.pieces import Piece, Runs
from onnx_bridge.reference.compare import Comparison, compare
from onnx_bridge.reference.cuts import PACKED
from onnx_bridge.reference.tolerances import Part, Tolerances
from onnx_bridge.samples.inputs import Sample

Precision = Literal["fp16", "bf16", "int8", "fp8"]
"""What MIGraphX can be asked to compute in, instead of the model's own dtypes."""


class Kind(enum.Enum):
    """What can be wrong with a model on a runtime."""

    WRONG = "wrong"
    """It computes something else, or gives other outputs."""
    REJECTED = "rejected"
    CRASHES = "crashes"
    HANGS = "hangs"
    """It ran into the limit of time."""
    MEMORY = "memory"
    """It ran into the limit of memory."""

    @classmethod
    def of(cls, error: RuntimeFailure) -> Kind:
        """What a failure is; one that ended nothing is a refusal."""
        return next((kind for error_type, kind in _KINDS.items() if isinstance(error, error_type)), cls.REJECTED)


@dataclass(frozen=True)
class Symptom:
    """What is wrong with a model, or a piece of one.

    Attributes:
        kind: in a word.
        step: in which step it shows: parse, quantize, compile, run.
        message: MIGraphX's own words, or how outputs differ.
        sample: the number of the first sample that shows it; None where it shows before any is run.
        comparison: of that sample's outputs, where they are wrong.
        outputs: them.
    """

    kind: Kind
    step: str
    message: str
    sample: int | None = None
    comparison: Comparison | None = field(default=None, repr=False)
    outputs: Sample | None = field(default=None, repr=False)

    def is_like(self, other: Symptom) -> bool:
        """Whether it is the same, as far as can be told: in another piece, numbers and names in a message differ."""
        if (self.kind, self.step) != (other.kind, other.step):
            return False
        if self.kind is Kind.WRONG:
            return self._by_numbers == other._by_numbers
        return self.kind is not Kind.REJECTED or _words(self.message) == _words(other.message)

    @property
    def _by_numbers(self) -> bool:
        """Whether it is the elements that are wrong, and not shapes, dtypes or the number of outputs."""
        outputs = self.comparison.outputs if self.comparison else ()
        return any(each.mismatched for each in outputs)

    @property
    def error(self) -> float | None:
        """The largest absolute error of the outputs that differ."""
        outputs = self.comparison.outputs if self.comparison else ()
        return max((each.max_abs for each in outputs if each.max_abs is not None and not each.passed), default=None)


_KINDS: Mapping[type[RuntimeFailure], Kind] = {
    MigraphxError: Kind.REJECTED,
    WorkerCrashed: Kind.CRASHES,
    WorkerTimeout: Kind.HANGS,
    OutOfMemory: Kind.MEMORY,
}


@dataclass
class Device:
    """MIGraphX, to try pieces on.

    Its process watches its heap, where the runtime can, so that a piece that corrupts it is blamed itself.

    Args:
        runtime: which one.
        target: what it compiles for.
        limits: of each step.
        tolerances: of what it computes.
        runs: counts those of it.
        precision: what it computes in; None is the model's own dtypes.
        watched: whether its process is to watch its heap.
    """

    runtime: Runtime
    target: str
    limits: Limits
    tolerances: Tolerances
    runs: Runs
    precision: Precision | None = None
    watched: bool = True

    @property
    def worker(self) -> Worker:
        """The process."""
        return workers.shared_with_heap_checks(self.runtime) if self.watched else workers.shared(self.runtime)

    def symptom(self, pieces: Iterable[Piece]) -> Symptom | None:
        """What is wrong with a model, or a piece, the worst sample of the first that is wrong; None where nothing is.

        Raises:
            RuntimeFailure: MIGraphX cannot be loaded.
        """
        return next((found for piece in pieces if (found := self._try(piece)) is not None), None)

    def _try(self, piece: Piece) -> Symptom | None:
        self.runs.migraphx += 1
        step, number = "parse", None
        try:
            with self.worker.limited(self.limits):
                program = self._parse(piece)
                given, wanted = len(program.get_output_shapes()), len(piece.model.graph.outputs)
                if given != wanted:
                    return Symptom(Kind.WRONG, step, f"MIGraphX gives {given} outputs where there are {wanted}")
                step = "quantize"
                self._quantize(program, piece)
                step = "compile"
                program.compile(self.target)
                step = "run"
                found: Symptom | None = None
                for number, inputs, expected in zip(piece.numbers, piece.inputs, piece.expected, strict=True):
                    outputs = run(program, inputs, expected)
                    compared = compare(outputs, expected, self._tolerances(piece, expected))
                    if not compared.passed:
                        each = Symptom(Kind.WRONG, step, reasons(compared), number, compared, outputs)
                        found = each if found is None or (each.error or 0) > (found.error or 0) else found
                return found
        except tuple(_KINDS) as error:
            return Symptom(_KINDS[type(error)], step, error.what, number)

    def _tolerances(self, piece: Piece, expected: Mapping[str, Value]) -> Tolerances:
        """Those of a piece: what rounds to the other step of a grid is no fault."""
        coarse = self.tolerances.at_least("int8")
        arrays = {name: array for name, array in flat(expected).items() if name in piece.quantized}
        parts = {name: coarse.of(name, array) for name, array in arrays.items() if name not in coarse.named}
        named = {name: Part(each.rtol, each.atol) for name, each in parts.items()}
        return replace(self.tolerances, named={**self.tolerances.named, **named})

    def _parse(self, piece: Piece) -> RemoteProgram:
        with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
            path = Path(folder) / "piece.onnx"
            models.save(piece.model, path)
            return parse(self.worker, path, {name: np.shape(each) for name, each in flat(piece.inputs[0]).items()})

    def _quantize(self, program: RemoteProgram, piece: Piece) -> None:
        if self.precision == "fp16":
            program.quantize_fp16()
        elif self.precision == "bf16":
            program.quantize_bf16()
        elif self.precision is not None:
            calibration = [_tensors(program, inputs) for inputs in piece.inputs]
            quantize = program.quantize_int8 if self.precision == "int8" else program.quantize_fp8
            quantize(self.target, calibration)


def run(program: RemoteProgram, inputs: Mapping[str, Value], expected: Mapping[str, Value]) -> Sample:
    """Run a compiled program; of what MIGraphX gives otherwise than ONNX says, only what is wrong stays different.

    Args:
        program: with the outputs of ``expected``, in this order.
        inputs: arrays alone.
        expected: likewise; it tells scalars, which are of rank 1 in MIGraphX, and int4, which is in bytes there.

    Raises:
        RuntimeFailure: MIGraphX fails, or has no type for an input.
    """
    results = program.run(_tensors(program, inputs))
    found: Sample = {}
    for (name, right), result in zip(expected.items(), results, strict=True):
        array = result.numpy()
        if isinstance(right, np.ndarray):
            if right.shape == () and array.shape == (1,):
                array = array.reshape(())
            if right.dtype.name in PACKED and array.dtype.itemsize == 1:
                array = array.astype(right.dtype)
        found[name] = array
    return found


def _tensors(program: RemoteProgram, inputs: Mapping[str, Value]) -> dict[str, Tensor]:
    """What a program takes of the inputs: it keeps none that nothing uses."""
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


def reasons(compared: Comparison) -> str:
    """How outputs differ, in words."""
    return "; ".join(f"{each.name}: {each.reason}" for each in compared.outputs if each.reason)


def _words(message: str) -> str:
    """A message without what depends on the place: numbers, and what is quoted or in brackets."""
    return re.sub(r"\d+|\[[^\]]*\]|\{[^}]*\}|'[^']*'|\"[^\"]*\"", "#", message.partition("\n")[0])
