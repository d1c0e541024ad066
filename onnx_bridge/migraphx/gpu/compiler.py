"""MIGraphX as a compiler for one architecture, on a machine that has no such GPU: the rehearsal with kernels."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from onnx_bridge.core.errors import RuntimeNotFound
from onnx_bridge.core.files.user_cache import cache_dir, keep_recent
from onnx_bridge.emulation import translations
from onnx_bridge.emulation.code_object import MACHINES
from onnx_bridge.emulation.library import build
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.architectures import Architecture
from onnx_bridge.migraphx.gpu.stub import LIBRARY, stub_libraries, stub_version
from onnx_bridge.migraphx.install_record import InstallRecord
from onnx_bridge.migraphx.kinds import STUB
from onnx_bridge.migraphx.rehearsal.depth import Rehearsal
from onnx_bridge.migraphx.remote_program import RemoteProgram
from onnx_bridge.migraphx.runtime import Runtime, installed


@dataclass(frozen=True)
class GpuCompiler(Rehearsal):
    """A runtime that compiles for an architecture, in a worker process that sees a GPU of it.

    Attributes:
        architecture: the architecture.
        by_itself: whether MIGraphX has options for an architecture, so that it needs no stub to compile.
    """

    architecture: Architecture
    by_itself: bool = False

    slower = 20.0

    @property
    def target(self) -> str:
        return f"gpu:{self.architecture.name}" if self.by_itself else "gpu"

    @property
    def computes(self) -> bool:
        """True if the architecture's instructions are emulated."""
        return self.architecture.name in MACHINES.values()

    @property
    def leg(self) -> str:
        return f"emulated {self.architecture.name}"

    @property
    def option(self) -> str:
        return f"--target gpu:{self.architecture.name}"

    @property
    def made_by(self) -> str:
        """The compiler, in words."""
        record = InstallRecord.read(self.runtime.path)
        packages = {package.name: package.version for package in record.packages} if record else {}
        version = packages.get("migraphx-tools")
        return f"MIGraphX {self.runtime.version}" + (f" of Debian ({version})" if version else "")

    @property
    def note(self) -> str:
        return f"compiled for {self.architecture.name} by {self.made_by}, not run on a GPU"

    @property
    def key(self) -> str:
        return f"{_identity(self.runtime)} {self.architecture.described} {self.target}"

    def first(self, count: int) -> GpuCompiler:
        return self

    def worker(self, environment: Mapping[str, str] | None = None, *, checks_heap: bool = False) -> workers.Worker:
        variables = self.variables(environment or {}, self.runtime)
        if self.computes:
            build(self.architecture.wavefront)
            variables[STUB] = str(self.runtime.library_path[0] / LIBRARY)
        return workers.shared(self.runtime, variables)

    def variables(self, environment: Mapping[str, str], runtime: Runtime) -> dict[str, str]:
        """Return the variables of a process that compiles, with a runtime whose first folder has the stub."""
        variables = {**environment, "GPUSTUB_DEVICE": self.architecture.described, **_kept_kernels(runtime)}
        if runtime.loader is None:
            folders = [str(runtime.library_path[0]), os.environ.get("LD_LIBRARY_PATH", "")]
            variables["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
        return variables

    def prepare(self, program: RemoteProgram) -> list[dict[str, Any]]:
        return []

    def to_json(self, count: int) -> dict[str, Any]:
        return {"target": self.target}


def gpu_compiler(runtime: Runtime, architecture: Architecture) -> GpuCompiler:
    """Return the compiler for an architecture: the runtime itself, or another one here of its version.

    Whether MIGraphX compiles for an architecture by itself is not known by its version: it is asked for such a target.

    Raises:
        RuntimeNotFound: no runtime here compiles kernels, or there is no C++ compiler.
        RuntimeFailure: the stub cannot be built.
    """
    candidate = _compiler(runtime)
    if candidate is None:
        raise RuntimeNotFound(
            f"no MIGraphX {runtime.version} on this machine can compile for a GPU that is not there",
            where=f"target gpu:{architecture.name}",
            hint="onnx-bridge runtime install --gpu-compiler",
        )
    folders = (stub_libraries(candidate.gpu_libraries), *candidate.library_path)
    stubbed = replace(candidate, library_path=folders)
    by_itself = workers.shared(candidate).has_target(f"gpu:{architecture.name}")
    return GpuCompiler(stubbed, (f"compiling for {architecture.name}",), architecture, by_itself)


def compiler_identity(runtime: Runtime) -> str:
    """Return a text that changes with what `gpu_compiler` compiles with: packages and stub; empty without them."""
    compiler = _compiler(runtime)
    return _identity(compiler) if compiler else ""


def _identity(runtime: Runtime) -> str:
    return f"{_packages(runtime)} {stub_version()}"


@functools.cache
def _limit_caches() -> None:
    """Remove the kernels and their translations that were used least recently; once in a process."""
    keep_recent(cache_dir().glob("kernels/*/*"))
    keep_recent(translations.files())


def _kept_kernels(runtime: Runtime) -> dict[str, str]:
    """Return the variables of `hiprtc.cpp`: the compiler, and the folder of what it has compiled."""
    _limit_caches()
    folder = cache_dir() / "kernels" / re.sub(r"[^\w.-]", "_", _packages(runtime))
    folder.mkdir(parents=True, exist_ok=True)
    libraries = (path for place in runtime.library_path for path in sorted(place.glob("libhiprtc.so.*")))
    real = next((path for path in libraries if path.resolve().name != LIBRARY), "")
    return {"GPUSTUB_HIPRTC": str(real), "GPUSTUB_KERNELS": str(folder)}


def _packages(runtime: Runtime) -> str:
    record = InstallRecord.read(runtime.path)
    return record.identity if record else runtime.identity


def _compiler(runtime: Runtime) -> Runtime | None:
    """Return what compiles kernels: the runtime itself, or else the first one here of its version; None without one."""
    if runtime.compiles_kernels:
        return runtime
    others = (other for other in installed() if other.compiles_kernels and other.version == runtime.version)
    return next(others, None)
