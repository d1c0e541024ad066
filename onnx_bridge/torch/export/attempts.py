"""Export by one exporter after the other until one gives a graph that computes what the module does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array
from onnx_bridge.reference.compare import Comparison, compare
from onnx_bridge.reference.reference import Reference
from onnx_bridge.torch.export import side_effects
from onnx_bridge.torch.export.calls import Call, Flat, check_devices, check_module, in_training, quiet, settled, watched
from onnx_bridge.torch.export.dynamic_linear import is_packed, traceable
from onnx_bridge.torch.export.export import AUTO, Exported, ExportFailed, write
from onnx_bridge.torch.export.exporters import EXPORTERS, Dims, Exporter, Refused, attempt
from onnx_bridge.torch.export.naming import observed
from onnx_bridge.torch.export.quantized_outputs import tolerances
from onnx_bridge.torch.export.samples import check_dynamic, distinct, opposite, redrawn, resized, sizes_of
from onnx_bridge.torch.export.structure import Structure, renamed
from onnx_bridge.torch.export.tensors import to_array

_SAID = ("past_key_values", "present")
"""How the caches that come out are called where those that go in have the first name: as other exporters do it."""

_PACKED = "quantize it with PT2E (prepare_pt2e, convert_pt2e), whose graphs can be exported"

_ON_DATA = "data-dependent"
"""What dynamo says of modules whose Python decides by elements of tensors; TorchScript decides once and for all."""
_FOLLOWED = "its Python decides by data: the graph always does what it did for the given arguments"
_UNSTEADY = "called again with the same arguments it returns something else: it draws random numbers, or keeps state"

Tell = Callable[[str], None]


@dataclass(frozen=True)
class _Run:
    """One sample through the module itself."""

    inputs: Mapping[str, torch.Tensor]
    result: Structure
    outputs: Mapping[str, Array]
    written: tuple[list[str], list[str]]
    """The names of the inputs and of the buffers that it wrote into."""


def checked(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic: Mapping[str, Mapping[int, str]],
    exporter: str,
    opset: int | None,
    path: Path | None,
    tell: Tell,
) -> Exported:
    """See `onnx_bridge.export`."""
    check_module(module)
    if exporter not in (AUTO, *EXPORTERS):
        raise InputError(f"there is no exporter {exporter!r}", hint=f"use {', '.join((AUTO, *EXPORTERS))}")
    wanted: tuple[Exporter, ...] = EXPORTERS if exporter == AUTO else tuple(e for e in EXPORTERS if e == exporter)
    call, tensors = Call.of(module, args, kwargs)
    check_devices(module, tensors)
    if not tensors:
        raise InputError("it is called without any tensor, so it is a constant", where="the module")
    dims = check_dynamic(tensors, dynamic)
    notes = _notes(module, call)
    refusals: dict[str, str] = {}
    with settled(module) as stand_in:
        flat = Flat(stand_in, call).eval()
        shown = Flat(traceable(stand_in), call).eval()
        tell("run PyTorch")
        given = _run(flat, tensors)
        written = side_effects.of_writing(flat, tensors, given.outputs, *given.written)
        sizes = sizes_of(tensors, dims)
        fixed = {size for name, each in tensors.items() for size in _fixed_sizes(each, dims.get(name, {}))}
        for_export = resized(tensors, dims, distinct(sizes, sorted(fixed)))
        room = None if path is None else path.absolute().parent
        for each in wanted:
            tell(f"export by {each}")
            try:
                model = attempt(each, shown, for_export, list(given.outputs), dims, opset, room)
                tell("check")
                runs = [given, *_second(flat, model, tensors, dims, sizes, notes)]
                if any(_ON_DATA in why for why in refusals.values()):  # and this one has followed the given data
                    runs += _opposite(flat, tensors)
                comparisons = _compare(model, runs)
            except Refused as refused:
                refusals[each] = str(refused)
                continue
            if any(_ON_DATA in why for why in refusals.values()):
                notes.append(_FOLLOWED)
            _observe(model, runs, dims)
            fixed_values = side_effects.of_constants([run.result for run in runs])
            changing = (*written.changing, *fixed_values.changing)
            if path is not None:
                tell("write")
                model = write(model, path)
            return Exported(
                model=model,
                exporter=each,
                refusals=refusals,
                notes=(*notes, *written.notes, *fixed_values.notes, *changing),
                changing=changing,
                samples=tuple({name: to_array(value) for name, value in run.inputs.items()} for run in runs),
                expected=tuple(run.outputs for run in runs),
                comparisons=tuple(comparisons),
                call=call,
                result=given.result,
                path=path,
            )
        again = side_effects.repeats(flat, tensors, given.outputs)
    said = "; ".join(f"{name}: {why}" for name, why in refusals.items())
    hint = (
        _PACKED if any(map(is_packed, module.modules())) else next(iter(written.changing), None if again else _UNSTEADY)
    )
    raise ExportFailed(f"it cannot be exported: {said}", where=type(module).__name__, hint=hint)


def _fixed_sizes(tensor: torch.Tensor, dims: Mapping[int, str]) -> list[int]:
    return [size for axis, size in enumerate(tensor.shape) if axis not in dims]


def _run(flat: Flat, tensors: Mapping[str, torch.Tensor]) -> _Run:
    """Run the module, and name what it returns apart from what it takes."""
    try:
        with quiet():
            result, leaves, *written = watched(flat, tensors)
    except Exception as error:  # the module's own, whatever it is
        what = f"PyTorch cannot run it with these arguments: {type(error).__name__}: {_first_line(error)}"
        raise InputError(what, where=type(flat.module).__name__) from error
    if not leaves:
        raise InputError("it returns no tensor", where=type(flat.module).__name__)
    names = {name: _apart(name, tensors) for name in leaves}
    outputs = {names[name]: to_array(leaf) for name, leaf in leaves.items()}
    inputs, buffers = written
    return _Run(tensors, renamed(result, names), outputs, (inputs, buffers))


def _apart(name: str, inputs: Mapping[str, torch.Tensor]) -> str:
    if name not in inputs:
        return name
    past, present = _SAID
    return present + name.removeprefix(past) if name.startswith(past) else f"output.{name}"


def _second(
    flat: Flat,
    model: ir.Model,
    tensors: Mapping[str, torch.Tensor],
    dims: Dims,
    sizes: Mapping[str, int],
    notes: list[str],
) -> list[_Run]:
    """Another sample, with other sizes where they are open; none where the module runs with none that is made up."""
    other = {symbol: size + 1 + index for index, (symbol, size) in enumerate(sizes.items())}
    smaller = {symbol: max(1, size - 1 - index) for index, (symbol, size) in enumerate(sizes.items())}
    last: InputError | None = None
    for chosen in [other, smaller, sizes] if sizes else [{}]:
        shaped = resized(tensors, dims, chosen)
        for how in ("roles", "shuffled"):
            try:
                run = _run(flat, redrawn(model, shaped, how))
            except InputError as error:
                last = error
                continue
            if sizes and chosen is sizes:
                notes.append("PyTorch runs it with no other sizes than the given ones, so open sizes are not checked")
            return [run]
    assert last is not None
    notes.append(f"checked on the given arguments alone, since others do not suit the module: {last.what}")
    return []


def _opposite(flat: Flat, tensors: Mapping[str, torch.Tensor]) -> list[_Run]:
    """The sample by which decisions on data go the other way; none where the module does not run with it."""
    turned = {name: opposite(each) for name, each in tensors.items()}
    try:
        return [_run(flat, turned)]
    except InputError:
        return []


def _compare(model: ir.Model, runs: list[_Run]) -> list[Comparison]:
    """ONNX Runtime against PyTorch.

    Raises:
        Refused: ONNX Runtime cannot run the graph, or they differ.
    """
    try:
        reference = Reference(model)
        found = [reference.run({name: to_array(each) for name, each in run.inputs.items()}) for run in runs]
    except InputError as error:
        raise Refused(f"the graph does not run: {error.what}") from error
    comparisons = [
        compare(got, run.outputs, tolerances(model, run.outputs)) for got, run in zip(found, runs, strict=True)
    ]
    for index, comparison in enumerate(comparisons):
        differing = [output for output in comparison.outputs if not output.passed]
        if differing:
            worst = max(differing, key=lambda output: output.max_abs if output.max_abs is not None else float("inf"))
            by = "" if worst.max_abs is None else f", largest difference {worst.max_abs:.3g}"
            more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
            which = "the given arguments" if index == 0 else "other arguments"
            what = f"output {worst.name!r}{more}: {worst.reason}{by}{_random_hint(model)}"
            raise Refused(f"ONNX Runtime differs from PyTorch on {which} in {what}")
    return comparisons


def _random_hint(model: ir.Model) -> str:
    drawing = [node.name for node in model.graph.all_nodes() if node.op_type.startswith("Random")]
    return f"; {drawing[0]} draws random numbers" if drawing else ""


def _observe(model: ir.Model, runs: list[_Run], dims: Dims) -> None:
    shapes = [{name: array.shape for name, array in run.outputs.items()} for run in runs]
    observed(model, [sizes_of(run.inputs, dims) for run in runs], shapes)


def _notes(module: nn.Module, call: Call) -> list[str]:
    notes = []
    if in_training(module) is not None:
        notes.append("the module is in training mode: exported as after eval()")
    if call.constants:
        listed = ", ".join(f"{name}={value!r}" for name, value in call.constants.items())
        notes.append(f"fixed in the graph: {listed if len(listed) < 200 else ', '.join(call.constants)}")
    return notes


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
