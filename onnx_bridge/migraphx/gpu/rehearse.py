"""The choice of a rehearsal by the name that users give it: ``gpu`` for the passes, ``gpu:gfx942`` with kernels."""

from __future__ import annotations

from onnx_bridge.migraphx.architectures import named_architecture
from onnx_bridge.migraphx.gpu.compiler import gpu_compiler
from onnx_bridge.migraphx.rehearsal.depth import Rehearsal
from onnx_bridge.migraphx.rehearsal.rehearsal import pass_rehearsal
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.targets import resolve_target


def rehearsal(name: str | None, runtime: Runtime) -> Rehearsal | None:
    """Return a rehearsal; None without a name, or with a GPU of the named architecture: then the real thing is run.

    Raises:
        InputError: the architecture is not known.
        RuntimeNotFound: there is no compiler, there are no headers of the runtime's version, or it has no C library.
        RuntimeFailure: a library cannot be built.
    """
    if name is None:
        return None
    architecture = named_architecture(name)
    if architecture is None:
        return pass_rehearsal(runtime)
    return None if resolve_target(name, runtime) == "gpu" else gpu_compiler(runtime, architecture)
