"""The verb ``onnx-bridge export``: from a PyTorch module to an ONNX file."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.options import OutputFile
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.torch.export import export as torch_export
from onnx_bridge.torch.modules import factories


class Exporter(enum.Enum):
    """The exporters of torch.onnx."""

    auto = "auto"
    dynamo = "dynamo"
    torchscript = "torchscript"


def export(
    factory: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FACTORY", help="package.module:name or file.py:name; it returns a torch.nn.Module."
        ),
    ],
    out: Annotated[
        Path,
        OutputFile("-o", "--output", metavar="OUT.onnx", help="The ONNX file.", show_default=False),
    ],
    args: Annotated[
        list[str] | None,
        typer.Option(
            "--args", metavar="ARGS", help="file.py:function returning the arguments, or KEY=2x16:int64; repeatable."
        ),
    ] = None,
    dynamic: Annotated[
        list[str] | None,
        typer.Option("--dynamic", metavar="INPUT.AXIS=NAME", help="An open dimension; repeatable."),
    ] = None,
    exporter: Annotated[Exporter, typer.Option(help="auto: TorchScript if dynamo fails.")] = Exporter.auto,
    opset: Annotated[int | None, typer.Option(min=7, help="Opset of the model; default: torch's own.")] = None,
    as_json: Json = False,
) -> None:
    """Export a PyTorch module to ONNX, and compare it with PyTorch on two samples.

    The factory returns the module, or the module and its arguments: (module, args) or (module, kwargs).
    """
    with progress(as_json) as tell:
        if tell is not None:
            tell("make the module")
        module, arguments = factories.load_with_arguments(factory, args or ())
        exported = torch_export.export(
            module,
            *arguments,
            dynamic=factories.dynamic(dynamic or []),
            exporter=exporter.value,
            opset=opset,
            out=out,
            progress=tell,
        )
    show(exported, as_json)
