"""The verb ``onnx-bridge export``: from a PyTorch module to an ONNX file."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.core.errors import InputError


class Exporter(enum.Enum):
    """Which of torch.onnx's exporters."""

    auto = "auto"
    dynamo = "dynamo"
    torchscript = "torchscript"


def export(
    factory: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FACTORY", help="package.module:name or file.py:name; it gives a torch.nn.Module."
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--output", metavar="OUT.onnx", help="The ONNX file.", show_default=False)],
    args: Annotated[
        list[str] | None,
        typer.Option(
            "--args", metavar="ARGS", help="file.py:function giving the arguments, or KEY=2x16:int64; repeatable."
        ),
    ] = None,
    dynamic: Annotated[
        list[str] | None,
        typer.Option("--dynamic", metavar="INPUT.AXIS=NAME", help="A size that stays open; repeatable."),
    ] = None,
    exporter: Annotated[Exporter, typer.Option(help="auto: TorchScript where dynamo fails.")] = Exporter.auto,
    opset: Annotated[int | None, typer.Option(min=7, help="Opset of the model; default: torch's own.")] = None,
    as_json: Json = False,
) -> None:
    """Export a PyTorch module to ONNX, and check it against PyTorch on two samples.

    The factory gives the module, or the module and its arguments: (module, args) or (module, kwargs).
    """
    import onnx_bridge
    from onnx_bridge.torch.export import factories
    from onnx_bridge.torch.export.export import require_torch

    require_torch()
    with progress(as_json) as tell:
        if tell is not None:
            tell("make the module")
        module, given = factories.load(factory)
        chosen = factories.arguments(args or []) or given
        if chosen is None:
            what = "it gives a module without arguments to call it with"
            raise InputError(what, where=factory, hint="say them with --args, or give (module, args)")
        exported = onnx_bridge.export(
            module,
            *chosen,
            dynamic=factories.dynamic(dynamic or []),
            exporter=exporter.value,
            opset=opset,
            out=out,
            progress=tell,
        )
    show(exported, as_json)
