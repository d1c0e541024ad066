"""The verb ``quantize``: from a model in float to a quantized ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from onnx_bridge.cli.options import OutputFile, takes
from onnx_bridge.cli.terminal import Json, progress, show
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
def quantize(src: Subject, out: Out, request: QuantizeRequest, args: Arguments = None, as_json: Json = False) -> None:
    """Quantize a model, run it, and measure how far its outputs are from those in float.

    Example: onnx-bridge quantize resnet.onnx -o int8.onnx --calibration images
    """
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
    show(quantized, as_json)
