"""Rewriting a model with the passes of a pipeline: the verb ``clean``.

The modules that run the reference are imported by the functions that need them: they take a tenth of a second.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import onnx_ir as ir

from onnx_bridge.conversion.sizes.freezing import freezing, settle_defaults
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress
from onnx_bridge.model import io as models
from onnx_bridge.requests.conversion import CleanRequest
from passes.core.text import counted
from passes.graphs.scopes import Scope, name_nodes, required_inputs, values_of
from passes.isolation.limits import limited
from passes.rewriting.base import Budget, Context, Target
from passes.rewriting.invented import invented
from passes.rewriting.pipeline import Pipeline, Step
from passes.shapes.declarations import forget_impossible_sizes

if TYPE_CHECKING:
    from onnx_bridge.conversion.sizes.open_sizes import ChosenSizes
    from onnx_bridge.conversion.verify_passes import Verifier
    from onnx_bridge.reference.comparison.compare import Comparison
    from onnx_bridge.requests.keywords import CleanOptions


@dataclass(frozen=True)
class Cleaned:
    """The result of `clean`.

    Attributes:
        model: the cleaned model.
        pipeline: the passes that ran.
        steps: the results of each pass, in order.
        notes: sentences for the user.
        path: the file that it was written to, if any.
        checked: the comparison of each step, None if it changed nothing; empty without ``verify``.
        chosen: the sizes that nobody chose, by input and dimension.
    """

    model: ir.Model
    pipeline: Pipeline
    steps: list[Step]
    notes: list[str] = field(default_factory=list)
    path: Path | None = None
    checked: list[Comparison | None] = field(default_factory=list)
    chosen: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """True if the results of every verified pass are within its exactness."""
        return all(comparison is None or comparison.passed for comparison in self.checked)

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path) if self.path else None,
            "pipeline": str(self.pipeline),
            "nodes_before": self.steps[0].nodes_before if self.steps else None,
            "nodes_after": self.steps[-1].nodes_after if self.steps else None,
            "passes": [self._step_to_json(index) for index in range(len(self.steps))],
            "notes": self.notes,
            "passed": self.passed,
        }

    def _step_to_json(self, index: int) -> dict[str, Any]:
        step = self.steps[index]
        values = {**step.to_json(), "trace": [asdict(rewrite) for rewrite in step.result.rewrites]}
        checked = self.checked[index] if self.checked else None
        if checked is not None:
            values["verified"] = {"passed": checked.passed, "outputs": [output.to_json() for output in checked.outputs]}
        return values


def clean(
    model: str | os.PathLike[str] | ir.Model,
    out: str | os.PathLike[str] | None = None,
    *,
    target: Target | None = None,
    progress: Progress | None = None,
    **options: Unpack[CleanOptions],
) -> Cleaned:
    """Rewrite a model with the passes of a pipeline.

    Args:
        model: an ONNX file, or a model in memory, which is not modified.
        out: the file to write; None writes nothing.
        target: the runtime that the model is meant for, which gives verdicts; None if there is none.
        progress: called with the name of each pass as it begins.
        options: the fields of `onnx_bridge.requests.conversion.CleanRequest`.

    Raises:
        InputError: the model, the pipeline, a dimension or an input is wrong, or ``out`` cannot be written.
        NativeFailure: ONNX Runtime exceeded a limit.
    """
    return run(model, None if out is None else Path(out), CleanRequest.of(options), target, progress)


def run(
    model: str | os.PathLike[str] | ir.Model,
    out: Path | None,
    request: CleanRequest,
    target: Target | None = None,
    progress: Progress | None = None,
) -> Cleaned:
    """Rewrite a model as a request says; errors are those of `clean`."""
    loaded = models.owned(model)
    cleaned = rewrite(loaded, request, target=target, progress=progress)
    if out is None:
        return cleaned
    models.save(cleaned.model, out)
    return replace(cleaned, path=out)


def rewrite(
    model: ir.Model,
    request: CleanRequest,
    pipeline: Pipeline | None = None,
    *,
    target: Target | None = None,
    progress: Progress | None = None,
) -> Cleaned:
    """Rewrite a model in place.

    Args:
        model: the model; from now on, use the model of the result.
        pipeline: the pipeline of the request, if it is parsed already.
        target: the runtime that gives verdicts; None if there is none.
        progress: called with the name of each pass as it begins.

    Raises:
        InputError: the pipeline, a dimension or an input is wrong.
        NativeFailure: ONNX Runtime exceeded a limit.
    """
    with limited(request.limits):
        return _rewrite(model, request, pipeline, Context(target, Budget(request.max_rewrites), progress))


def _rewrite(model: ir.Model, request: CleanRequest, pipeline: Pipeline | None, context: Context) -> Cleaned:
    passes = pipeline or Pipeline.parse(request.pipeline)
    defaults = settle_defaults(model, request) if passes.passes else []
    forget_impossible_sizes(model)  # of a model made in memory, whose nodes have no names, either
    name_nodes(Scope(model, model.graph))
    sizes = _sizes(model, request)
    if sizes is not None:
        request = sizes.applied
    before = freezing(request, defaults=bool(defaults))
    verifier = _verifier(model, request)
    steps = before.run(model, context, between=verifier) if before.passes else []
    notes: list[str] = []
    if names := invented(model):
        notes.append(f"operators that ONNX has not, and that are defined by others: {', '.join(names)}")
    if defaults:
        rest = f" and {len(defaults) - 4} more" if len(defaults) > 4 else ""
        notes.append(f"inputs that have a default are constant: {', '.join(defaults[:4])}{rest}")
    if sizes is not None:
        from onnx_bridge.conversion.sizes.observed_shapes import observe_shapes
        from onnx_bridge.conversion.sizes.unfit_branches import close_unfit_branches, closed_branches

        close_unfit_branches(model, context)
        notes += [*sizes.notes, *sizes.check(model)]
        observe_shapes(model, context)
    steps += passes.run(model, context, between=verifier)
    cleaned = steps[-1].result.model if steps else model
    if sizes is not None:
        if close_unfit_branches(cleaned, context):  # of bodies that are main graphs now
            steps += passes.run(cleaned, context, between=verifier)
            cleaned = steps[-1].result.model if steps else model
        _check_sizes(cleaned, is_open=sizes.is_open)
        _check_outputs(cleaned, request)
        notes += closed_branches(cleaned)
    if context.contradictions:
        first, *more = context.contradictions.values()
        others = f" (and {counted(len(more), 'other value')})" if more else ""
        notes.append(f"the model declares types or shapes that are not so, and inference decides: {first}{others}")
    checked, chosen = verifier.comparisons if verifier else [], {} if sizes is None else sizes.by_input
    return Cleaned(cleaned, before + passes, steps, notes, checked=checked, chosen=chosen)


def _sizes(model: ir.Model, request: CleanRequest) -> ChosenSizes | None:
    """Return the sizes of open dimensions; None if they stay open."""
    if request.dim_default is None:
        return None
    from onnx_bridge.conversion.sizes.open_sizes import ChosenSizes

    return ChosenSizes.of(model, request)


def _verifier(model: ir.Model, request: CleanRequest) -> Verifier | None:
    if request.verify != "each":
        return None
    from onnx_bridge.conversion.verify_passes import Verifier

    return Verifier(model, request.dims, request.shapes)


def _check_sizes(model: ir.Model, *, is_open: bool) -> None:
    """Raise InputError if a size is negative, as of an input that is too small, which may be ``is_open``."""
    for value in values_of(model):
        if value.shape is not None and any(isinstance(dim, int) and dim < 0 for dim in value.shape):
            what = f"{value.name} gets the shape {value.shape}, in which a size is negative"
            larger = "give the inputs larger sizes with `dims` or `shapes`"
            raise InputError(what, hint=larger if is_open else None)


def _check_outputs(model: ir.Model, request: CleanRequest) -> None:
    """Raise InputError if a size of zero that was given leaves nothing in any output."""
    zeros = [f"{name}=0" for name, size in request.dims.items() if not size]
    zeros += [f"{name}:{list(shape)}" for name, shape in request.shapes.items() if 0 in shape]
    empty = [value.shape is not None and 0 in value.shape.dims for value in model.graph.outputs]
    if zeros and empty and all(empty):
        raise InputError("all outputs are empty", where=" ".join(zeros), hint="give a size of 1 or more")


def check_ranks(model: ir.Model) -> None:
    """Raise InputError if the rank of an input that MIGraphX takes is unknown."""
    for value in required_inputs(model):
        if value.shape is None and isinstance(value.type, ir.TensorType) and value.dtype != ir.DataType.STRING:
            hint = f"give its shape with `shapes={{{value.name!r}: ['…']}}`"
            raise InputError("the number of dimensions is unknown", where=f"input {value.name!r}", hint=hint)
