"""From a probe to a question that MIGraphX can answer, and from its answer to a verdict.

Accepting is not enough: the number, dtypes and shapes of the outputs must be those that the model declares, and where
it is cheap the probe is compiled for ``ref``, run, and compared with the reference.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnx_bridge.migraphx.program import Tensor, type_of
from onnx_bridge.reference.compare import DEFAULTS, Tolerance, compare, default_tolerance
from onnx_bridge.verdicts.probe_samples import samples
from onnx_bridge.verdicts.reference_worker import ReferenceWorker, Values
from passes.core.base import Status, Verdict
from passes.core.graphs import subgraphs
from passes.target.probes import Probe

TARGET = "ref"

_NODE_WORK, _CLUSTER_WORK = 1_000_000, 100_000_000
"""The most multiply-adds of a node that is run, and of several that are suspected together."""
_RUN_BYTES = 8 << 20
"""The most bytes of constants and inputs of a probe that is run."""
_STANDARD = frozenset(("", "ai.onnx.ml"))
_TYPES = {
    ir.DataType.INT4: "int8_type",
    ir.DataType.UINT4: "uint8_type",
    ir.DataType.FLOAT4E2M1: "fp4x2_type",
}
"""What MIGraphX turns dtypes into that it has not."""
Description = tuple[str, Sequence[int], Sequence[int], Sequence[tuple[int, int]]]
"""An output as the worker describes it: type, sizes, strides, and the ranges of the sizes where they are not fixed."""
_QUANTIZERS = re.compile("Q[A-Z]|Quantize|Dequantize|DynamicQuantize|.*Integer$")
_FLOAT32 = Tolerance(1e-4, 1e-5)
"""For one node, of which each result is a short computation; `DEFAULTS` allow for a whole network."""


@dataclass
class Question:
    """A probe as it is put to MIGraphX.

    Attributes:
        probe: what it is about.
        model: serialized.
        whole: whether the model has the elements of all constants.
        target: what it is compiled for; None where it is only parsed.
        samples: what it is run on.
        expected: the right outputs for each sample.
    """

    probe: Probe
    model: bytes
    whole: bool
    target: str | None = None
    samples: list[Values] = field(default_factory=list)
    expected: list[Values] = field(default_factory=list)

    @property
    def reload(self) -> bool:
        """Whether its program is saved and loaded before it runs: MIGraphX 2.14 brings some control flow back wrong."""
        return any(next(subgraphs(node), None) is not None for node in self.probe.nodes)

    @property
    def empty(self) -> dict[str, list[int]]:
        """The shapes of inputs without elements: a size of 0 reads as unknown to MIGraphX, unless it is given."""
        shapes = (self.probe.shape(value) for value in self.probe.inputs)
        return {f"v{index}": [dim or 0 for dim in shape] for index, shape in enumerate(shapes) if shape and 0 in shape}

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """What travels with the question: the model under the prefix, and the inputs under it, sample and name."""
        found = {prefix: Tensor("uint8_type", np.frombuffer(self.model, np.uint8))}
        for number, sample in enumerate(self.samples):
            found |= {f"{prefix}:{number}:{name}": Tensor.of(_widened(array)) for name, array in sample.items()}
        return found


def ask(probe: Probe, reference: ReferenceWorker, *, run: bool, full: bool = False, by_onnx: bool = False) -> Question:
    """The question for a probe.

    Args:
        probe: without a problem.
        reference: computes the expected outputs.
        run: compile it and, where that is cheap and there is a reference, run it.
        full: with all constants, whatever their size.
        by_onnx: what the probe replaces is computed by ONNX's own evaluator.
    """
    target = TARGET if run else None
    if not (run and _is_cheap(probe)):
        whole = full or probe.has_all_data
        return Question(probe, probe.to_proto(full=full).SerializeToString(), whole, target)
    proto = probe.to_proto(full=True)
    question = Question(probe, proto.SerializeToString(), True, target)
    if not _is_determined(probe) or not all(_can_be_fed(value) for value in proto.graph.input):
        return question
    if not _take_from_original(question, proto, reference, by_onnx):
        given = samples(ir.from_proto(proto))
        _take(question, given, reference.run(question.model, given))
    return question


def _take_from_original(question: Question, proto: onnx.ModelProto, reference: ReferenceWorker, by_onnx: bool) -> bool:
    """Let what the probe replaces say what is right, if there is a reference for that; samples are what suits it."""
    original, places = question.probe.instead_of, question.probe.full_places
    if original is None or original.problem is not None or places is None:
        return False
    if not (_is_cheap(original) and _is_determined(original)):
        return False
    before = original.to_proto(full=True)
    given = samples(ir.from_proto(before))
    theirs = [[each.name for each in values] for values in (before.graph.input, before.graph.output)]
    inputs = {ours.name: theirs[0][place] for ours, place in zip(proto.graph.input, places, strict=True)}
    outputs = dict(zip((each.name for each in proto.graph.output), theirs[1], strict=True))
    answers = reference.run(before.SerializeToString(), given, by_onnx=by_onnx)
    _take(
        question,
        [{ours: sample[name] for ours, name in inputs.items()} for sample in given],
        [None if answer is None else {ours: answer[name] for ours, name in outputs.items()} for answer in answers],
    )
    return bool(question.samples)


def _take(question: Question, given: Sequence[Values], answers: Sequence[Values | None]) -> None:
    for sample, outputs in zip(given, answers, strict=True):
        if outputs is not None:  # what the reference refuses, nobody need be able to run
            question.samples.append(sample)
            question.expected.append(outputs)


def judge(question: Question, answer: Mapping[str, Any], outputs: Mapping[str, Tensor]) -> Verdict:
    """The verdict.

    Args:
        question: what was asked.
        answer: what the worker says of it.
        outputs: what MIGraphX computed, as ``sample:output``.
    """
    if "timeout" in answer:
        return Verdict(Status.HANGS, f"no answer within {answer['timeout']:g} s")
    if "died" in answer:
        return Verdict(Status.CRASHES, _last_words(answer["died"], answer["printed"]))
    if "error" in answer:
        return Verdict(Status.REJECTED, answer["error"]["what"])
    misread = _misread(question.probe, answer["ok"]["outputs"])
    if misread is not None:
        return Verdict(Status.WRONG, misread)
    if question.samples:
        return _compared(question, outputs)
    return _unproven(question.probe, answer["ok"]["outputs"]) or Verdict(Status.OK)


def _is_cheap(probe: Probe) -> bool:
    work = probe.multiply_adds()
    limit = _NODE_WORK if len(probe.nodes) == 1 else _CLUSTER_WORK
    if work is not None and work > limit:
        return False
    size = sum(_bytes(probe, value) for value in (*probe.inputs, *probe.outputs))
    return size <= _RUN_BYTES and probe.data_bytes <= _RUN_BYTES


def _bytes(probe: Probe, value: ir.Value) -> int:
    dtype, shape = probe.dtype(value), probe.shape(value)
    width = dtype.bitwidth if dtype is not None else 32
    return math.prod(dim or 1 for dim in shape or ()) * width // 8


def _is_determined(probe: Probe) -> bool:
    """Whether ONNX says what the probe computes, up to rounding."""
    return not any(node.op_type == "TopK" and not node.attributes.get_int("sorted", 1) for node in probe.nodes)


def _can_be_fed(value: onnx.ValueInfoProto) -> bool:
    kind = _type(ir.DataType(value.type.tensor_type.elem_type))
    return kind is not None and kind != "fp4x2_type"  # which would have to be packed as MIGraphX packs it


def _type(dtype: ir.DataType) -> str | None:
    """MIGraphX's type for a dtype; None where it has none."""
    return _TYPES.get(dtype) or (None if dtype == ir.DataType.STRING else type_of(dtype.numpy()))


def _misread(probe: Probe, shapes: Sequence[Description]) -> str | None:
    """How the outputs differ from what the model declares; None where they do not."""
    if len(shapes) != len(probe.outputs):
        return f"accepted, but with {len(shapes)} of {len(probe.outputs)} outputs"
    for index, (value, (kind, lens, _, ranges)) in enumerate(zip(probe.outputs, shapes, strict=True)):
        dtype, shape = probe.dtype(value), probe.shape(value)
        if dtype is not None and kind != _type(dtype):
            return f"accepted, but output {index} is of {kind.removesuffix('_type')}, not of {dtype.name.lower()}"
        if ranges:
            return f"accepted, but MIGraphX leaves the shape of output {index} open"
        if shape is not None and kind != "fp4x2_type" and not _fits(lens, shape):
            return f"accepted, but output {index} has the shape {list(lens)}, not {list(shape)}"
    return None


def _fits(lens: Sequence[int], shape: Sequence[int | None]) -> bool:
    """Whether MIGraphX's sizes are those declared; scalars are (1,) to it."""
    if not shape:
        return list(lens) in ([], [1])
    return len(lens) == len(shape) and all(size in (None, actual) for actual, size in zip(lens, shape, strict=True))


def _unproven(probe: Probe, shapes: Sequence[Description]) -> Verdict | None:
    """An accepted probe that was not run, where the outputs' sizes depend on the data and MIGraphX's are fixed."""
    if not {domain for domain, _ in probe.operators} <= _STANDARD or probe.scope.model.functions:
        return None  # ONNX cannot infer these
    for index, (value, (_, _, _, ranges)) in enumerate(zip(probe.outputs, shapes, strict=True)):
        shape = probe.shape(value)
        if shape is not None and None in shape and not ranges:
            return Verdict(Status.WRONG, f"accepted, but the size of output {index} depends on the data")
    return None


def _compared(question: Question, outputs: Mapping[str, Tensor]) -> Verdict:
    errors, reasons = [], []
    for number, expected in enumerate(question.expected):
        wanted = {name: _widened(array) for name, array in expected.items()}
        actual = {
            name: _shaped(outputs[f"{number}:{index}"].numpy(), array)
            for index, (name, array) in enumerate(wanted.items())
        }
        tolerances = {name: _tolerance(question.probe, array) for name, array in wanted.items()}
        for index, output in enumerate(compare(actual, wanted, tolerances).outputs):
            if output.max_abs is not None:
                errors.append(output.max_abs)
            if output.reason is not None:
                reasons.append(f"output {index}: {output.reason}")
    error = max(errors, default=None)
    return Verdict(Status.WRONG, reasons[0], error) if reasons else Verdict(Status.OK, error=error)


def _widened(array: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """Integers of 4 bits as those of 8, which they are to MIGraphX."""
    if array.dtype.name in ("int4", "uint4"):
        return array.astype(np.int8 if array.dtype.name == "int4" else np.uint8)
    return array


def _shaped(actual: np.ndarray[Any, np.dtype[Any]], expected: np.ndarray[Any, np.dtype[Any]]) -> Any:
    return actual.reshape(()) if expected.shape == () and actual.shape == (1,) else actual


def _tolerance(probe: Probe, expected: np.ndarray[Any, np.dtype[Any]]) -> Tolerance:
    """How far one node may be off by rounding."""
    tolerance = default_tolerance(expected)
    if expected.dtype.name == "float32":
        largest = float(np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected)))
        tolerance = Tolerance(_FLOAT32.rtol, max(DEFAULTS["float32"][1], min(1.0, largest) * _FLOAT32.atol))
    if any(_QUANTIZERS.match(name) for _, name in probe.operators):
        if expected.dtype.kind in "iu" and expected.dtype.itemsize == 1:
            return Tolerance(0.0, 1.0)  # halfway between two steps, either is right
        if "float" in expected.dtype.name:
            values = expected.astype(np.float64)
            largest = float(np.max(np.abs(values), initial=0.0, where=np.isfinite(values)))
            return Tolerance(tolerance.rtol, max(tolerance.atol, largest / 64))
    return tolerance


def _last_words(status: int, printed: str) -> str:
    """The signal that ended a process, and what it said."""
    how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    said = re.sub(r"^.*?(?=Assertion )", "", lines[-1]) if lines else ""
    return f"{how}: {said}" if said else how
