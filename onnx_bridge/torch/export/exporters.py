"""torch.onnx's two exporters behind one face: a module as a function of tensors in, an ONNX model out.

Both give the same thing: inputs and outputs, initializers, nodes and dimensions named after the module (see
`onnx_bridge.torch.export.naming`). The weights of a model from dynamo are the module's own memory; those of a model
from TorchScript are mapped from a file that is deleted, and so gone when the model is.
"""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import onnx_ir as ir
import torch

from onnx_bridge.core.errors import BridgeError
from onnx_bridge.model import io as models
from onnx_bridge.torch.export import translations
from onnx_bridge.torch.export.calls import Flat, quiet, untouched
from onnx_bridge.torch.export.naming import name_dimensions, name_graph
from onnx_bridge.torch.export.tensors import to_array

Exporter = Literal["dynamo", "torchscript"]
Dims = Mapping[str, Mapping[int, str]]
"""Dimensions that stay open: by input and axis, the symbol (or expression of symbols) of each."""

EXPORTERS: tuple[Exporter, ...] = ("dynamo", "torchscript")
_ONE_AT_A_TIME = threading.RLock()
"""Both exporters keep what they are at in variables of the process: two threads would break one another's."""
_LENGTH = 240
"""A reason has at most so many characters."""


class Refused(Exception):
    """An exporter cannot; the message says why in one line."""


def attempt(
    exporter: Exporter,
    flat: Flat,
    tensors: Mapping[str, torch.Tensor],
    outputs: Sequence[str],
    dynamic: Dims,
    opset: int | None,
    folder: Path | None,
) -> ir.Model:
    """Export by one of the two.

    Args:
        exporter: which.
        flat: the module, in evaluation mode.
        tensors: its arguments by name. Sizes that stay open are 2 or more, and different where their symbols are.
        outputs: the names of what it returns.
        dynamic: dimensions that stay open.
        opset: of the model; None leaves it to torch.
        folder: where there is room for temporary files; None is the system's own place.

    Raises:
        Refused: it failed, or took sizes for constants that are to stay open.
    """
    run = {"dynamo": _dynamo, "torchscript": _torchscript}[exporter]
    tensors = {name: each.detach().clone() for name, each in tensors.items()}  # a module may write into them
    try:
        with _ONE_AT_A_TIME, quiet(), torch.no_grad(), untouched(flat.module):
            model = run(flat, tensors, outputs, dynamic, opset, folder)
    except BridgeError:
        raise
    except Exception as error:  # exporters raise everything
        raise Refused(reason(error)) from error
    graph = model.graph
    if (len(graph.inputs), len(graph.outputs)) != (len(tensors), len(outputs)):
        counts = f"{len(graph.inputs)} inputs and {len(graph.outputs)} outputs"
        raise Refused(f"the graph has {counts}, the module {len(tensors)} and {len(outputs)}")
    if opset is not None and model.opset_imports.get("") != opset:
        raise Refused(f"it gives opset {model.opset_imports.get('')}, and not {opset}")
    name_graph(model, list(tensors), outputs, dict(flat.module.named_modules()))
    if problem := name_dimensions(model, dynamic):
        raise Refused(problem)
    return model


def _dynamo(
    flat: Flat,
    tensors: Mapping[str, torch.Tensor],
    _outputs: Sequence[str],
    dynamic: Dims,
    opset: int | None,
    _folder: Path | None,
) -> ir.Model:
    open_ = torch.export.Dim.DYNAMIC
    shapes = tuple(dict.fromkeys(dynamic.get(name, ()), open_) for name in tensors)
    program = torch.onnx.export(
        flat,
        tuple(tensors.values()),
        dynamo=True,
        verbose=False,
        opset_version=opset,
        dynamic_shapes=(shapes,) if dynamic else None,
        custom_translation_table=translations.table(),
    )
    assert program is not None
    model: ir.Model = program.model
    return model


def _torchscript(
    flat: Flat,
    tensors: Mapping[str, torch.Tensor],
    outputs: Sequence[str],
    dynamic: Dims,
    opset: int | None,
    folder: Path | None,
) -> ir.Model:
    inputs = [f"input.{index}" for index in range(len(tensors))]
    axes = {inputs[list(tensors).index(name)]: dict(dims) for name, dims in dynamic.items()}
    with tempfile.TemporaryDirectory(prefix=".exporting-", dir=folder) as temporary:
        path = Path(temporary) / "model.onnx"
        torch.onnx.export(
            flat,
            tuple(tensors.values()),
            str(path),
            dynamo=False,
            verbose=False,
            opset_version=opset,
            input_names=inputs,
            output_names=[f"output.{index}" for index in range(len(outputs))],
            dynamic_axes=axes,
        )
        model = models.load(path)  # which holds the files open
    _restore_inputs(model, dict(zip(inputs, tensors.values(), strict=True)), axes)
    return model


def _restore_inputs(model: ir.Model, tensors: Mapping[str, torch.Tensor], dynamic: Dims) -> None:
    """Put the inputs back that no node uses, and that TorchScript has dropped."""
    graph = model.graph
    kept = {str(value.name): value for value in graph.inputs}
    graph.inputs.clear()
    for name, tensor in tensors.items():
        value = kept.get(name)
        if value is None:
            dtype = ir.DataType.from_numpy(to_array(tensor).dtype)
            dims = dynamic.get(name, {})
            shape = ir.Shape([dims.get(axis, size) for axis, size in enumerate(tensor.shape)])
            value = ir.Value(name=name, type=ir.TensorType(dtype), shape=shape)
        graph.inputs.append(value)


_CODE = re.compile(r'File "([^"]+)", line (\d+), in (\w+)')
_NOISE = re.compile(
    r"\s*\((?:Size-like symbols|unhinted|Original code|_subclasses)[^)]*\)|\x1b\[[0-9;]*m"
    r"|\s*\[Caused by .*|\s*Please feel free to request.*|\s*Failure message: No decompositions.*"
)
_LIBRARY = ("/torch/", "/onnx_bridge/exporting/")


def reason(error: BaseException) -> str:
    """Why an export failed, in one line: what the first of a chain of errors says, and the place in the user's code."""
    root = error
    while root.__cause__ is not None:
        root = root.__cause__
    text = _NOISE.sub("", str(root))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    what = lines[0] if lines else "no message"
    if what.endswith(":") and len(lines) > 1:
        what = f"{what} {lines[1]}"
    places = [each for each in _CODE.findall(text) if not any(part in each[0] for part in _LIBRARY)]
    place = f" (in {places[-1][2]}, {Path(places[-1][0]).name} line {places[-1][1]})" if places else ""
    kind = type(root).__name__
    said = f"{kind}: {' '.join(what.split())}"
    room = _LENGTH - len(place)
    return (said if len(said) <= room else f"{said[: room - 1]}…") + place
