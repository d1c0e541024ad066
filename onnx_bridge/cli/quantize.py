"""The verb ``onnx-bridge quantize``: from a model in float to a quantized ONNX file."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from onnx_bridge.cli.options import Memory, OutputFile, Timeout
from onnx_bridge.cli.terminal import Json, progress, show
from onnx_bridge.quantization import quantize as quantization
from onnx_bridge.torch.modules import factories


class Quantizer(enum.Enum):
    """The quantizers."""

    quark = "quark"
    ort = "ort"


def quantize(
    src: Annotated[
        str,
        typer.Argument(
            metavar="SRC", help="An ONNX file, or MODULE:FACTORY returning a torch.nn.Module.", show_default=False
        ),
    ],
    out: Annotated[
        Path,
        OutputFile("-o", "--output", metavar="OUT.onnx", help="The ONNX file.", show_default=False),
    ],
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
            help="Data to measure ranges on: an .npz, .npy, folder of images or .pb, or loader script.",
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
    timeout: Timeout = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Quantize a model, run it, and measure how far its outputs are from those in float."""
    with progress(as_json) as tell:
        model: Any = src
        arguments: dict[str, Any] = {}
        if factories.is_factory(src):
            if tell is not None:
                tell("make the module")
            model, (positional, keywords) = factories.load_with_arguments(src, args or ())
            arguments = {"args": positional, "kwargs": keywords}
        quantized = quantization.quantize(
            model,
            out,
            **arguments,
            with_=with_.value,
            scheme=scheme,
            calibration=calibration,
            per_channel=per_channel,
            exclude=[name for text in exclude or () for name in text.split(",") if name],
            timeout=timeout,
            memory=memory,
            progress=tell,
        )
    show(quantized, as_json)
