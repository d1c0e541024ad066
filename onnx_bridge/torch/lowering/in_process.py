"""Programs in PyTorch's own process: tensors are passed by address, those of the GPU on PyTorch's current stream.

The worker compiles each program once more, without copies, and stores it beside the bundle's own. A crash of MIGraphX
then ends this process, which is why this has to be asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

import torch

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.submodel import parse
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.atomic_write import atomic_file
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.compile_options import CompileOptions
from onnx_bridge.migraphx.in_process_program import InProcessProgram
from onnx_bridge.migraphx.targets import resolve_target
from passes.isolation.limits import Limits

_FILE = "resident.mxr"
_HINT = "omit it: programs then run in a worker process"


def require_in_process(runtime: str | None, target: str) -> None:
    """Check that programs can run in this process.

    Args:
        runtime: which MIGraphX (see `onnx_bridge.migraphx.runtime.find`).
        target: what programs are compiled for.

    Raises:
        InputError: the runtime is not AMD's own Python module, or the target is the GPU and PyTorch has none.
    """
    found = runtimes.find(runtime)
    if found.kind != "module":
        what = f"it needs AMD's own Python module, but the runtime is {found.path} ({found.kind})"
        raise InputError(what, where="in_process", hint=_HINT)
    is_gpu = resolve_target(target, found) == "gpu"
    if is_gpu and (torch.version.hip is None or not torch.cuda.is_available()):
        raise InputError("this PyTorch has no AMD GPU to share memory on", where="in_process", hint=_HINT)


class InProcess:
    """The program of one bundle."""

    def __init__(self, bundle: Bundle, runtime: str | None, limits: Limits) -> None:
        """Load the program, compiled first if necessary.

        Raises:
            InputError: a partition of the bundle runs on ONNX Runtime, or its program does not take addresses.
            RuntimeFailure: MIGraphX failed.
        """
        if not bundle.wholly_on_migraphx or bundle.model_path is None:
            what = "a partition of the module runs on ONNX Runtime, on the CPU"
            raise InputError(what, where="in_process", hint=_HINT)
        found = runtimes.find(runtime)
        path = bundle.path / _FILE
        if not path.exists():
            _compile(bundle, bundle.model_path, found, limits, path)
        self._program = InProcessProgram(found, path)
        self._names = [each.name for each in bundle.outputs]
        self._device = "cuda" if bundle.manifest.target == "gpu" else "cpu"

    def run(
        self, tensors: Mapping[str, torch.Tensor], outputs: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
    ) -> dict[str, torch.Tensor]:
        """Compute the outputs by name, on the current stream.

        Args:
            tensors: by name, of the program's shapes.
            outputs: the dtype and the shape of each.

        Raises:
            InputError: the tensors are not where the program runs.
        """
        device = next(iter(tensors.values())).device
        if device.type != self._device:
            what = f"tensors are on {device}, but this program takes tensors on {self._device} by their address"
            raise InputError(what, where="in_process", hint=f"move them: .to('{self._device}')")
        dense = {name: each.contiguous() for name, each in tensors.items()}
        found = [
            torch.empty_strided(shape.lens, shape.strides, dtype=outputs[name][0], device=device)
            for name, shape in zip(self._names, self._program.outputs, strict=True)
        ]
        on_gpu = device.type == "cuda"
        stream = torch.cuda.current_stream(device).cuda_stream if on_gpu else 0
        with torch.cuda.device(device) if on_gpu else contextlib.nullcontext():
            addresses = {name: each.data_ptr() for name, each in dense.items()}
            self._program.run_async(addresses, [each.data_ptr() for each in found], stream)
        return {name: each.reshape(outputs[name][1]) for name, each in zip(self._names, found, strict=True)}


def _compile(bundle: Bundle, model: Path, runtime: runtimes.Runtime, limits: Limits, path: Path) -> None:
    manifest = bundle.manifest
    target = manifest.target
    worker = workers.shared(runtime, manifest.program.environment)
    with worker.limited(limits), atomic_file(path) as temporary:
        program = parse(worker, model, {each.name: each.sizes for each in bundle.inputs})
        compiling = CompileOptions.of(manifest.request.options, runtime, target).compile
        program.compile(target, **{**compiling, "offload_copy": False})
        program.save(temporary)
