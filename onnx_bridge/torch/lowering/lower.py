"""The API function `onnx_bridge.lower`: a PyTorch module that runs on MIGraphX."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress
from onnx_bridge.requests.conversion import PROVE_BUDGET, Prove
from onnx_bridge.requests.export import Dynamic, ExporterChoice, as_arguments
from onnx_bridge.requests.lowering import HalfPrecision, LowerRequest
from onnx_bridge.torch import require_torch

if TYPE_CHECKING:
    import torch

    from onnx_bridge.torch.lowering.lowered import Lowered


def lower(  # noqa: PLR0913
    module: torch.nn.Module,
    sample_inputs: Any,
    target: Literal["auto", "ref", "gpu"] = "auto",
    precision: HalfPrecision | None = None,
    buckets: Mapping[str, Sequence[int]] | None = None,
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic: Dynamic | None = None,
    pad_before: Sequence[str] = (),
    exporter: ExporterChoice = "auto",
    opset: int | None = None,
    host: bool = True,
    cache: bool | str | os.PathLike[str] = True,
    timeout: float | None = None,
    memory: float | None = None,
    runtime: str | None = None,
    in_process: bool = False,
    prove: Prove = "auto",
    prove_budget: float = PROVE_BUDGET,
    progress: Progress | None = None,
) -> Lowered:
    """Return a module that computes on MIGraphX what the given one does, with the same signature.

    The module is exported (`onnx_bridge.export`, which checks the graph against the module), converted, and loaded.
    Programs are cached on disk by the contents of the module, also for other processes; cached programs are checked
    against the module again.

    The result takes and returns tensors, nested as in the module. It is for inference: it has no parameters, and
    gradients through it are an error. Arguments that are not tensors are fixed. ``state_dict``, ``torch.save`` and
    ``copy.deepcopy`` include the programs.

    Args:
        module: in evaluation mode, on the CPU; it is not changed.
        sample_inputs: arguments as for `onnx_bridge.export`: a tuple or list of them, or the only one; a mapping is
            taken for arguments by name.
        target: what MIGraphX compiles for: ``gpu``, ``ref``, or ``auto``: gpu if there is one.
        precision: what the module computes in, weights included; inputs and outputs keep their dtypes. None keeps the
            module's own dtypes.
        buckets: sizes by the name of an open dimension, one program for each combination: inputs are padded with zeros
            to the smallest that fits, and outputs are cut. The module is run to check that padding changes no output.
        kwargs: arguments by name.
        dynamic: names of open dimensions by input and axis, as for `onnx_bridge.export`; each needs ``buckets``.
        pad_before: names of the dimensions that are padded, and cut, at their start: those that the module appends to,
            such as the length of a cache of keys and values.
        exporter: of torch.onnx: ``auto``, ``dynamo``, ``torchscript``.
        opset: of the ONNX model; by default torch's own choice.
        host: whether nodes that MIGraphX cannot run may run on ONNX Runtime.
        cache: whether to use the cache folder of ONNX Bridge, or another folder.
        timeout: limit in seconds for each step of MIGraphX, and for a call.
        memory: limit in GiB for MIGraphX's process.
        runtime: which MIGraphX (see `onnx_bridge.migraphx.runtime.find`).
        in_process: run in this process, on tensors that are passed by address, on PyTorch's current stream of the GPU.
            It needs an AMD GPU and AMD's own Python module; a crash of MIGraphX then ends this process.
        prove: whether new programs are run on the sample inputs (with buckets: on generated ones) and compared with
            ONNX Runtime on the exported model, as for `onnx_bridge.convert`; the result's ``proof`` says how far their
            numbers are known.
        prove_budget: the most estimated seconds of such runs, all buckets together.
        progress: called with each stage as it begins.

    Raises:
        InputError: the module is in training mode or not on the CPU, cannot be exported, or computes something else
            when it is padded; or an argument is wrong.
        ParityError: a program's output differs from the exported model's.
        RuntimeFailure: there is no MIGraphX, or neither it nor ONNX Runtime can run a node.
    """
    require_torch()
    from onnx_bridge.torch.lowering.lower_module import lower_module

    if kwargs is None and isinstance(sample_inputs, Mapping):
        sample_inputs, kwargs = (), sample_inputs
    for symbol, sizes in (buckets or {}).items():
        if not isinstance(sizes, Sequence):
            raise InputError(f"its sizes are {sizes!r}", where=f"dimension {symbol!r}", hint="give a list of them")
    request = LowerRequest(
        target=target,
        precision=precision,
        buckets={symbol: tuple(sizes) for symbol, sizes in (buckets or {}).items()},
        dynamic=dynamic or {},
        pad_before=tuple(pad_before),
        exporter=exporter,
        opset=opset,
        host=host,
        cache=cache,
        timeout=timeout,
        memory=memory,
        runtime=runtime,
        in_process=in_process,
        prove=prove,
        prove_budget=prove_budget,
    )
    return lower_module(module, as_arguments(sample_inputs), dict(kwargs or {}), request, progress)
