"""The result and the error of `onnx_bridge.export`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.core.values import Array
from onnx_bridge.reference.comparison.compare import Comparison

if TYPE_CHECKING:
    from onnx_bridge.torch.modules.calls import Call
    from onnx_bridge.torch.modules.structure import Structure


class ExportFailed(InputError):
    """No exporter gives a graph that computes what the module does.

    Attributes:
        reasons: why, by exporter.
    """

    page = "start/pytorch.md#export"

    def __init__(self, reasons: Mapping[str, str], *, where: str, hint: str | None) -> None:
        listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        super().__init__(f"the module cannot be exported: {listed}", where=where, hint=hint)
        self.reasons = reasons


@dataclass(frozen=True)
class Exported(JsonRecord):
    """An exported module.

    Attributes:
        model: the graph. If no file was written, its weights may share the module's memory: later changes of the
            module change them.
        exporter: the exporter of torch.onnx that made it: ``dynamo`` or ``torchscript``.
        refusals: why the exporters that were tried before failed, in one line each.
        notes: what the user should know, in sentences.
        changing: the notes about results that change from call to call, and are fixed in the graph.
        samples: the inputs that it was checked on, by name: the given ones, and generated ones.
        expected: the module's own outputs for each sample, by name.
        comparisons: ONNX Runtime's outputs against these, for each sample.
        call: how the module is called with the inputs.
        result: how the value that the module returns is built from the outputs.
        path: the file that was written, if any.
    """

    in_json = ("opset", "nodes", "inputs", "outputs", "largest_error")

    model: ir.Model = field(repr=False)
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
        """The largest |ONNX Runtime − PyTorch| over all outputs and samples."""
        outputs = [output for comparison in self.comparisons for output in comparison.outputs]
        return max((output.max_abs for output in outputs if output.max_abs is not None), default=0.0)

    @property
    def opset(self) -> int | None:
        return self.model.opset_imports.get("")

    @property
    def nodes(self) -> int:
        """The number of nodes of the main graph."""
        return self.model.graph.num_nodes()

    @property
    def inputs(self) -> list[dict[str, Any]]:
        """The name, dtype and shape of each input."""
        return [_describe(value) for value in self.model.graph.inputs]

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """The name, dtype and shape of each output."""
        return [_describe(value) for value in self.model.graph.outputs]

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"samples": len(self.comparisons)}


def _describe(value: ir.Value) -> dict[str, Any]:
    shape = None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
    dtype = "unknown" if value.dtype is None else value.dtype.name.lower()
    return {"name": str(value.name), "dtype": dtype, "shape": shape}
