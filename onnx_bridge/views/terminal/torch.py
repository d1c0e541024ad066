"""The result of ``export``."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table

from onnx_bridge.torch.export.exported import Exported
from onnx_bridge.views.terminal.tables import notes_of, written_line
from onnx_bridge.views.terminal.view import view
from passes.core.text import counted


@view.register
def _exported(exported: Exported, verbose: bool) -> RenderableType:
    """Return the inputs and outputs of the graph, and how it was checked."""
    table = Table("", "name", "type", box=None, pad_edge=False, show_header=False)
    for kind, ports in (("input", exported.inputs), ("output", exported.outputs)):
        for port in ports:
            shape = ", ".join("?" if dim is None else str(dim) for dim in port["shape"] or ())
            table.add_row(kind, port["name"], f"{port['dtype']}[{shape}]")
    return Group(
        table,
        f"{counted(exported.nodes, 'node')}, opset {exported.opset}, by {exported.exporter}",
        *(f"not by {name}: {reason}" for name, reason in exported.refusals.items()),
        *notes_of(exported.notes),
        f"ONNX Runtime agrees with PyTorch on {counted(len(exported.comparisons), 'sample')}, "
        f"largest error {exported.largest_error:.3g}",
        written_line(exported.path, "not written"),
    )
