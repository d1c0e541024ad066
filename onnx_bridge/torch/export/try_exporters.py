"""Export by one exporter after the other, until one gives a graph that computes what the module does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array, Value
from onnx_bridge.model import io as models
from onnx_bridge.reference.comparison.compare import Comparison, compare
from onnx_bridge.reference.comparison.judge import Judge
from onnx_bridge.reference.comparison.tolerances import Tolerances
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests.export import ExportRequest
from onnx_bridge.torch.export.exported import Exported, ExportFailed
from onnx_bridge.torch.export.exporters import EXPORTERS, Dims, Exporter, ExporterError, run_exporter
from onnx_bridge.torch.export.naming import correct_output_shapes
from onnx_bridge.torch.export.output_tolerances import output_tolerances
from onnx_bridge.torch.export.recorded_choices import RecordedChoices
from onnx_bridge.torch.export.samples import (
    check_dynamic,
    distinct_sizes,
    negated,
    other_values,
    resized,
    symbol_sizes,
)
from onnx_bridge.torch.modules import side_effects
from onnx_bridge.torch.modules.calls import Call, FlatModule, Result, first_run
from onnx_bridge.torch.modules.dynamic_linear import is_packed
from onnx_bridge.torch.modules.modules import check_devices, check_module, inference_copy, traceable, training_submodule
from onnx_bridge.torch.modules.structure import Structure, renamed
from onnx_bridge.torch.modules.tensors import to_array
from passes.isolation.failure import NativeFailure

Tensors = Mapping[str, torch.Tensor]

_PAST, _PRESENT = "past_key_values", "present"
"""The prefix of the names of input caches, and of output caches, as other exporters have them."""
_PACKED = "quantize it with PT2E (prepare_pt2e, convert_pt2e), whose graphs can be exported"
_FOLLOWED = "its Python branches on data: the graph always takes the branches of the given arguments"
_NOT_REPEATABLE = (
    "called again with the same arguments it returns something else: it draws random numbers, or has state"
)


def try_exporters(module: nn.Module, request: ExportRequest, progress: Callable[[str], None] | None = None) -> Exported:
    """Export a module; raises like `onnx_bridge.export`."""
    tell = progress or (lambda _stage: None)
    with torch.inference_mode(False):  # in inference mode nothing can be traced, and in-place writes are not counted
        check_module(module)
        call, tensors = Call.of(module, request.args, request.kwargs)
        check_devices(module, tensors)
        if not tensors:
            raise InputError("the module is called without any tensor, so it is a constant", where="the module")
        dims = check_dynamic(tensors, request.dynamic)
        with inference_copy(module) as copied:
            flat = FlatModule(copied, call).eval()
            tell("run PyTorch")
            given = _run(flat, tensors)
            attempt = _Attempt(flat, call, request, given, dims, tell)
            attempt.notes += _notes(module, call)
            refusals: dict[str, str] = {}
            for exporter in EXPORTERS if request.exporter == "auto" else (request.exporter,):
                try:
                    exported = attempt.export(exporter)
                except ExporterError as error:
                    refusals[exporter] = str(error)
                    attempt.branches_on_data = attempt.branches_on_data or error.data_dependent
                    continue
                return attempt.finish(exporter, exported, refusals)
            hint = _hint(module, attempt)
    raise ExportFailed(refusals, where=type(module).__name__, hint=hint)


@dataclass(frozen=True)
class _Run:
    """One sample through the module itself."""

    inputs: Tensors
    result: Structure
    outputs: Mapping[str, Array]
    writes: Result


@dataclass(frozen=True)
class _Checked:
    """A graph that agrees with the module."""

    model: ir.Model
    runs: list[_Run]
    comparisons: list[Comparison]


@dataclass
class _Attempt:
    """The export of one call of a module.

    Attributes:
        given: the module's run on the given arguments.
        dims: the open dimensions.
        branches_on_data: whether an exporter failed because Python branches on the elements of tensors.
    """

    flat: FlatModule
    call: Call
    request: ExportRequest
    given: _Run
    dims: Dims
    tell: Callable[[str], None]
    notes: list[str] = field(default_factory=list)
    branches_on_data: bool = False

    def __post_init__(self) -> None:
        self.sizes = symbol_sizes(self.given.inputs, self.dims)
        fixed = {
            size
            for name, tensor in self.given.inputs.items()
            for axis, size in enumerate(tensor.shape)
            if axis not in self.dims.get(name, {})
        }
        self.traced = FlatModule(traceable(self.flat.module), self.call).eval()
        self.traced_inputs = resized(self.given.inputs, self.dims, distinct_sizes(self.sizes, sorted(fixed)))
        writes, outputs = self.given.writes, self.given.outputs
        self.effects = side_effects.write_effects(self.flat, self.given.inputs, outputs, writes)

    def export(self, exporter: Exporter) -> _Checked:
        """Export by one exporter, and compare the graph with the module; raises ExporterError if that fails."""
        self.tell(f"export by {exporter}")
        out, opset = self.request.out, self.request.opset
        folder = None if out is None else out.absolute().parent
        model = run_exporter(
            exporter, self.traced, self.traced_inputs, list(self.given.outputs), self.dims, opset, folder
        )
        self.tell("check")
        runs = [self.given, *self._second(model)]
        if self.branches_on_data:  # and this exporter has followed the branches of the given arguments
            runs += self._opposite()
        return _Checked(model, runs, self._compare(model, runs))

    def _compare(self, model: ir.Model, runs: Sequence[_Run]) -> list[Comparison]:
        """Compare ONNX Runtime with PyTorch; raises ExporterError if it cannot run the graph, or they differ."""
        try:
            reference = Reference(model)
            results = [reference.run({name: to_array(value) for name, value in run.inputs.items()}) for run in runs]
        except (InputError, NativeFailure) as error:
            raise ExporterError(f"the graph does not run: {error.what}") from error
        comparisons = []
        for index, (outputs, run) in enumerate(zip(results, runs, strict=True)):
            compared = compare(outputs, run.outputs, output_tolerances(model, run.outputs))
            if not compared.passed:
                compared = self._judged(model, reference, compared, outputs, run)
            if problem := _refusal(model, index, compared):
                raise ExporterError(problem)
            comparisons.append(compared)
        return comparisons

    def _judged(
        self, model: ir.Model, reference: Reference, compared: Comparison, outputs: Mapping[str, Value], run: _Run
    ) -> Comparison:
        """Return a comparison in which what differs by ties alone is not determined."""
        recorded = RecordedChoices.of(model, self.flat, run.inputs, run.outputs)
        sample = {name: to_array(value) for name, value in run.inputs.items()}
        judge = Judge(model, Tolerances(), session=reference)
        judged = _given_choices(compared, judge.judge(run.outputs, outputs, sample, recorded))
        self.notes += [f"{output.name}: {output.undetermined}" for output in judged.outputs if output.undetermined]
        return judged

    def finish(self, exporter: Exporter, checked: _Checked, refusals: Mapping[str, str]) -> Exported:
        model, runs, path = checked.model, checked.runs, self.request.out
        if self.branches_on_data:
            self.notes.append(_FOLLOWED)
        shapes = [{name: array.shape for name, array in run.outputs.items()} for run in runs]
        correct_output_shapes(model, [symbol_sizes(run.inputs, self.dims) for run in runs], shapes)
        constants = side_effects.constant_effects([run.result for run in runs])
        changing = (*self.effects.changing, *constants.changing)
        if path is not None:
            self.tell("write")
            models.save(model, path)
            model = models.load(path)  # mapped from the file, it shares no memory with the module
        return Exported(
            model=model,
            exporter=exporter,
            refusals=refusals,
            notes=(*self.notes, *self.effects.notes, *constants.notes, *changing),
            changing=changing,
            samples=tuple({name: to_array(value) for name, value in run.inputs.items()} for run in runs),
            expected=tuple(run.outputs for run in runs),
            comparisons=tuple(checked.comparisons),
            call=self.call,
            result=self.given.result,
            path=path,
        )

    def _second(self, model: ir.Model) -> list[_Run]:
        """Run a sample with other sizes of open dimensions; return none if the module runs with no generated one."""
        sizes = self.sizes
        larger = {symbol: size + 1 + index for index, (symbol, size) in enumerate(sizes.items())}
        smaller = {symbol: max(1, size - 1 - index) for index, (symbol, size) in enumerate(sizes.items())}
        last: InputError | None = None
        for chosen in [larger, smaller, sizes] if sizes else [{}]:
            shaped = resized(self.given.inputs, self.dims, chosen)
            for how in ("roles", "shuffled"):
                try:
                    run = _run(self.flat, other_values(model, shaped, how))
                except InputError as error:
                    last = error
                    continue
                if sizes and chosen is sizes:
                    self.notes.append(
                        "PyTorch runs it with no other sizes than the given ones, so open sizes are not checked"
                    )
                return [run]
        assert last is not None
        self.notes.append(
            f"checked on the given arguments alone: PyTorch does not run it on generated ones: {last.what}"
        )
        return []

    def _opposite(self) -> list[_Run]:
        """Return a sample for which branches on data are likely to go the other way; none if the module fails on it."""
        try:
            return [_run(self.flat, {name: negated(value) for name, value in self.given.inputs.items()})]
        except InputError:
            return []


def _hint(module: nn.Module, attempt: _Attempt) -> str | None:
    if any(map(is_packed, module.modules())):
        return _PACKED
    if attempt.effects.changing:
        return attempt.effects.changing[0]
    repeatable = side_effects.is_repeatable(attempt.flat, attempt.given.inputs, attempt.given.outputs)
    return None if repeatable else _NOT_REPEATABLE


def _run(flat: FlatModule, tensors: Tensors) -> _Run:
    """Run the module, and give its outputs names that differ from those of its inputs."""
    result = first_run(flat, tensors)
    if not result.tensors:
        raise InputError("the module returns no tensor", where=type(flat.module).__name__)
    names = {name: _output_name(name, tensors) for name in result.tensors}
    outputs = {names[name]: to_array(tensor) for name, tensor in result.tensors.items()}
    return _Run(tensors, renamed(result.structure, names), outputs, result)


def _output_name(name: str, inputs: Tensors) -> str:
    if name not in inputs:
        return name
    return _PRESENT + name.removeprefix(_PAST) if name.startswith(_PAST) else f"output.{name}"


def _refusal(model: ir.Model, index: int, comparison: Comparison) -> str | None:
    """Return why a graph is not what PyTorch computes; None if no output differs."""
    differing = [output for output in comparison.outputs if output.differs]
    if not differing:
        return None
    worst = max(differing, key=lambda output: output.max_abs if output.max_abs is not None else float("inf"))
    by = "" if worst.max_abs is None else f", largest difference {worst.max_abs:.3g}"
    more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
    which = "the given arguments" if index == 0 else "other arguments"
    what = f"output {worst.name!r}{more}: {worst.reason}{by}{_random_nodes(model)}"
    return f"ONNX Runtime differs from PyTorch on {which} in {what}"


def _given_choices(comparison: Comparison, judged: Comparison) -> Comparison:
    """Return a comparison in which outputs that agree given the same choices are not determined."""
    choices: dict[str, dict[str, Any]] = {
        output.name: {"undetermined": output.undetermined, "given_choices": output.given_choices}
        for output in judged.outputs
        if output.given_choices is not None
    }
    return Comparison(tuple(replace(output, **choices.get(output.name, {})) for output in comparison.outputs))


def _random_nodes(model: ir.Model) -> str:
    random = [node.name for node in model.graph.all_nodes() if node.op_type.startswith("Random")]
    return f"; {random[0]} draws random numbers" if random else ""


def _notes(module: nn.Module, call: Call) -> list[str]:
    notes = []
    if training_submodule(module) is not None:
        notes.append("the module is in training mode: exported as after eval()")
    if call.constants:
        listed = ", ".join(f"{name}={value!r}" for name, value in call.constants.items())
        notes.append(f"fixed in the graph: {listed if len(listed) < 200 else ', '.join(call.constants)}")
    return notes
