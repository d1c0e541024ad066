"""Rewriting a model with the passes of a pipeline: the verb ``clean``."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import onnx_ir as ir

from onnx_bridge.conversion.explain import rewrite_line
from onnx_bridge.conversion.request import as_json, as_shapes
from onnx_bridge.conversion.verify_passes import Verifier
from onnx_bridge.core.values import Array
from onnx_bridge.model import io as models
from onnx_bridge.reference.compare import Comparison
from passes.core.base import Budget, Context, Target
from passes.core.pipeline import Pipeline, Step
from passes.specialize.freeze_inputs import FreezeInputs
from passes.specialize.freeze_shapes import FreezeShapes

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Cleaned:
    """What `clean` did.

    Attributes:
        model: the cleaned model.
        pipeline: the passes that ran.
        steps: what each of them did, in order.
        checked: for each step what `verify` found; None where it changed nothing; empty without `verify`.
        notes: what the user should know, in sentences.
        path: where it was written; None where it was not.
    """

    model: ir.Model
    pipeline: Pipeline
    steps: list[Step]
    notes: list[str] = field(default_factory=list)
    path: Path | None = None
    checked: list[Comparison | None] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether no pass was found to move numbers further than it may."""
        return all(each is None or each.passed for each in self.checked)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "path": str(self.path) if self.path else None,
            "pipeline": str(self.pipeline),
            "nodes_before": self.steps[0].nodes_before if self.steps else None,
            "nodes_after": self.steps[-1].nodes_after if self.steps else None,
            "passes": [self._step_to_json(index) for index in range(len(self.steps))],
            "notes": self.notes,
            "passed": self.passed,
        }

    def trace(self) -> RenderableType:
        """What each pass did, rewrite by rewrite, and what it left alone and why."""
        lines = []
        for step in self.steps:
            lines += [f"{step.name}: {rewrite_line(each)}" for each in step.result.rewrites]
            lines += [
                f"{step.name} leaves {each.node or 'the model'} alone: {each.reason}" for each in step.result.skips
            ]
        return "\n".join(lines)

    def _step_to_json(self, index: int) -> dict[str, Any]:
        step = self.steps[index]
        values = {**step.to_json(), "trace": [asdict(each) for each in step.result.rewrites]}
        checked = self.checked[index] if self.checked else None
        if checked is not None:
            values["verified"] = {"passed": checked.passed, "outputs": [each.to_json() for each in checked.outputs]}
        return values

    def render(self) -> RenderableType:
        """As a table, one row a pass."""
        from rich.console import Group
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("pass")
        for heading in ("nodes", "rewrites", "skips", "seconds", *(["numbers"] if self.checked else [])):
            table.add_column(heading, justify="right")
        for index, step in enumerate(self.steps):
            nodes = f"{step.nodes_before} → {step.nodes_after}"
            rewrites, skips = len(step.result.rewrites), len(step.result.skips)
            checked = [_checked(self.checked[index])] if self.checked else []
            table.add_row(step.name, nodes, str(rewrites or "–"), str(skips or "–"), f"{step.seconds:.3f}", *checked)
        notes = [f"note: {note}" for note in self.notes]
        where = f"written to {self.path}" if self.path else "dry run: nothing was written"
        return Group(table, *notes, where)


def clean(
    model: str | os.PathLike[str] | ir.Model,
    out: str | os.PathLike[str] | None = None,
    *,
    pipeline: str = "default",
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    freeze: Mapping[str, Array | str] | None = None,
    default_dim: int | None = None,
    target: Target | None = None,
    verify: Literal["none", "each"] = "none",
    max_rewrites: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Cleaned:
    """Rewrite a model with the passes of a pipeline.

    Args:
        model: an ONNX file, or a model in memory, which is left as it is.
        out: the file to write; None writes nothing.
        pipeline: the passes, as a specification (``fold-constants{max-bytes=1MiB},remove-dead``) or the name of a
            pipeline (``default``, ``minimal``, ``none``).
        dims: sizes of symbolic dimensions by name.
        shapes: whole shapes by input name.
        freeze: inputs that become constant, by name: an array, or a value as JSON.
        default_dim: the size of every dimension of an input that is still open; None leaves it open.
        target: the runtime that the model is meant for, which passes may ask; None where there is none.
        verify: ``each`` runs the model on ONNX Runtime before and after each pass that changes it, on a seeded sample.
        max_rewrites: how many rewrites all passes together may commit, to find a wrong one by halving.
        progress: told each pass as it begins.

    Raises:
        InputError: the model, the pipeline, a dimension or an input is wrong, or ``out`` cannot be written.
    """
    loaded = model.clone() if isinstance(model, ir.Model) else models.load(model)
    passes = Pipeline.parse(pipeline)
    notes = []
    if freeze:
        passes = Pipeline([FreezeInputs(values=as_json(freeze))]) + passes
    if dims or shapes or default_dim is not None:
        sizes = FreezeShapes(dims=dict(dims or {}), shapes=as_shapes(shapes), default=default_dim)
        passes = Pipeline([sizes]) + passes
        if default_dim is not None:
            notes = _left_open(loaded, dims or {}, {*(shapes or ()), *(freeze or ())}, default_dim)
    verifier = Verifier(loaded, dims, shapes) if verify == "each" else None
    context = Context(target, budget=Budget(max_rewrites), progress=progress)
    steps = passes.run(loaded, context, between=verifier)
    cleaned = steps[-1].result.model if steps else loaded
    if out is not None:
        models.save(cleaned, out)
    checked = verifier.found if verifier else []
    return Cleaned(cleaned, passes, steps, notes, Path(out) if out is not None else None, checked)


def _checked(comparison: Comparison | None) -> str:
    if comparison is None:
        return "–"
    if not comparison.passed:
        return "[red]differ[/]"
    largest = max((each.max_abs for each in comparison.outputs if each.max_abs is not None), default=0.0)
    return f"{largest:.1e}" if largest else "equal"


def _left_open(model: ir.Model, dims: Mapping[str, int], given: Collection[str], size: int) -> list[str]:
    """A note on the dimensions that the user left open."""
    names: dict[str, None] = {}
    for value in model.graph.inputs:
        if value.shape is None or value.name in given or value.name in model.graph.initializers:
            continue
        if not isinstance(value.type, ir.TensorType):  # the arrays of a sequence may have any sizes
            continue
        for index, dim in enumerate(value.shape):
            if isinstance(dim, ir.SymbolicDim) and dim.value not in dims:
                names[dim.value or f"{value.name}[{index}]"] = None
    if not names:
        return []
    first = next(iter(names))
    how = f"--dim {first}=N" if "[" not in first else f"--shape {first.split('[')[0]}:[…]"
    return [f"left open, and so given the size {size}: {', '.join(names)}; choose with {how}"]
