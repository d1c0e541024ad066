"""A quantized model, and how far it is from the float model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress
from onnx_bridge.model import io as models
from onnx_bridge.quantization.deviation import Deviation
from onnx_bridge.requests.schemes import Scheme
from passes.graphs.quantization import is_quantized

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Quantized:
    """A quantized model.

    Attributes:
        model: the quantized graph.
        quantizer: its name and version.
        scheme: the name of the scheme.
        per_channel: whether weights have a scale for each output channel.
        excluded: what the user excluded, and stayed in float.
        calibration: the source of the samples.
        samples: their number.
        deviations: how far each output is from that of the float model, on ONNX Runtime.
        notes: what the user should know, in sentences.
        path: the file that was written, if any.
        module: the quantized module, with the signature of the original one; None for ONNX models.
    """

    model: ir.Model
    quantizer: str
    scheme: str
    per_channel: bool
    excluded: tuple[str, ...]
    calibration: str
    samples: int
    deviations: tuple[Deviation, ...]
    notes: tuple[str, ...] = ()
    path: Path | None = None
    module: nn.Module | None = field(default=None, repr=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "path": None if self.path is None else str(self.path),
            "quantizer": self.quantizer,
            "scheme": self.scheme,
            "per_channel": self.per_channel,
            "excluded": list(self.excluded),
            "calibration": self.calibration,
            "samples": self.samples,
            "opset": self.model.opset_imports.get(""),
            "nodes": self.model.graph.num_nodes(),
            "outputs": [asdict(each) for each in self.deviations],
            "notes": list(self.notes),
        }


def versioned(name: str, package: str) -> str:
    """The name of a quantizer with its version."""
    return f"{name} {metadata.version(package)}"


def require_quantized(model: ir.Model, scheme: Scheme) -> None:
    """Check that a quantizer has quantized something.

    Raises:
        InputError: nothing was quantized.
    """
    if is_quantized(model):
        return
    if scheme.name == "int4-weights":
        what, hint = "the model has no MatMul with a constant matrix, the only weights that are stored in 4 bits", None
    else:
        what = "nothing in the model was quantized"
        hint = "it has no operator that the quantizer supports, or all are excluded"
    raise InputError(what, where=scheme.name, hint=hint)


def saved(model: ir.Model, path: Path | None, progress: Progress) -> ir.Model:
    """The model, mapped from the file that it is written to, or held in memory if there is none."""
    if path is not None:
        progress("write")
        models.save(model, path)
        return models.load(path)
    for value in model.graph.initializers.values():  # the files that these are mapped from will be deleted
        if value.const_value is not None:
            array = value.const_value.numpy().copy()
            value.const_value = ir.tensor(array, dtype=value.const_value.dtype, name=value.name)
    return model
