"""MIGraphX as a compiler for one architecture, on a machine that has no such GPU."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from onnx_bridge.core.errors import RuntimeNotFound
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.gpu.architectures import Architecture
from onnx_bridge.migraphx.gpu.stub import stub_libraries, stub_version
from onnx_bridge.migraphx.install_record import InstallRecord
from onnx_bridge.migraphx.runtime import Runtime, installed

INSTALL = "onnx-bridge runtime install --gpu-compiler"


@dataclass(frozen=True)
class GpuCompiler:
    """A runtime that compiles for an architecture, in a worker process that sees a GPU of it.

    Attributes:
        runtime: the runtime, whose library path begins with the stub of the GPU's libraries.
        architecture: the architecture.
    """

    runtime: Runtime
    architecture: Architecture

    @property
    def target(self) -> str:
        """The target as users name it."""
        return f"gpu:{self.architecture.name}"

    @property
    def note(self) -> str:
        """A sentence for the user that says what was done, and what was not."""
        return f"compiled for {self.architecture.name} by MIGraphX {self.runtime.version}, not run on a GPU"

    @property
    def key(self) -> str:
        """A text that changes with what decides on the result: the compiler, the architecture, the stub."""
        record = InstallRecord.read(self.runtime.path)
        return f"{record.identity if record else self.runtime.identity} {stub_version()} {self.architecture.described}"

    def worker(self) -> workers.Worker:
        """Return the shared worker that compiles for the target ``gpu``."""
        environment = {"GPUSTUB_DEVICE": self.architecture.described}
        if self.runtime.loader is None:
            folders = [str(self.runtime.library_path[0]), os.environ.get("LD_LIBRARY_PATH", "")]
            environment["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
        return workers.shared(self.runtime, environment)


def gpu_compiler(runtime: Runtime, architecture: Architecture) -> GpuCompiler:
    """Return the compiler for an architecture: the runtime itself, or another one here of its version.

    Raises:
        RuntimeNotFound: no runtime here compiles kernels, or there is no C++ compiler.
        RuntimeFailure: the stub cannot be built.
    """
    for candidate in (runtime, *installed()):
        library = candidate.gpu_library
        if library is not None and candidate.compiles_kernels and candidate.version == runtime.version:
            folders = (stub_libraries(library), *candidate.library_path)
            return GpuCompiler(replace(candidate, library_path=folders), architecture)
    raise RuntimeNotFound(
        f"no MIGraphX {runtime.version} on this machine can compile for a GPU that is not there",
        where=f"gpu:{architecture.name}",
        hint=INSTALL,
    )
