"""The request of `onnx_bridge.export`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from onnx_bridge.core.errors import InputError
from onnx_bridge.requests import texts
from onnx_bridge.requests.request import Option, Request

ExporterChoice = Literal["auto", "dynamo", "torchscript"]
Dynamic = Mapping[str, Mapping[int, str]]
"""Dimensions of open size: their names by input and axis."""


@dataclass(frozen=True)
class ExportRequest(Request):
    """The request to export a module, without the module.

    Attributes:
        args: arguments by position.
        kwargs: arguments by name.
        out: the file to write, if any.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dynamic: Annotated[
        Dynamic,
        Option("An open dimension; repeatable.", metavar="INPUT.AXIS=NAME", parse=texts.open_dimensions, many=True),
    ] = field(default_factory=dict)
    exporter: Annotated[ExporterChoice, Option("Exporter of torch.onnx; auto: TorchScript if dynamo fails.")] = "auto"
    opset: Annotated[int | None, Option("Opset of the model; default: torch's own.", metavar="N", minimum=7)] = None
    out: Path | None = None


def as_arguments(args: Any) -> tuple[Any, ...]:
    """Return arguments by position, given as a tuple or list, or as the only argument."""
    return tuple(args) if isinstance(args, tuple | list) else (args,)


def output_path(out: str | os.PathLike[str] | None) -> Path | None:
    """Return the file to write; raises InputError if its folder does not exist."""
    path = None if out is None else Path(out)
    if path is not None and not path.absolute().parent.is_dir():
        raise InputError("the file cannot be written: its folder does not exist", where=str(path))
    return path
