"""MIGraphX in a process of its own: a crash, a hang or a leak there does not affect the caller.

A `Worker` implements `program.Library`; its programs are `RemoteProgram`. A request that ends the process becomes a
typed error (`WorkerCrashed`, `WorkerTimeout`, `OutOfMemory`), and the next request gets a fresh process.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from onnx_bridge.core.errors import (
    MigraphxError,
    NotEmulated,
    OutOfMemory,
    ProgramLost,
    RuntimeFailure,
    Step,
    WorkerCrashed,
    WorkerTimeout,
)
from onnx_bridge.migraphx.kinds import STUB
from onnx_bridge.migraphx.process.printed_error import PrintedError
from onnx_bridge.migraphx.process.protocol import TensorMessage, pack, unpack
from onnx_bridge.migraphx.program import OnnxOptions, Tensor
from onnx_bridge.migraphx.remote_program import RemoteProgram
from onnx_bridge.migraphx.runtime import Runtime
from passes.isolation.limits import Limits
from passes.isolation.process import Child, ChildFailure, Reason
from passes.isolation.respawning import RespawningChild

_STEPS = {"parse_onnx": Step.PARSE, **{step.value: step for step in Step if step is not Step.PARSE}}
"""The step of MIGraphX by the name of a request."""
_START_SECONDS = 60.0
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 40)}
"""Saving grows a buffer to the size of the program. With large buffers on the heap instead of in mappings of their own,
which is glibc's default, saving 430 MB takes about a second less, and the peak of memory is some 8 % higher."""
_HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""If the system leaves it to programs (``madvise``), the heap is in pages of 2 MB: parsing, compiling and saving
ResNet-50 takes half the time, most of which is page faults otherwise. Otherwise it has no effect."""
_HEAP_CHECKER = "libc_malloc_debug.so.0"
"""glibc's library; with it and ``glibc.malloc.check=3`` a corrupted heap ends the process when memory is freed."""
_SYSTEM_LIBRARIES = tuple(map(Path, ("/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib")))


class Worker:
    """One worker process at a time, started when the first request needs it; safe to use from several threads.

    Args:
        environment: variables for MIGraphX in addition to the parent's; since MIGraphX reads them once, they belong to
            the worker and not to a request.
        limits: the limits of each request; `limited` replaces them for a block.
        on_output: called with everything that the process printed, after each request that it answered.
    """

    def __init__(
        self,
        runtime: Runtime,
        environment: Mapping[str, str] | None = None,
        limits: Limits = Limits(),
        on_output: Callable[[str], object] | None = None,
    ) -> None:
        self.runtime = runtime
        self.environment = dict(environment or {})
        self._limits = limits
        self._on_output = on_output
        self._limited = threading.local()
        self._child = RespawningChild(self._spawn)
        self._hello: tuple[int, dict[str, Any]] = 0, {}
        self._dropped: list[tuple[int, int]] = []

    @property
    def pid(self) -> int | None:
        """The process's id while it lives."""
        return self._child.process.pid if self._child.process else None

    @property
    def generation(self) -> int:
        """The number of processes that were started."""
        return self._child.generation

    @property
    def limits(self) -> Limits:
        return getattr(self._limited, "limits", self._limits)

    @property
    def version(self) -> str:
        return str(self.start()["version"])

    @property
    def features(self) -> frozenset[str]:
        """The features of this build beyond the common API."""
        return frozenset(self.start()["features"])

    @functools.cached_property
    def _temporary(self) -> str:
        """The folder for temporary files, in which MIGraphX leaves programs whose passes failed."""
        folder = tempfile.mkdtemp(prefix="onnx-bridge-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder

    def launch(self) -> None:
        """Start the process unless it runs, without waiting until MIGraphX is loaded."""
        self._child.launch()

    def _spawn(self) -> Child:
        runtime = self.runtime
        arguments = (runtime.kind, str(runtime.library or runtime.path))
        try:
            environment = {**_MALLOC, **os.environ, **self.environment, "TMPDIR": self._temporary}
            environment["GLIBC_TUNABLES"] = _joined(_HUGE_PAGES, environment.get("GLIBC_TUNABLES"))
            module = "onnx_bridge.migraphx.gpu.server" if STUB in self.environment else "onnx_bridge.migraphx.server"
            return Child(module, arguments, command=runtime.command, environment=environment)
        except OSError as error:
            raise RuntimeFailure(f"the worker process cannot be started: {error}", where=str(runtime.path)) from error

    def start(self) -> dict[str, Any]:
        """Start the process unless it runs, and wait until MIGraphX is loaded; returns its version and features.

        Raises RuntimeFailure if the runtime cannot be loaded.
        """
        with self._child.lock:
            self.launch()
            if self._hello[0] != self.generation:
                try:
                    hello, _ = self._exchange("loading MIGraphX", {"do": "hello"}, {}, Limits(_START_SECONDS))
                    self._hello = self.generation, hello
                except RuntimeFailure as error:
                    self.close()
                    raise RuntimeFailure(
                        f"MIGraphX cannot be loaded: {error.what}",
                        where=str(self.runtime.path),
                        hint="`onnx-bridge runtime status` shows details",
                        output=error.output,
                    ) from error
            return self._hello[1]

    def limited(self, limits: Limits) -> contextlib.AbstractContextManager[Worker]:
        """Replace the limits of requests of this thread within the block."""
        return _Limited(self, limits)

    def parse_onnx(self, path: Path, options: OnnxOptions = OnnxOptions()) -> RemoteProgram:
        return self._parse(options, path=str(path.absolute()))

    def parse_onnx_buffer(self, data: bytes, options: OnnxOptions = OnnxOptions()) -> RemoteProgram:
        return self._parse(options, {"model": Tensor("uint8_type", np.frombuffer(data, np.uint8))})

    def _parse(self, options: OnnxOptions, tensors: Mapping[str, Tensor] | None = None, **fields: str) -> RemoteProgram:
        values = msgspec.to_builtins(options, enc_hook=lambda path: str(path.absolute()))
        return self._program({"do": "parse_onnx", "options": values, **fields}, tensors)

    def load(self, path: Path) -> RemoteProgram:
        return self._program({"do": "load", "path": str(path.absolute())})

    def has_target(self, name: str) -> bool:
        answer, _ = self.request("has_target", {"do": "has_target", "target": name})
        return bool(answer["value"])

    def request(
        self,
        doing: str,
        message: Mapping[str, Any],
        tensors: Mapping[str, Tensor] | None = None,
        *,
        generation: int | None = None,
    ) -> TensorMessage:
        """Carry out one request within `limits`.

        Args:
            doing: the name of the request in error messages.
            message: the request, as `onnx_bridge.migraphx.server` understands it.
            generation: `generation` of the process that must carry it out; default: any.

        Raises:
            ProgramLost: that process has ended.
            MigraphxError: MIGraphX rejected the request; the process is still usable.
            OutOfMemory, WorkerTimeout, WorkerCrashed: the process has ended, or was ended for exceeding a limit.
        """
        with self._child.lock:
            if generation is None:
                self.start()
            else:  # under the lock: in a process that another thread starts meanwhile, the number is another program's
                self._child.discard_ended()
                if self.pid is None or generation != self.generation:
                    what, hint = "the program was lost when MIGraphX's process ended", "parse or load it again"
                    raise ProgramLost(what, hint=hint)
            if self._dropped:
                dropped, self._dropped = self._dropped, []
                programs = [program for owner, program in dropped if owner == self.generation]
                self._exchange("drop", {"do": "drop", "programs": programs}, {}, self.limits)
            try:
                return self._exchange(doing, message, tensors or {}, self.limits)
            except RuntimeFailure as error:
                error.step = _STEPS.get(message["do"])
                raise

    def close(self) -> None:
        """End the process; the next request starts another."""
        self._child.close()

    def _program(self, request: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> RemoteProgram:
        with self._child.lock:  # so that the process is still the one that has it
            description, _ = self.request(request["do"], request, tensors)
            send = functools.partial(self.request, generation=self.generation)
            generation = self.generation  # the next request lets the process free what was dropped
            return RemoteProgram(send, lambda program: self._dropped.append((generation, program)), description)

    def _exchange(
        self, doing: str, message: Mapping[str, Any], tensors: Mapping[str, Tensor], limits: Limits
    ) -> TensorMessage:
        process = self._child.process
        assert process is not None
        try:
            reuse = message["do"] == "run"
            answer, outputs = unpack(*self._child.exchange(*pack(message, tensors), limits, reuse=reuse))
        except ChildFailure as failure:
            raise _failure(doing, limits, failure) from None
        if "error" not in answer:
            if self._on_output is not None:
                self._on_output(process.printed(None))
            return answer["ok"], outputs
        error, printed = answer["error"], answer["printed"]
        if error["out_of_memory"]:
            self.close()  # what it still holds is unknown
            raise _out_of_memory(doing, limits, printed)
        raise (NotEmulated if error["not_emulated"] else MigraphxError)(error["what"], output=printed)


class _Limited(contextlib.AbstractContextManager[Worker]):
    """`Worker.limited`, as a class: as a generator it takes longer than a small program runs."""

    def __init__(self, worker: Worker, limits: Limits) -> None:
        self._worker, self._limits = worker, limits

    def __enter__(self) -> Worker:
        self._before, self._worker._limited.limits = self._worker.limits, self._limits
        return self._worker

    def __exit__(self, *_: object) -> None:
        self._worker._limited.limits = self._before


_shared: dict[tuple[str, Path, tuple[tuple[str, str], ...]], Worker] = {}
_shared_lock = threading.Lock()
os.register_at_fork(after_in_child=_shared.clear)


def shared(runtime: Runtime, environment: Mapping[str, str] | None = None) -> Worker:
    """Return the worker of this process for a runtime and an environment; most requests take less than its start."""
    key = (runtime.identity, runtime.path, tuple(sorted((environment or {}).items())))
    with _shared_lock:
        if key not in _shared:
            _shared[key] = Worker(runtime, environment)
        return _shared[key]


def shared_with_heap_checks(runtime: Runtime) -> Worker:
    """Return a shared worker whose heap checks itself, if the glibc that it is loaded with can."""
    folders = _SYSTEM_LIBRARIES if runtime.loader is None else runtime.library_path
    checked = any((folder / _HEAP_CHECKER).is_file() for folder in folders)
    tunables = _joined(os.environ.get("GLIBC_TUNABLES"), "glibc.malloc.check=3")
    preload = _joined(os.environ.get("LD_PRELOAD"), _HEAP_CHECKER)
    return shared(runtime, {"GLIBC_TUNABLES": tunables, "LD_PRELOAD": preload} if checked else {})


def _joined(*entries: str | None) -> str:
    """Return a list in a variable of glibc's, of which the last entry for a name counts."""
    return ":".join(filter(None, entries))


def _failure(doing: str, limits: Limits, failure: ChildFailure) -> RuntimeFailure:
    """Return the error for a process that did not answer."""
    match failure.reason:
        case Reason.TIMEOUT:
            what = f"{doing} exceeded its time limit of {limits.timeout:g} s and was stopped"
            return WorkerTimeout(what, hint="give it more time with `timeout`", output=failure.output)
        case Reason.DIED if not PrintedError.parse(failure.output).out_of_memory:
            assert failure.returncode is not None
            return WorkerCrashed(doing, returncode=failure.returncode, output=failure.output)
        case _:
            return _out_of_memory(doing, limits, failure.output)


def _out_of_memory(doing: str, limits: Limits, output: str) -> OutOfMemory:
    most = limits.memory_of(0)
    limit = f"its limit of {most / 2**30:.3g} GiB" if most else "what the machine has"
    hint = "give it more with `memory`" if limits.memory else None
    return OutOfMemory(f"{doing} needs more memory than {limit}", hint=hint, output=output)
