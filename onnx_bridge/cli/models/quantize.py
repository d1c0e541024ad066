"""The verb ``quantize``: from a model in float to a quantized ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from onnx_bridge.cli.options import HtmlReport, OutputFile, takes
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.core.errors import InputError
from onnx_bridge.requests.quantization import QuantizeRequest

Subject = Annotated[
    str,
    typer.Argument(
        metavar="SRC", help="An ONNX file, or MODULE:FACTORY returning a torch.nn.Module.", show_default=False
    ),
]
Out = Annotated[Path, OutputFile("-o", "--output", metavar="OUT.onnx", help="The ONNX file.", show_default=False)]
Arguments = Annotated[
    list[str] | None,
    typer.Option("--args", metavar="ARGS", help="Arguments of a factory's module, as for `export`."),
]


@takes(QuantizeRequest)
def quantize(
    src: Subject,
    out: Out,
    request: QuantizeRequest,
    args: Arguments = None,
    report: HtmlReport = None,
    as_json: Json = False,
) -> None:
    """Quantize a model, run it, and measure how far its outputs are from those in float.

    Example: onnx-bridge quantize resnet.onnx -o int8.onnx --calibration images

    With --min, nodes that cost too much stay in float, as few as possible; no model is written that does not reach it.
    """
    if report is not None and not request.least:
        raise InputError("--report shows the trials of a search", where="--report", hint="--min asks for one")
    from onnx_bridge.quantization import quantize as quantization
    from onnx_bridge.torch.modules import factories

    with progress(as_json) as tell:
        model: Any = src
        call: dict[str, Any] = {}
        if factories.is_factory(src):
            if tell is not None:
                tell("make the module")
            model, (positional, keywords) = factories.load_with_arguments(src, args or ())
            call = {"args": positional, "kwargs": keywords}
        quantized = quantization.run(model, out, request, tell, **call)
    if report is not None and quantized.assignment is not None:
        from onnx_bridge.views.html.placement import page_of

        facts = {"quantizer": quantized.quantizer, "scheme": quantized.scheme}
        page_of(quantized.assignment, str(quantized.path), facts, quantized.notes).write(report)
    show(quantized, as_json, written=[report])
