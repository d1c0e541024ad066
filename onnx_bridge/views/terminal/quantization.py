"""The result of ``quantize``."""

from __future__ import annotations

from rich.console import Group, RenderableType

from onnx_bridge.quantization.quantized import MOST, Quantized
from onnx_bridge.samples.files import described
from onnx_bridge.views.terminal.placement import again, trials_table
from onnx_bridge.views.terminal.tables import notes_of, plain_table, written_line
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
    samples = f"{described(quantized.samples, quantized.batches)} ({quantized.calibration})"
    samples = f"the first {MOST} batches of {samples}" if quantized.batches > MOST else samples
    written = written_line(quantized.path, "not written")
    lines = [f"{how}; compared with float on {samples}"]
    kernels = ", ".join(f"{count} in {kernel}" for kernel, count in sorted(quantized.kernels.items()))
    lines += [f"on a GPU, convolutions and matrix products: {kernels}"] if kernels else []
    if quantized.accuracy:
        lines.append("accuracy: " + ", ".join(f"{name} {value:.4g}" for name, value in quantized.accuracy.items()))
    for gain in quantized.gains:
        layers = [layer for layer in gain.layers if layer.sqnr_db is not None]
        worst = min(layers, key=lambda layer: layer.sqnr_db or 0.0, default=None)
        layer = f"; worst layer {worst.sqnr_db:.1f} dB, {worst.name}" if worst is not None else ""
        lines.append(f"{gain.algorithm}: worst output {gain.worst:.1f} dB{layer}")
    if quantized.assignment is not None:
        found = quantized.assignment
        kept = f"left in float: {', '.join(found.exclude) or 'nothing'}"
        kept += f"; measured on {described(found.samples, found.batches)}"
        notes = notes_of(quantized.notes)
        return Group(table, *lines, trials_table(found), kept, *again(found), *notes, written)
    lines += [f"left in float: {', '.join(quantized.excluded)}"] if quantized.excluded else []
    return Group(table, *lines, *notes_of(quantized.notes), written)
