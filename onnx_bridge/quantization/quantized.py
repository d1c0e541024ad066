"""What quantizing gives: the model, and how far it is from the float model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnx_bridge.quantization.deviation import Deviation

if TYPE_CHECKING:
    from rich.console import RenderableType
    from torch import nn


@dataclass(frozen=True)
class Quantized:
    """What `quantize` and ``export.quark`` made.

    Attributes:
        model: the quantized graph.
        quantizer: what made it, in words.
        scheme: the name of what it is quantized to.
        per_channel: whether weights have a scale for each output channel.
        excluded: what stayed in float on the user's word.
        calibration: where the samples come from.
        samples: how many there are.
        deviations: for each output, how far ONNX Runtime's numbers are from those of the float model.
        notes: what the user should know besides, in sentences.
        path: where it was written; None where it was not.
        module: the quantized module, called like the original one; None for what was no module.
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
        """As JSON values."""
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

    def render(self) -> RenderableType:
        """How far each output is from float, and how it was made, for rich."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("output")
        for heading in ("SQNR", "largest error", "of largest value"):
            table.add_column(heading, justify="right")
        for each in self.deviations:
            ratio = "–" if each.sqnr_db is None else f"{each.sqnr_db:.1f} dB"
            table.add_row(Text(each.name), ratio, f"{each.max_abs:.3g}", f"{each.largest:.3g}")
        many = f"{self.samples} sample{'s' * (self.samples != 1)}"
        scales = ", weights per channel" if self.per_channel else ""
        lines = [f"{self.scheme}{scales}, by {self.quantizer}; compared with float on {many} ({self.calibration})"]
        if self.excluded:
            lines.append(f"left in float: {', '.join(self.excluded)}")
        lines += [f"note: {note}" for note in self.notes]
        lines.append(f"written to {self.path}" if self.path else "not written")
        return Group(table, *map(Text, lines))
