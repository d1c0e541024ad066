"""The verb ``inspect``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from onnx_bridge.cli.options import HtmlReport, ModelOrBundle, OutputFile
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.core.errors import InputError

Viewers = Annotated[
    Path | None,
    OutputFile(metavar="FOLDER", help="Write overlays for Model Explorer, and a bundle's partitions for Netron."),
]


def inspect(
    model: ModelOrBundle, html: HtmlReport = None, model_explorer: Viewers = None, as_json: Json = False
) -> None:
    """Show inputs, outputs, operators, parameters and quantization at a glance.

    Example: onnx-bridge inspect model.onnx

    For a bundle, -v lists the passes that rewrote something, and --report writes a model card: where it came
    from, what was rewritten, how far it is proven. --model-explorer asks MIGraphX: about every node of a model,
    as doctor does, or for the error of every node of a bundle, as check --layers does.
    """
    from onnx_bridge.bundle import inspect as inspection
    from onnx_bridge.views.html.bundle import page_of

    with progress(as_json, "read") as tell:
        view = inspection.inspect(model)
        if html is not None and not isinstance(view, inspection.BundleView):
            raise InputError("only a bundle has a page", where=str(model), hint="name a bundle")
        files: list[Path] = []
        if model_explorer is not None:
            from onnx_bridge.views import graph_viewers

            files = graph_viewers.model_explorer(model, model_explorer, progress=tell)
    if isinstance(view, inspection.BundleView) and html is not None:
        page_of(view.bundle.manifest).write(html)
    show(view, as_json, written=[html, *files])
