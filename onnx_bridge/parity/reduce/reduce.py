"""The smallest part of a model, and inputs of it, that still show what is wrong on MIGraphX: the verb ``reduce``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import onnx_ir as ir

from onnx_bridge.bundle.bundle import is_bundle
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import flat
from onnx_bridge.parity.bisect.bisection import Leg
from onnx_bridge.parity.bisect.narrow import Narrowing
from onnx_bridge.parity.bisect.recorded import Recorded
from onnx_bridge.parity.bisect.search import How, Model, Search
from onnx_bridge.parity.pieces import Piece, Runs
from onnx_bridge.parity.reduce.reproduction import FILES, title, write
from onnx_bridge.parity.reduce.shrink import Reproduction, Shrinking, bare, without
from onnx_bridge.parity.trial import Precision, Symptom

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Reduction:
    """What `onnx_bridge.reduce` made.

    Attributes:
        model: what was reduced, for people.
        path: the folder of the reproduction; None where nothing is wrong, so that there is none.
        found: the reproduction.
        nodes_before: how many nodes the model has that MIGraphX was given.
        runs: how often ONNX Runtime and MIGraphX were run.
        notes: what people should know besides.
    """

    model: str
    path: Path | None
    found: Reproduction | None
    nodes_before: int
    runs: Runs
    notes: Sequence[str] = ()

    @property
    def summary(self) -> str:
        """One sentence."""
        if self.found is None:
            return f"{self.model}: nothing diverges on MIGraphX, so there is nothing to reduce"
        after = sum(1 for _ in self.found.model.graph)
        message = " ".join(self.found.symptom.message.split())
        return f"{self.model}: {title(self.found)}: {self.nodes_before} → {after} nodes; {message}"

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        found = self.found
        return {
            "model": self.model,
            "summary": self.summary,
            "path": None if self.path is None else str(self.path),
            "kind": None if found is None else found.symptom.kind.value,
            "step": None if found is None else found.symptom.step,
            "message": None if found is None else found.symptom.message,
            "nodes_before": self.nodes_before,
            "nodes": [] if found is None else [f"{node.op_type} {node.name}" for node in found.model.graph],
            "runs": {"reference": self.runs.reference, "migraphx": self.runs.migraphx},
            "notes": list(self.notes),
        }

    def render(self) -> RenderableType:
        """The sentence, and where the reproduction is."""
        from rich.console import Group
        from rich.text import Text

        lines = [Text(self.summary, style="bold")]
        if self.found is not None and self.path is not None:
            shapes = [f"{name} {array.dtype.name}{list(array.shape)}" for name, array in self.found.sample.items()]
            lines.append(Text(f"  inputs: {', '.join(shapes) or 'none'}"))
            lines.append(Text(f"  {', '.join(FILES)} in {self.path}"))
        lines += [Text(f"note: {note}", style="yellow") for note in self.notes]
        took = f"{self.runs.reference} runs of ONNX Runtime and {self.runs.migraphx} of MIGraphX"
        return Group(*lines, Text(took, style="dim"))


def reduce(
    model: Model,
    out: str | os.PathLike[str],
    *,
    precision: Precision | None = None,
    **how: Unpack[How],
) -> Reduction:
    """Cut a model down to what is wrong on MIGraphX, and write that as a reproduction without this project.

    MIGraphX is given all of the cleaned model, whatever `convert` would leave to ONNX Runtime; with the pipeline
    ``none`` it is the model as it is. Right is what ONNX Runtime computes of that model.

    Args:
        model: an ONNX file, or a model in memory, which is left as it is; or a bundle, for the cleaned model in it.
        out: the folder to write to: ``model.onnx``, ``inputs.npz``, ``expected.npz``, ``README.md``.
        precision: what MIGraphX computes in, as for `bisect`.
        how: likewise. All samples are tried at each step; one that shows it is kept.

    Returns:
        What was made; without a reproduction where nothing is wrong.

    Raises:
        InputError: the model or the inputs are wrong, ONNX Runtime cannot run the model, or ``out`` cannot be written.
        RuntimeFailure: there is no MIGraphX.
    """
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise InputError("this is a file already", where=str(out), hint="name a folder")
    if not isinstance(model, ir.Model) and is_bundle(model):
        recorded = Recorded.of(model)
        model, how = recorded.alone(how)
        precision = precision or recorded.calibrated
    search = Search(model, **how)
    runs = search.runs[Leg.MIGRAPHX] = Runs(reference=1)
    before = len(list(search.cleaned.graph))
    _, narrowing = search.narrowing(runs, host=False, precision=precision)
    if narrowing is None:
        return Reduction(search.name, None, None, before, runs, tuple(search.notes))
    found = _smallest(narrowing, search.tell)
    shrinking = Shrinking(narrowing.device, runs, search.tell)
    found = bare(shrinking.shrink(found))
    search.tell("the reproduction in a process of its own")
    plain = Shrinking(replace(narrowing.device, watched=False), runs, search.tell)
    alone = plain.attempt(found.model, {**found.sample}, found.symptom)
    write(
        alone or found,
        out,
        target=search.target,
        precision=precision or "",
        version=search.runtime.version,
        watched=alone is None,
    )
    return Reduction(search.name, out, alone or found, before, runs, tuple(search.notes))


def _smallest(narrowing: Narrowing, tell: Callable[[str], None]) -> Reproduction:
    """The fewest nodes that show it, with the first sample that does; the whole where no part shows it by itself."""
    tell("which nodes")
    nodes, symptom = narrowing.narrow()
    if symptom is None:
        return _reproduction(narrowing.whole, narrowing.symptom)

    def shows(fewer: list[ir.Node]) -> bool:
        tell(f"{len(fewer)} of {len(nodes)} nodes")
        return isinstance(narrowing.shows(fewer), Symptom)

    kept = without(nodes, shows)
    found = narrowing.shows(kept)
    assert isinstance(found, Symptom)
    return _reproduction(narrowing.pieces.of(kept), found)


def _reproduction(pieces: Sequence[Piece], symptom: Symptom) -> Reproduction:
    for piece in pieces:
        for number, sample, expected in zip(piece.numbers, piece.inputs, piece.expected, strict=True):
            if symptom.sample in (None, number):
                return Reproduction(piece.model, flat(sample), flat(expected), symptom)
    raise AssertionError("a symptom is of one of the samples")
