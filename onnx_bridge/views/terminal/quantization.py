"""The result of ``quantize``."""

from __future__ import annotations

from rich.console import Group, RenderableType

from onnx_bridge.quantization.quantized import Quantized
from onnx_bridge.views.terminal.tables import counted, notes_of, plain_table, written_line
from onnx_bridge.views.terminal.view import view


@view.register
def _quantized(quantized: Quantized, verbose: bool) -> RenderableType:
    """Return how far each output is from float, and how the model was quantized."""
    numbers = ("SQNR", "largest error", "of largest value")
    table = plain_table("output", *numbers, numbers=numbers)
    for output in quantized.deviations:
        ratio = "–" if output.sqnr_db is None else f"{output.sqnr_db:.1f} dB"
        table.add_row(output.name, ratio, f"{output.max_abs:.3g}", f"{output.largest:.3g}")
    how = f"{quantized.scheme}{', weights per channel' if quantized.per_channel else ''}, by {quantized.quantizer}"
    how += f", ranges by {quantized.method}" if quantized.method else ""
    samples = f"{counted(quantized.samples, 'sample')} ({quantized.calibration})"
    lines = [f"{how}; compared with float on {samples}"]
    for gain in quantized.gains:
        layers = [layer for layer in gain.layers if layer.sqnr_db is not None]
        worst = min(layers, key=lambda layer: layer.sqnr_db or 0.0, default=None)
        layer = f"; worst layer {worst.sqnr_db:.1f} dB, {worst.name}" if worst is not None else ""
        lines.append(f"{gain.algorithm}: worst output {gain.worst:.1f} dB{layer}")
    lines += [f"left in float: {', '.join(quantized.excluded)}"] if quantized.excluded else []
    return Group(table, *lines, *notes_of(quantized.notes), written_line(quantized.path, "not written"))
