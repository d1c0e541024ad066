"""PyTorch modules on MIGraphX: `lower`, and the backend ``onnx_bridge`` of `torch.compile`.

Both go the same way, and so need no converters: the module is exported to ONNX and checked against itself, converted to
a bundle, and called through it. What was made once is found again on disk. Importing this package does not import
PyTorch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from onnx_bridge.torch.export.export import require_torch

if TYPE_CHECKING:
    import torch

    from onnx_bridge.torch.lowering.lowered import Lowered

__all__ = ["lower"]


def lower(
    module: torch.nn.Module,
    sample_inputs: Any,
    target: Literal["auto", "ref", "gpu"] = "auto",
    precision: Literal["fp16", "bf16"] | None = None,
    buckets: Mapping[str, Sequence[int]] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    pad_before: Sequence[str] = (),
    exporter: Literal["auto", "dynamo", "torchscript"] = "auto",
    opset: int | None = None,
    host: bool = True,
    cache: bool | str | os.PathLike[str] = True,
    timeout: float | None = None,
    memory: float | None = None,
    runtime: str | None = None,
    in_process: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Lowered:
    """A module that computes on MIGraphX what the given one does, called like it and giving what it gives.

    It is exported (`onnx_bridge.export`, which checks the graph against the module itself), converted, and loaded. A
    second time that is done within moments, also by another process: what was made is kept on disk, by the contents of
    the module, and what is found there is checked against the module again.

    The result takes and gives tensors, nested as the module does; it is for inference: it has no parameters, and
    gradients through it are an error. Arguments that are no tensors are fixed. ``state_dict``, ``torch.save`` and
    ``copy.deepcopy`` take the programs along.

    Args:
        module: in evaluation mode, on the CPU; left as it is.
        sample_inputs: arguments as `onnx_bridge.export` takes them: a tuple or list of them, or the only one; a mapping
            by name is taken for arguments by name.
        target: what MIGraphX compiles for: ``gpu``, ``ref``, or ``auto``: gpu where there is one.
        precision: what the module computes in, weights included; inputs and outputs stay as they are. None leaves the
            module as it is.
        buckets: sizes by the name of an open dimension, one program for each combination: inputs are padded with zeros
            to the smallest that fits, and outputs cut. That this changes no output (masks see to it) is tried out in
            each of them.
        kwargs: arguments by name.
        dynamic: names of dimensions by input and axis, as `onnx_bridge.export` takes them; each needs its ``buckets``.
        pad_before: names of those that are padded at their start, and cut there: dimensions that the module appends
            to, such as the length of a cache of keys and values.
        exporter: of torch.onnx: ``auto``, ``dynamo``, ``torchscript``.
        opset: of the ONNX model; by default torch's own choice.
        host: whether nodes that MIGraphX cannot run may run on ONNX Runtime.
        cache: whether to keep what is made in ``onnx-bridge``'s cache folder, and to look there; or another folder.
        timeout: most seconds for each of MIGraphX's steps, and for a call.
        memory: most GiB that MIGraphX's process may take.
        runtime: which MIGraphX (see `onnx_bridge.migraphx.runtime.find`).
        in_process: run in this process, on tensors of the GPU, which are handed over by their addresses on PyTorch's
            current stream. It takes an AMD GPU and AMD's own Python module; a crash of MIGraphX is then one of this
            process.
        progress: told each stage as it begins.

    Raises:
        InputError: the module is in training mode or not on the CPU, cannot be exported, computes something else when
            it is padded; or an argument is wrong.
        RuntimeFailure: there is no MIGraphX, or neither it nor ONNX Runtime can run a node.
    """
    require_torch()
    from onnx_bridge.torch.lowering.build_programs import Options
    from onnx_bridge.torch.lowering.lower import lowered

    options = Options(
        target, precision, exporter, opset, host, cache, timeout, memory, runtime, tuple(pad_before), in_process
    )
    return lowered(module, sample_inputs, kwargs, dynamic or {}, buckets or {}, options, progress)
