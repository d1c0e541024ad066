"""What runs a model in a benchmark: an engine is opened, called, and closed.

migraphx       a bundle, in MIGraphX's worker process, on ``ref`` or ``gpu``; takes a precision
ort            ONNX Runtime's CPU provider, with all its optimizations, as it is deployed
ort-migraphx   ONNX Runtime with its MIGraphX provider, where that is installed
ort-rocm       likewise its ROCm provider
torch          the PyTorch module that a factory makes, eager, on the CPU
torch-compile  the same under ``torch.compile`` with its own backend, inductor, which needs a C++ compiler

What is not installed here, or fails at its first call, is left out of a benchmark with the reason, unless nothing is
left.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.values import Value

Call = Callable[[Mapping[str, Value]], object]

PROVIDERS = {
    "ort": "CPUExecutionProvider",
    "ort-migraphx": "MIGraphXExecutionProvider",
    "ort-rocm": "ROCMExecutionProvider",
}
TORCH = ("torch", "torch-compile")
ENGINES = ("migraphx", *PROVIDERS, *TORCH)


@dataclass
class Opened:
    """An engine that is ready.

    Attributes:
        call: runs a sample.
        pid: the process that it runs in; None for this one.
        close: lets go of it.
    """

    call: Call
    pid: int | None = None
    close: Callable[[], object] = gc.collect


class Unavailable(InputError):
    """An engine cannot be had here; others can."""


def check_names(names: tuple[str, ...], factory: str | None) -> None:
    """Require that engines are known, and that there is a module for those that run one.

    Raises:
        InputError: one is not.
    """
    if not names:
        raise InputError("there is nothing to measure: no engine is named", where="engines")
    for name in names:
        where = f"engine {name!r}"
        if name not in ENGINES:
            raise InputError("there is no such engine", where=where, hint=nearest(name, ENGINES) or ", ".join(ENGINES))
        if name in TORCH and factory is None:
            hint = "--module FACTORY, or bench the factory itself: package.module:name or file.py:name"
            raise InputError("it needs a factory of the module", where=where, hint=hint)


def open_bundle(bundle: Bundle) -> Opened:
    """A bundle, loaded."""
    bundle.open()
    return Opened(bundle, bundle.worker.pid if bundle.worker else None, bundle.close)


def open_session(path: Path, engine: str) -> Opened:
    """A model on ONNX Runtime.

    Raises:
        Unavailable: this build has not that provider.
        InputError: it does not take the model.
    """
    import onnxruntime

    if PROVIDERS[engine] not in onnxruntime.get_available_providers():
        what = f"ONNX Runtime has no {PROVIDERS[engine]} here"
        raise Unavailable(what, where=f"engine {engine!r}", hint="install a build of onnxruntime that has it")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=[PROVIDERS[engine]])
    except Exception as error:  # its own classes
        raise InputError(f"ONNX Runtime: {error}", where=str(path), hint=f"leave {engine} out") from error
    return Opened(functools.partial(session.run, None))


def open_module(engine: str, factory: str, names: list[str]) -> Opened:
    """A PyTorch module, called with the inputs of the model by the names of its parameters, or else by position.

    Args:
        engine: ``torch`` or ``torch-compile``.
        factory: as for the verb ``export`` (see `onnx_bridge.torch.export.factories`).
        names: of the model's inputs, in order.

    Raises:
        Unavailable: there is no torch.
        InputError: the factory fails.
    """
    try:
        import torch
    except ImportError:
        what = "torch is not installed"
        raise Unavailable(what, where=f"engine {engine!r}", hint="pip install torch") from None
    import inspect

    from onnx_bridge.torch.export import factories

    module: Any = factories.load(factory)[0].eval()
    named = set(names) <= inspect.signature(module.forward).parameters.keys()
    if engine == "torch-compile":
        torch.compiler.reset()  # or it would take what it compiled for another sample, with sizes left open
        module = torch.compile(module, dynamic=False)

    def call(sample: Mapping[str, Any]) -> object:
        tensors = {name: torch.from_numpy(sample[name]) for name in names}
        with torch.inference_mode():
            return module(**tensors) if named else module(*tensors.values())

    return Opened(call)


def resident(pid: int | None, peak: bool = False) -> int:
    """Bytes of memory that a process (None: this one) has, or had at most since `forget_peak`; 0 where unknown."""
    key = "VmHWM:" if peak else "VmRSS:"
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid or 'self'}/status").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) << 10
    return 0


def forget_peak(pid: int | None) -> None:
    """Let the peak of a process's memory begin anew."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid or 'self'}/clear_refs").write_text("5")
