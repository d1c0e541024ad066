"""The two exporters of torch.onnx behind one interface.

Both give a model whose inputs, outputs, initializers, nodes and dimensions are named after the module (see
`onnx_bridge.torch.export.naming`). The weights of a model from dynamo share the module's memory; those of a model from
TorchScript are mapped from a deleted file, which lasts as long as the model.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir
import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn import functional

from onnx_bridge.core.errors import BridgeError
from onnx_bridge.core.third_party import shorten, suppressed_output
from onnx_bridge.model import io as models
from onnx_bridge.torch.export import translations
from onnx_bridge.torch.export.four_bits import store_four_bits
from onnx_bridge.torch.export.naming import name_dimensions, name_graph
from onnx_bridge.torch.modules.calls import FlatModule
from onnx_bridge.torch.modules.modules import restored_buffers
from onnx_bridge.torch.modules.tensors import to_array
from passes.core.text import counted

Exporter = Literal["dynamo", "torchscript"]
Dims = Mapping[str, Mapping[int, str]]
"""The symbol, or expression of symbols, of each open dimension, by input and axis."""

EXPORTERS: tuple[Exporter, ...] = ("dynamo", "torchscript")
_LOCK = threading.RLock()
"""Both exporters keep state in globals, and are not thread-safe."""
_LENGTH = 240
"""The maximum length of a reason."""


class ExporterError(Exception):
    """An exporter failed, or its graph is wrong; the message is one line.

    ``data_dependent`` says whether the module's Python branches on the elements of tensors.
    """

    def __init__(self, reason: str, *, data_dependent: bool = False) -> None:
        super().__init__(reason)
        self.data_dependent = data_dependent


def run_exporter(
    exporter: Exporter,
    flat: FlatModule,
    tensors: Mapping[str, torch.Tensor],
    outputs: Sequence[str],
    dynamic: Dims,
    opset: int | None,
    folder: Path | None,
) -> ir.Model:
    """Export a module by one exporter; raises ExporterError if the exporter failed, or made an open dimension constant.

    Args:
        flat: the module, in evaluation mode.
        tensors: its arguments by name. Sizes of open dimensions are at least 2, and different for different symbols.
        opset: the opset of the model; None leaves it to torch.
        folder: for temporary files; None is the system's default.
    """
    tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}  # a module may write to them
    try:
        with _LOCK, suppressed_output(), torch.no_grad(), restored_buffers(flat.module):
            if exporter == "dynamo":
                model = _dynamo(flat, tensors, dynamic, opset)
            else:
                model = _torchscript(flat, tensors, dynamic, opset, outputs, folder)
    except BridgeError:
        raise
    except Exception as error:  # exporters raise exceptions of any type
        data_dependent = any(isinstance(cause, GuardOnDataDependentSymNode) for cause in _causes(error))
        raise ExporterError(reason(error), data_dependent=data_dependent) from error
    graph = model.graph
    if (len(graph.inputs), len(graph.outputs)) != (len(tensors), len(outputs)):
        counts = f"{counted(len(graph.inputs), 'input')} and {counted(len(graph.outputs), 'output')}"
        raise ExporterError(f"the graph has {counts}, the module {len(tensors)} and {len(outputs)}")
    if opset is not None and model.opset_imports.get("") != opset:
        raise ExporterError(f"the exporter gives opset {model.opset_imports.get('')} instead of {opset}")
    name_graph(model, list(tensors), outputs, dict(flat.module.named_modules()))
    if problem := name_dimensions(model, dynamic):
        raise ExporterError(problem)
    return store_four_bits(model, flat.module, opset)


def _dynamo(flat: FlatModule, tensors: Mapping[str, torch.Tensor], dynamic: Dims, opset: int | None) -> ir.Model:
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
    flat: FlatModule,
    tensors: Mapping[str, torch.Tensor],
    dynamic: Dims,
    opset: int | None,
    outputs: Sequence[str],
    folder: Path | None,
) -> ir.Model:
    inputs = [f"input.{index}" for index in range(len(tensors))]
    axes = {inputs[list(tensors).index(name)]: dict(dims) for name, dims in dynamic.items()}
    with tempfile.TemporaryDirectory(prefix=".exporting-", dir=folder) as temporary:
        path = Path(temporary) / "model.onnx"
        with _without_graph_log(), _expressible():
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
        model = models.load(path)  # which keeps the files open
    _restore_inputs(model, dict(zip(inputs, tensors.values(), strict=True)), axes)
    return model


@contextlib.contextmanager
def _without_graph_log() -> Iterator[None]:
    """Discard the graphs that the TorchScript exporter prints from C++ when it fails."""
    log = torch._C._jit_onnx_log
    torch._C._jit_onnx_log = lambda *_: None
    try:
        yield
    finally:
        torch._C._jit_onnx_log = log


@contextlib.contextmanager
def _expressible() -> Iterator[None]:
    """Let functions compute by others, meanwhile, what TorchScript's export has no operators for.

    Attention repeats keys and values that several queries share, a difference subtracts slices, and what is summed up
    is an integer if it is a truth value.
    """
    library: Any = torch
    kept = functional.scaled_dot_product_attention, library.diff, library.Tensor.cumsum
    attention, _, cumsum = kept

    def repeated(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *others: Any,
        enable_gqa: bool = False,
        **options: Any,
    ) -> torch.Tensor:
        if enable_gqa:
            groups = query.size(-3) // key.size(-3)
            key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
        return attention(query, key, value, *others, **options)

    def subtracted(
        input: torch.Tensor,
        n: int = 1,
        dim: int = -1,
        prepend: torch.Tensor | None = None,
        append: torch.Tensor | None = None,
    ) -> torch.Tensor:
        x = torch.cat([part for part in (prepend, input, append) if part is not None], dim)
        for _ in range(n):
            x = x.narrow(dim, 1, x.size(dim) - 1) - x.narrow(dim, 0, x.size(dim) - 1)
        return x

    def summed(x: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        return cumsum(x.long() if x.dtype == torch.bool else x, *args, **options)  # type: ignore[no-any-return]

    functional.scaled_dot_product_attention, library.diff, library.Tensor.cumsum = repeated, subtracted, summed
    try:
        yield
    finally:
        functional.scaled_dot_product_attention, library.diff, library.Tensor.cumsum = kept


def _restore_inputs(model: ir.Model, tensors: Mapping[str, torch.Tensor], dynamic: Dims) -> None:
    """Restore unused inputs, which TorchScript drops."""
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
_LIBRARY = ("/torch/", "/onnx_bridge/torch/")


def reason(error: BaseException) -> str:
    """Return why an export failed, in one line: the message of the root cause, and the place in the user's code."""
    root = _causes(error)[-1]
    text = _NOISE.sub("", str(root))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    what = lines[0] if lines else "no message"
    if what.endswith(":") and len(lines) > 1:
        what = f"{what} {lines[1]}"
    places = [place for place in _CODE.findall(text) if not any(part in place[0] for part in _LIBRARY)]
    place = f" (in {places[-1][2]}, {Path(places[-1][0]).name} line {places[-1][1]})" if places else ""
    kind = type(root).__name__
    return shorten(f"{kind}: {' '.join(what.split())}", _LENGTH - len(place)) + place


def _causes(error: BaseException) -> list[BaseException]:
    """Return the chain of an exception and its explicit causes."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    return chain
