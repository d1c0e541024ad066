"""The engines that run a model in a benchmark.

migraphx       a bundle, in MIGraphX's worker process, on ``ref`` or ``gpu``; has a precision
ort            ONNX Runtime's CPU provider, with all its optimizations, as it is deployed; in a process, like MIGraphX
ort-migraphx   ONNX Runtime with its MIGraphX provider, if that is installed
ort-rocm       likewise its ROCm provider
torch          the PyTorch module that a factory returns, eager, on the CPU
torch-compile  the same under ``torch.compile`` with its own backend, inductor, which needs a C++ compiler

An engine that is not installed, or fails at its first call, is left out of a benchmark with the reason, unless none
remains.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.third_party import describe
from onnx_bridge.core.values import Array, Value
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.reference.reference import SECONDS
from onnx_bridge.samples.inputs import Sample
from onnx_bridge.torch.modules import factories
from passes.isolation import limits, value_messages
from passes.isolation.messages import Message
from passes.isolation.process import Child
from passes.isolation.worker import Worker

Call = Callable[[Mapping[str, Value]], object]

PROVIDERS = {
    "ort": "CPUExecutionProvider",
    "ort-migraphx": "MIGraphXExecutionProvider",
    "ort-rocm": "ROCMExecutionProvider",
}
TORCH = ("torch", "torch-compile")
ENGINES = ("migraphx", *PROVIDERS, *TORCH)
_SERVER = "onnx_bridge.benchmark.session_server"


@dataclass(frozen=True)
class Start:
    """The cost of loading an engine and of its first call.

    Attributes:
        load: seconds until it could be called.
        first: seconds of the first call.
        memory: bytes that its process took at most, above what it had before.
    """

    load: float
    first: float
    memory: int


@dataclass(frozen=True)
class Engine:
    """An engine after its first call: what runs a sample, what releases its resources, and the cost of loading."""

    call: Call
    close: Callable[[], object]
    start: Start


@dataclass(frozen=True)
class _Loaded:
    """An engine that is loaded: its call, its process (None: this one), and how to release it."""

    call: Call
    pid: int | None = None
    close: Callable[[], object] = gc.collect


class Unavailable(InputError):
    """An engine cannot run on this machine; others can."""


def check_names(names: tuple[str, ...], factory: str | None) -> None:
    """Check that engines exist, and that those that run a module have one; raises InputError otherwise."""
    if not names:
        raise InputError("no engine is named, so nothing can be measured", where="engines")
    for name in names:
        where = f"engine {name!r}"
        if name not in ENGINES:
            raise InputError(
                "the engine does not exist", where=where, hint=nearest(name, ENGINES) or ", ".join(ENGINES)
            )
        if name in TORCH and factory is None:
            hint = "name it with `module`, or bench the factory itself: package.module:name or file.py:name"
            raise InputError("the engine needs a factory of the module", where=where, hint=hint)


def open_engine(engine: str, bundle: Bundle | None, path: Path, module: str | None, sample: Sample) -> Engine:
    """Load an engine, and call it once.

    MIGraphX's worker process may be shared with earlier engines, whose memory must not count: its peak is reset.

    Args:
        engine: its name.
        bundle: for ``migraphx``.
        path: the model, for ONNX Runtime.
        module: the factory, for PyTorch.
        sample: the sample to call it with.

    Raises:
        Unavailable: the engine cannot run here.
        InputError: the engine does not take the model, or the module fails.
    """
    pid, session = None, None
    if bundle is not None:
        bundle.close()
        pid = _worker_pid(bundle)
    elif engine in PROVIDERS:
        session = _Session(path, engine)
        pid = session.pid
    reset_peak_memory(pid)
    before = resident_memory(pid)
    started = time.perf_counter()
    if bundle is not None:
        bundle.open()
        worker = bundle.programs[0].worker
        loaded = _Loaded(bundle, worker.pid if worker else None, bundle.close)
    else:
        loaded = _load_module(engine, str(module), list(sample)) if session is None else session.load()
    ready = time.perf_counter()
    if engine in TORCH:
        _call_module(engine, loaded, sample, str(module))
    else:
        loaded.call(sample)
    done = time.perf_counter()
    peak = max(0, resident_memory(loaded.pid, peak=True) - before)
    return Engine(loaded.call, loaded.close, Start(ready - started, done - ready, peak))


def _worker_pid(bundle: Bundle) -> int | None:
    """Return the worker process that a bundle will be loaded into, started; None if it needs none."""
    if not bundle.manifest.on_migraphx:
        return None
    program = bundle.programs[0]
    worker = workers.shared(runtimes.find(program.runtime_name), program.info.environment)
    worker.start()
    return worker.pid


def _call_module(engine: str, loaded: _Loaded, sample: Sample, factory: str) -> None:
    """Call a module for the first time, when ``torch.compile`` compiles; raises Unavailable or InputError."""
    try:
        loaded.call(sample)
    except Exception as error:  # raised by the user's module, or torch's compiler
        what = describe(error)
        if engine == "torch-compile":
            raise Unavailable(f"torch.compile fails: {what}", where=factory, hint="omit torch-compile") from error
        hint = "its forward must take the model's inputs, by these names or in this order"
        raise InputError(f"the module fails: {what}", where=factory, hint=f"{hint}: {', '.join(sample)}") from error


class _Session:
    """A started ONNX Runtime process with a model; raises Unavailable if ONNX Runtime lacks the provider."""

    def __init__(self, path: Path, engine: str) -> None:
        if PROVIDERS[engine] not in onnxruntime.get_available_providers():
            what = f"ONNX Runtime has no {PROVIDERS[engine]} here"
            raise Unavailable(what, where=f"engine {engine!r}", hint="install a build of onnxruntime that has it")
        self._path, self._engine, self._worker = path, engine, Worker()
        self.pid = self._ask({"do": "start"})[1].pid

    def load(self) -> _Loaded:
        """Let the process make the session; raises InputError."""
        self._ask({"do": "open", "path": str(self._path.absolute()), "provider": PROVIDERS[self._engine]})
        return _Loaded(self._call, self.pid, self._worker.close)

    def _call(self, sample: Mapping[str, Value]) -> Mapping[str, Value]:
        (entries,), arrays = value_messages.pack([sample])
        (answer, outputs_), _ = self._ask({"do": "run", "sample": entries}, arrays)
        return value_messages.unpack([answer["outputs"]], outputs_)[0]

    def _ask(self, request: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> tuple[Message, Child]:
        bounds = limits.current(SECONDS)
        answer, process = self._worker.call(_SERVER, request, arrays, limits=bounds)
        if "error" in answer[0]:
            hint = f"omit {self._engine}"
            raise InputError(f"ONNX Runtime: {answer[0]['error']}", where=str(self._path), hint=hint)
        return answer, process


def _load_module(engine: str, factory: str, names: list[str]) -> _Loaded:
    """Return a PyTorch module, called with the model's inputs by the names of its parameters, or else by position."""
    try:
        import torch
    except ImportError:
        what = "torch is not installed"
        raise Unavailable(what, where=f"engine {engine!r}", hint="pip install torch") from None
    module: Any = factories.load(factory)[0].eval()
    named = set(names) <= inspect.signature(module.forward).parameters.keys()
    if engine == "torch-compile":
        torch.compiler.reset()  # otherwise a program for another sample, with open sizes, may be used
        module = torch.compile(module, dynamic=False)

    def call(sample: Mapping[str, Any]) -> object:
        tensors = {name: torch.from_numpy(sample[name]) for name in names}
        with torch.inference_mode():
            return module(**tensors) if named else module(*tensors.values())

    return _Loaded(call)


def resident_memory(pid: int | None, peak: bool = False) -> int:
    """Return the bytes of memory of a process (None: this one), or their peak since the last reset; 0 if unknown."""
    key = "VmHWM:" if peak else "VmRSS:"
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid or 'self'}/status").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) << 10
    return 0


def reset_peak_memory(pid: int | None) -> None:
    """Reset the peak of a process's resident memory."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid or 'self'}/clear_refs").write_text("5")
