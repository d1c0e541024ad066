"""The verb ``inspect``."""

from __future__ import annotations

from onnx_bridge.cli.options import HtmlReport, ModelOrBundle
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.core.errors import InputError


def inspect(model: ModelOrBundle, html: HtmlReport = None, as_json: Json = False) -> None:
    """Show inputs, outputs, operators, parameters and quantization at a glance.

    Example: onnx-bridge inspect model.onnx

    For a bundle, -v lists the passes that rewrote something, and --report writes a model card: where it came
    from, what was rewritten, how far it is proven.
    """
    from onnx_bridge.bundle import inspect as inspection
    from onnx_bridge.views.html.bundle import page_of

    with progress(as_json, "read"):
        view = inspection.inspect(model)
    if html is not None:
        if not isinstance(view, inspection.BundleView):
            raise InputError("only a bundle has a page", where=str(model), hint="name a bundle")
        page_of(view.bundle.manifest).write(html)
    show(view, as_json, written=[html])
