"""The verb ``export``: a PyTorch module as an ONNX model that is proven to compute the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array
from onnx_bridge.model import io as models
from onnx_bridge.reference.compare import Comparison

if TYPE_CHECKING:
    import torch
    from rich.console import RenderableType

    from onnx_bridge.torch.export.calls import Call
    from onnx_bridge.torch.export.structure import Structure

AUTO = "auto"


class ExportFailed(InputError):
    """No exporter makes a model that computes what the module does."""


@dataclass(frozen=True)
class Exported:
    """What `export` made.

    Attributes:
        model: the graph. Where no file was written, its weights may be the module's own memory: what is done to the
            module afterwards changes them.
        exporter: which of torch.onnx's exporters made it: ``dynamo`` or ``torchscript``.
        refusals: why the exporters that were tried before could not, in a line each.
        notes: what the user should know besides, in sentences.
        changing: those of the notes that say what the module returns in another call, and the graph does not.
        samples: the inputs that it was checked on, by name: the given ones, and seeded ones.
        expected: what the module itself returned for each sample, by name.
        comparisons: how ONNX Runtime's outputs compare with these, for each sample.
        call: how the module is called with the inputs.
        result: how what the module returns is put together from the outputs.
        path: where it was written; None where it was not.
    """

    model: ir.Model
    exporter: str
    refusals: Mapping[str, str]
    notes: tuple[str, ...]
    samples: tuple[Mapping[str, Array], ...] = field(repr=False)
    expected: tuple[Mapping[str, Array], ...] = field(repr=False)
    comparisons: tuple[Comparison, ...] = field(repr=False)
    call: Call = field(repr=False)
    result: Structure = field(repr=False)
    path: Path | None = None
    changing: tuple[str, ...] = ()

    @property
    def largest_error(self) -> float:
        """The largest |ONNX Runtime − PyTorch| of all outputs of both samples."""
        outputs = [output for each in self.comparisons for output in each.outputs]
        return max((output.max_abs for output in outputs if output.max_abs is not None), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """As JSON values, without arrays."""
        return {
            "path": None if self.path is None else str(self.path),
            "exporter": self.exporter,
            "refusals": dict(self.refusals),
            "opset": self.model.opset_imports.get(""),
            "nodes": self.model.graph.num_nodes(),
            "inputs": [_described(value) for value in self.model.graph.inputs],
            "outputs": [_described(value) for value in self.model.graph.outputs],
            "samples": len(self.comparisons),
            "largest_error": self.largest_error,
            "notes": list(self.notes),
        }

    def render(self) -> RenderableType:
        """What it takes and gives, and how it was checked, for rich."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table("", "name", "type", box=None, pad_edge=False, show_header=False)
        for kind, values in (("input", self.model.graph.inputs), ("output", self.model.graph.outputs)):
            for value in values:
                said = _described(value)
                shape = ", ".join("?" if dim is None else str(dim) for dim in said["shape"] or ())
                table.add_row(kind, Text(said["name"]), Text(f"{said['dtype']}[{shape}]"))
        opset = self.model.opset_imports.get("")
        by = f"{self.model.graph.num_nodes()} nodes, opset {opset}, by {self.exporter}"
        tried = [f"not by {name}: {why}" for name, why in self.refusals.items()]
        count = len(self.comparisons)
        proof = f"ONNX Runtime agrees with PyTorch on {count} sample{'s' if count != 1 else ''}"
        where = f"written to {self.path}" if self.path else "not written"
        lines = [by, *tried, *(f"note: {note}" for note in self.notes)]
        return Group(table, *map(Text, lines), Text(f"{proof}, largest error {self.largest_error:.3g}"), Text(where))


def export(
    module: torch.nn.Module,
    args: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    exporter: Literal["auto", "dynamo", "torchscript"] = "auto",
    opset: int | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Exported:
    """Export a PyTorch module to ONNX, and check it: ONNX Runtime against the module itself, on two samples.

    Inputs are named after the parameters of ``forward``, outputs after the fields of what it returns, and what is
    nested after the way to it: ``past_key_values.0.key``. A tensor that is returned alone is ``output``. An output that
    would have the name of an input is ``present…`` for ``past_key_values…``, and else ``output.…``. Every node says in
    its name, and as metadata, which submodule it comes from.

    Args:
        module: left as it is; exported as it computes after ``eval()``.
        args: arguments by position: a tuple or list of them, or the only one. Numbers, strings and None are fixed.
        kwargs: arguments by name.
        dynamic: sizes that stay open: names by input and axis, ``{"input_ids": {0: "batch", 1: "seq"}}``. The same name
            is the same size; expressions are ``past+seq``. Sizes of the given arguments may be 1, or the same.
        exporter: ``auto`` takes torch.onnx's dynamo exporter, and TorchScript's where that fails.
        opset: of the model; by default torch's own choice.
        out: the file to write; beyond 2 GiB its weights go into a file beside it.
        progress: told each stage as it begins.

    Raises:
        InputError: the arguments do not fit, something is not on the CPU, no exporter can, or ``out`` cannot be
            written; also where the graph computes something else than the module: the error names the output and
            the largest difference.
    """
    require_torch()
    import torch

    from onnx_bridge.torch.export import attempts

    path = None if out is None else Path(out)
    if path is not None and not path.absolute().parent.is_dir():
        raise InputError("it cannot be written: its folder does not exist", where=str(path))
    arguments: Sequence[Any] = args if isinstance(args, tuple | list) else (args,)
    tell = progress or (lambda _: None)
    with torch.inference_mode(False):  # under which nothing can be traced, and writing is not counted
        return attempts.checked(
            module, tuple(arguments), dict(kwargs or {}), dynamic or {}, exporter, opset, path, tell
        )


def require_torch() -> None:
    """Make sure that PyTorch can be imported.

    Raises:
        InputError: it is not installed, or broken.
    """
    try:
        import torch  # noqa: F401
    except ImportError as error:
        what = "PyTorch is not installed" if error.name == "torch" else f"PyTorch cannot be imported: {error}"
        raise InputError(what, hint="pip install 'onnx-bridge[torch]'") from error


def write(model: ir.Model, path: Path) -> ir.Model:
    """Save a model and map it from its file, so that it holds no memory of the module's."""
    models.save(model, path)
    return models.load(path)


def _described(value: ir.Value) -> dict[str, Any]:
    shape = None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
    dtype = "unknown" if value.dtype is None else value.dtype.name.lower()
    return {"name": str(value.name), "dtype": dtype, "shape": shape}
