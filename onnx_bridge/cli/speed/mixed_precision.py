"""The verb ``mixed-precision``."""

from __future__ import annotations

from onnx_bridge.cli.options import HtmlReport, Model, takes
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.requests.search import MixedPrecisionRequest


@takes(MixedPrecisionRequest)
def mixed_precision(
    model: Model, request: MixedPrecisionRequest, report: HtmlReport = None, as_json: Json = False
) -> None:
    """Find the nodes that must stay in float32 for a model in lower precision to agree with its reference.

    Example: onnx-bridge mixed-precision bert.onnx --precision fp16 --dim batch=1
    """
    from onnx_bridge.search import mixed_precision as search

    with progress(as_json) as tell:
        mixed = search.run(model, request, tell)
    if report is not None:
        from onnx_bridge.views.html.placement import page_of

        page_of(mixed, str(model), {"precision": mixed.precision}).write(report)
    show(mixed, as_json, written=[report])
