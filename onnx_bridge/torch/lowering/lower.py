"""The API function `onnx_bridge.lower`: a PyTorch module that runs on MIGraphX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress
from onnx_bridge.requests.export import as_arguments
from onnx_bridge.requests.lowering import LowerRequest
from onnx_bridge.torch import require_torch

if TYPE_CHECKING:
    import torch

    from onnx_bridge.requests.keywords import LowerOptions
    from onnx_bridge.torch.lowering.lowered import Lowered


def lower(
    module: torch.nn.Module,
    sample_inputs: Any = (),
    *,
    kwargs: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    **options: Unpack[LowerOptions],
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
        kwargs: arguments by name.
        progress: called with each stage as it begins.
        options: the fields of `onnx_bridge.requests.lowering.LowerRequest`. With ``buckets``, outputs are cut, and the
            module is run to check that padding changes no output; dimensions that the module appends to, such as the
            length of a cache of keys and values, are padded at their start. ``in_process`` needs an AMD GPU and AMD's
            own Python module; a crash of MIGraphX then ends this process.

    Raises:
        InputError: the module is in training mode or not on the CPU, cannot be exported, or its output changes
            when it is padded; or an option is wrong.
        ParityError: a program's output differs from the exported model's.
        RuntimeFailure: there is no MIGraphX, or neither it nor ONNX Runtime can run a node.
    """
    require_torch()
    from onnx_bridge.torch.lowering.lower_module import lower_module

    if kwargs is None and isinstance(sample_inputs, Mapping):
        sample_inputs, kwargs = (), sample_inputs
    request = LowerRequest.of(options)
    for symbol, sizes in request.convert.buckets.items():
        if not isinstance(sizes, tuple):
            raise InputError(f"the sizes are {sizes!r}", where=f"dimension {symbol!r}", hint="give a list of them")
    return lower_module(module, as_arguments(sample_inputs), dict(kwargs or {}), request, progress)
