"""The properties of a machine that determine the bundles that are made on it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from onnx_bridge.migraphx.gpu.compiler import compiler_identity
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.targets import gpu_architecture

_LOGGING = ("MIGRAPHX_TRACE_", "MIGRAPHX_TIME_")
"""Prefixes of variables that change only what MIGraphX prints."""


@dataclass(frozen=True)
class Machine:
    """A machine; two that are equal make the same bundle from the same job.

    Attributes:
        identity: the identity of its MIGraphX (`Runtime.identity`).
        architecture: the architecture of its GPU ("gfx942"); None without one.
        environment: the environment variables that change the program which MIGraphX compiles.
        targets: the targets that its MIGraphX has libraries for.
        compiler: the identity of what compiles for GPUs elsewhere; empty without it.
    """

    identity: str
    architecture: str | None
    environment: Mapping[str, str]
    targets: tuple[str, ...]
    compiler: str = ""

    @classmethod
    def here(cls, runtime: Runtime) -> Machine:
        """Describe this machine with one of its runtimes."""
        environment, compiler = compile_environment(os.environ), compiler_identity(runtime)
        return cls(runtime.identity, gpu_architecture(), environment, tuple(runtime.targets), compiler)

    @classmethod
    def of(cls, runtime: Runtime | Machine) -> Machine:
        return runtime if isinstance(runtime, Machine) else cls.here(runtime)


def compile_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that change the program which MIGraphX compiles."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith("MIGRAPHX_") and not name.startswith(_LOGGING)
    }
