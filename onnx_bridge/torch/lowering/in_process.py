"""Programs in PyTorch's own process: tensors are passed by address, those of the GPU on PyTorch's current stream.

The worker compiles each program once more, without copies, and stores it beside the bundle's own. A crash of MIGraphX
then ends this process, which is why this has to be asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import torch

from onnx_bridge.bundle.partitions import parse
from onnx_bridge.bundle.program import Program
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.atomic_write import atomic_file
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.compile_options import CompileOptions
from onnx_bridge.migraphx.in_process_program import InProcessProgram
from onnx_bridge.migraphx.targets import resolve_target

_FILE = "resident.mxr"
_HINT = "omit it: programs then run in a worker process"


def require_in_process(runtime: str | None, target: str) -> None:
    """Check that programs for a target can run in this process, on a runtime (see `onnx_bridge.migraphx.runtime.find`).

    Raises InputError if the runtime is not AMD's own Python module, or the target is the GPU and PyTorch has none.
    """
    installation = runtimes.find(runtime)
    if installation.kind != "module":
        what = f"the option needs AMD's own Python module, but the runtime is {installation.path} ({installation.kind})"
        raise InputError(what, where="in_process", hint=_HINT)
    is_gpu = resolve_target(target, installation) == "gpu"
    if is_gpu and (torch.version.hip is None or not torch.cuda.is_available()):
        raise InputError("this PyTorch has no AMD GPU to share memory on", where="in_process", hint=_HINT)


class InProcess:
    """A program of a bundle, in this process."""

    def __init__(self, program: Program) -> None:
        """Load the program, compiled first if necessary.

        Raises:
            InputError: a partition of it runs on ONNX Runtime, or its program does not take addresses.
            RuntimeFailure: MIGraphX failed.
        """
        if not program.info.is_one_program or program.model_path is None:
            what = "the module is not one MIGraphX program: parts of it run apart, or on ONNX Runtime"
            raise InputError(what, where="in_process", hint=_HINT)
        runtime = runtimes.find(program.runtime_name)
        path = program.path / _FILE
        if not path.exists():
            _compile(program, program.model_path, runtime, path)
        self._program = InProcessProgram(runtime, path)
        self._shapes = {info.name: tuple(size or 0 for size in info.sizes or ()) for info in program.outputs}
        self._device = "cuda" if program.manifest.target == "gpu" else "cpu"

    def run(self, tensors: Mapping[str, torch.Tensor], dtypes: Mapping[str, torch.dtype]) -> dict[str, torch.Tensor]:
        """Compute the outputs by name, in their ``dtypes``, on the current stream.

        Raises InputError if the tensors are on another device than the program.
        """
        device = next(iter(tensors.values())).device
        if device.type != self._device:
            what = f"tensors are on {device}, but this program takes tensors on {self._device} by their address"
            raise InputError(what, where="in_process", hint=f"move them: .to('{self._device}')")
        dense = {name: tensor.contiguous() for name, tensor in tensors.items()}
        outputs = [
            torch.empty_strided(shape.lens, shape.strides, dtype=dtypes[name], device=device)
            for name, shape in zip(self._shapes, self._program.outputs, strict=True)
        ]
        on_gpu = device.type == "cuda"
        stream = torch.cuda.current_stream(device).cuda_stream if on_gpu else 0
        with torch.cuda.device(device) if on_gpu else contextlib.nullcontext():
            addresses = {name: tensor.data_ptr() for name, tensor in dense.items()}
            self._program.run_async(addresses, [tensor.data_ptr() for tensor in outputs], stream)
        return {name: tensor.reshape(self._shapes[name]) for name, tensor in zip(self._shapes, outputs, strict=True)}


def _compile(program: Program, model: Path, runtime: runtimes.Runtime, path: Path) -> None:
    target = program.manifest.target
    worker = workers.shared(runtime, program.info.environment)
    with worker.limited(program.limits), atomic_file(path) as temporary:
        parsed = parse(worker, model, {info.name: info.sizes for info in program.inputs})
        compiling = CompileOptions.of(program.manifest.request.options, runtime, target).compile
        parsed.compile(target, **{**compiling, "offload_copy": False})
        parsed.save(temporary)
