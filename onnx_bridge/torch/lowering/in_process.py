"""Programs in PyTorch's own process: tensors of the GPU are handed over by their addresses, on its current stream.

The worker compiles each program once more, for memory of the GPU, and keeps it beside the bundle's own. All that a
crash of MIGraphX may take along is then this process, which is why it is done only where it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.submodel import parse
from onnx_bridge.core.atomic_write import atomic_file
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.compile_options import CompileOptions
from onnx_bridge.migraphx.in_process_program import InProcessProgram
from onnx_bridge.migraphx.limits import Limits
from onnx_bridge.migraphx.targets import resolve_target

_FILE = "resident.mxr"
_HINT = "leave it out: programs then run in a worker process"


def require(runtime: str | None, target: str) -> None:
    """Make sure that programs can run in this process.

    Args:
        runtime: which MIGraphX (see `onnx_bridge.migraphx.runtime.find`).
        target: what programs are compiled for.

    Raises:
        InputError: the runtime is not AMD's own Python module, the target is not the GPU, or PyTorch has none.
    """
    found = runtimes.find(runtime)
    if found.kind != "module":
        what = f"it takes AMD's own Python module, and the runtime is {found.path} ({found.kind})"
        raise InputError(what, where="in_process", hint=_HINT)
    if resolve_target(target, found) != "gpu":
        raise InputError("it is for the target gpu, and this one is ref", where="in_process", hint=_HINT)
    if torch.version.hip is None or not torch.cuda.is_available():
        raise InputError("this PyTorch has no AMD GPU to share memory on", where="in_process", hint=_HINT)


class InProcess:
    """The program of one bundle."""

    def __init__(self, bundle: Bundle, runtime: str | None, limits: Limits) -> None:
        """Load it; compile it first where that was not done yet.

        Raises:
            InputError: a part of the bundle runs on ONNX Runtime, or its program cannot be handed addresses.
            RuntimeFailure: MIGraphX failed.
        """
        if not bundle.wholly_on_migraphx or bundle.model_path is None:
            what = "a part of the module runs on ONNX Runtime, which is on the CPU"
            raise InputError(what, where="in_process", hint=_HINT)
        found = runtimes.find(runtime)
        path = bundle.path / _FILE
        if not path.exists():
            _compile(bundle, bundle.model_path, found, limits, path)
        self._program = InProcessProgram(found, path)
        self._names = [each.name for each in bundle.outputs]

    def run(
        self, tensors: Mapping[str, torch.Tensor], outputs: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
    ) -> dict[str, torch.Tensor]:
        """Compute the outputs by name, on the current stream.

        Args:
            tensors: by name, of the program's shapes.
            outputs: the dtype and the shape of each.

        Raises:
            InputError: the tensors are not on a GPU.
        """
        device = next(iter(tensors.values())).device
        if device.type != "cuda":
            what = f"tensors are on {device}, and programs in this process take those of the GPU"
            raise InputError(what, where="in_process", hint="put them there: .to('cuda')")
        dense = {name: each.contiguous() for name, each in tensors.items()}
        made = [
            torch.empty_strided(shape.lens, shape.strides, dtype=outputs[name][0], device=device)
            for name, shape in zip(self._names, self._program.outputs, strict=True)
        ]
        with torch.cuda.device(device):
            stream = torch.cuda.current_stream().cuda_stream
            addresses = {name: each.data_ptr() for name, each in dense.items()}
            self._program.run_async(addresses, [each.data_ptr() for each in made], stream)
        return {name: each.reshape(outputs[name][1]) for name, each in zip(self._names, made, strict=True)}


def _compile(bundle: Bundle, model: Path, runtime: runtimes.Runtime, limits: Limits, path: Path) -> None:
    options, target = bundle.manifest.options, bundle.manifest.target
    worker = workers.shared(runtime, options.get("environment"))
    with worker.limited(limits), atomic_file(path) as temporary:
        program = parse(worker, model, {each.name: each.shape for each in bundle.inputs})
        compiling = CompileOptions.of(options.get("compile"), runtime, target).compile
        program.compile(target, **{**compiling, "offload_copy": False})
        program.save(temporary)
