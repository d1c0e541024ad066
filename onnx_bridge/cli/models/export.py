"""The verb ``export``: from a PyTorch module to an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.options import OutputFile, takes
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.requests.export import ExportRequest

Factory = Annotated[
    str,
    typer.Argument(metavar="MODULE:FACTORY", help="package.module:name or file.py:name; it returns a torch.nn.Module."),
]
Out = Annotated[Path, OutputFile("-o", "--output", metavar="OUT.onnx", help="The ONNX file.", show_default=False)]
Arguments = Annotated[
    list[str] | None,
    typer.Option(
        "--args", metavar="ARGS", help="file.py:function returning the arguments, or KEY=2x16:int64; repeatable."
    ),
]


@takes(ExportRequest)
def export(factory: Factory, out: Out, request: ExportRequest, args: Arguments = None, as_json: Json = False) -> None:
    """Export a PyTorch module to ONNX, and compare it with PyTorch on two samples.

    Example: onnx-bridge export net.py:classifier -o net.onnx --dynamic input.0=batch

    The factory returns the module, or the module and its arguments: (module, args) or (module, kwargs).
    """
    from onnx_bridge.torch.export import export as torch_export
    from onnx_bridge.torch.modules import factories

    with progress(as_json) as tell:
        if tell is not None:
            tell("make the module")
        module, arguments = factories.load_with_arguments(factory, args or ())
        exported = torch_export.run(module, *arguments, out, request, tell)
    show(exported, as_json)
