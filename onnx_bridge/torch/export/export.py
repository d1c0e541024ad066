"""The API function `onnx_bridge.export`: a PyTorch module as an ONNX model that was compared with the module."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from onnx_bridge.requests.export import ExportRequest, as_arguments, output_path
from onnx_bridge.torch import require_torch
from onnx_bridge.torch.export.exported import Exported

if TYPE_CHECKING:
    import torch

    from onnx_bridge.requests.keywords import ExportOptions


def export(
    module: torch.nn.Module,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
    **options: Unpack[ExportOptions],
) -> Exported:
    """Export a PyTorch module to ONNX, and compare ONNX Runtime with the module on two samples.

    Inputs are named after the parameters of ``forward``, outputs after the fields of the returned value, and nested
    values after the path to them: ``past_key_values.0.key``. A single returned tensor is ``output``. An output whose
    name is that of an input becomes ``present…`` for ``past_key_values…``, and ``output.…`` otherwise. The name and the
    metadata of every node say which submodule it comes from.

    Args:
        module: is not changed; exported as it computes after ``eval()``.
        args: arguments by position: a tuple or list of them, or the only one. Numbers, strings and None are fixed.
        kwargs: arguments by name.
        out: the file to write; weights of more than 2 GiB go into a second file beside it.
        progress: called with each stage as it begins.
        options: the fields of `onnx_bridge.requests.export.ExportRequest`. ``dynamic`` names dimensions by input and
            axis: ``{"input_ids": {0: "batch", 1: "seq"}}``. The same name means the same size; expressions are written
            ``past+seq``. The given arguments may have equal sizes, and sizes of 1.

    Raises:
        ExportFailed: no exporter gives a graph that computes what the module does; the error names the output and
            the largest difference.
        InputError: the arguments do not fit, a tensor is not on the CPU, or ``out`` cannot be written.
    """
    path = None if out is None else Path(out)
    return run(module, as_arguments(args), dict(kwargs or {}), path, ExportRequest.of(options), progress)


def run(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    out: Path | None,
    request: ExportRequest,
    progress: Callable[[str], None] | None = None,
) -> Exported:
    """Export a module as a request says; errors are those of `export`."""
    require_torch()
    from onnx_bridge.torch.export.try_exporters import try_exporters

    call = replace(request, args=args, kwargs=kwargs, out=output_path(out))
    return try_exporters(module, call, progress)
