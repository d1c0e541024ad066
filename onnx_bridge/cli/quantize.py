"""The verb ``onnx-bridge quantize``: from a model in float to a quantized ONNX file."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.terminal import Json, progress, show


class Quantizer(enum.Enum):
    """Who quantizes."""

    quark = "quark"
    ort = "ort"


def quantize(
    src: Annotated[
        str,
        typer.Argument(
            metavar="SRC", help="An ONNX file, or MODULE:FACTORY giving a torch.nn.Module.", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--output", metavar="OUT.onnx", help="The ONNX file.", show_default=False)],
    with_: Annotated[Quantizer, typer.Option("--with", help="AMD Quark or ONNX Runtime.")] = Quantizer.quark,
    scheme: Annotated[
        str,
        typer.Option(metavar="SCHEME", help="int8, int8-pow2, uint8, int16, fp8, bf16, bfp16, mxfp4 or int4-weights."),
    ] = "int8",
    calibration: Annotated[
        Path | None,
        typer.Option(
            "--calibration",
            metavar="DATA",
            help="What ranges are measured on: an .npz, .npy, folder of images or .pb, or loader script.",
        ),
    ] = None,
    per_channel: Annotated[
        bool, typer.Option("--per-channel", help="A scale for each output channel of a weight, instead of one.")
    ] = False,
    exclude: Annotated[
        list[str] | None,
        typer.Option("--exclude", metavar="NODES", help="Nodes or operators that stay in float: A,B; repeatable."),
    ] = None,
    args: Annotated[
        list[str] | None,
        typer.Option("--args", metavar="ARGS", help="What a factory's module is called with, as for `export`."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Quantize a model, check that it runs, and say how far its outputs are from those in float."""
    import onnx_bridge

    with progress(as_json) as tell:
        quantized = onnx_bridge.quantize(
            src,
            out,
            with_=with_.value,
            scheme=scheme,
            calibration=calibration,
            per_channel=per_channel,
            exclude=[name for text in exclude or () for name in text.split(",") if name],
            args=args or (),
            progress=tell,
        )
    show(quantized, as_json)
