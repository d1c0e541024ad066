"""MIGraphX in a process of its own: what it does there cannot end, hang or bloat the process that asked.

A `Worker` has the face of `program.Library`; its programs are `RemoteProgram`. A request that ends the process becomes
a typed error (`WorkerCrashed`, `WorkerTimeout`, `OutOfMemory`), and the next request gets a fresh process.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import fcntl
import os
import resource
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx_bridge.core.errors import (
    MigraphxError,
    OutOfMemory,
    ProgramLost,
    RuntimeFailure,
    Step,
    WorkerCrashed,
    WorkerTimeout,
)
from onnx_bridge.migraphx import wire
from onnx_bridge.migraphx.limits import Limits
from onnx_bridge.migraphx.program import DynamicDimension, OnnxOptions, Shape, Tensor
from onnx_bridge.migraphx.runtime import Runtime

_STEPS = {"parse_onnx": Step.PARSE, **{step.value: step for step in Step if step is not Step.PARSE}}
"""Which step a request of the protocol is."""
_START_SECONDS = 60.0
_WATCH_SECONDS = 0.1
_OUTPUT_BYTES = 64 << 10
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 40)}
"""Saving grows a buffer to the size of the program. With large buffers on the heap, and not mapped one by one as glibc
does by default, saving 430 MB takes about a second less; memory peaks some 8 % higher."""
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_BOOT = "import sys; sys.path.insert(0, {root!r}); from onnx_bridge.migraphx import server; server.main{arguments!r}"


class Worker:
    """One worker process at a time, started when the first request needs it; safe to use from several threads.

    Args:
        runtime: the MIGraphX that it loads.
        environment: variables that MIGraphX reads, on top of the parent's own; it reads them once, which is why they
            belong to the worker and not to a request.
        limits: of each request (`limited` gives others for a while).
        told: given all that the process printed, after each request that it answered.
    """

    def __init__(
        self,
        runtime: Runtime,
        environment: Mapping[str, str] | None = None,
        limits: Limits = Limits(),
        told: Callable[[str], object] | None = None,
    ) -> None:
        self.runtime = runtime
        self.environment = dict(environment or {})
        self._limits = limits
        self._told = told
        self._limited = threading.local()
        self.generation = 0
        self._process: _Process | None = None
        self._hello: dict[str, Any] = {}
        self._dropped: list[tuple[int, int]] = []
        self._lock = threading.RLock()

    @property
    def pid(self) -> int | None:
        """The process's id while it lives."""
        return self._process.pid if self._process else None

    @property
    def limits(self) -> Limits:
        """Those of the requests of this thread."""
        return getattr(self._limited, "limits", self._limits)

    @property
    def version(self) -> str:
        """MIGraphX's version."""
        return str(self.start()["version"])

    @property
    def features(self) -> frozenset[str]:
        """What this build can do beyond the common API."""
        return frozenset(self.start()["features"])

    def launch(self) -> None:
        """Start the process unless it runs, without waiting until it is ready: it loads MIGraphX meanwhile."""
        with self._lock:
            self._bury()
            if self._process is None:
                self._process = _Process(self.runtime, self.environment)
                self._hello = {}
                self.generation += 1

    def start(self) -> dict[str, Any]:
        """Make sure that the process runs and is ready; returns its version and features.

        Raises:
            RuntimeFailure: the runtime cannot be loaded.
        """
        with self._lock:
            self.launch()
            if not self._hello:
                try:
                    self._hello = self._exchange("loading MIGraphX", {"do": "hello"}, {}, Limits(_START_SECONDS))[0]
                except RuntimeFailure as error:
                    self.close()
                    raise RuntimeFailure(
                        f"MIGraphX cannot be loaded: {error.what}",
                        where=str(self.runtime.path),
                        hint="`onnx-bridge runtime doctor` says more",
                        output=error.output,
                    ) from error
            return self._hello

    @contextlib.contextmanager
    def limited(self, limits: Limits) -> Iterator[Worker]:
        """Use other limits for the requests that this thread makes inside the block."""
        before, self._limited.limits = self.limits, limits
        try:
            yield self
        finally:
            self._limited.limits = before

    def parse_onnx(self, path: Path, options: OnnxOptions = OnnxOptions()) -> RemoteProgram:
        """Parse an ONNX file."""
        request = {"do": "parse_onnx", "path": str(path.absolute()), "options": _to_json(options)}
        return self._program(request)

    def parse_onnx_buffer(self, data: bytes, options: OnnxOptions = OnnxOptions()) -> RemoteProgram:
        """Parse an ONNX model from memory."""
        import numpy as np

        model = Tensor("uint8_type", np.frombuffer(data, np.uint8))
        request = {"do": "parse_onnx", "options": _to_json(options)}
        return self._program(request, {"model": model})

    def load(self, path: Path) -> RemoteProgram:
        """Read a saved program (``.mxr``)."""
        return self._program({"do": "load", "path": str(path.absolute())})

    def has_target(self, name: str) -> bool:
        """Whether this build can load the target's library."""
        answer, _ = self.request("has_target", {"do": "has_target", "target": name})
        return bool(answer["value"])

    def request(
        self,
        doing: str,
        message: Mapping[str, Any],
        tensors: Mapping[str, Tensor] | None = None,
        *,
        generation: int | None = None,
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Have one request carried out within `limits`.

        Args:
            doing: what it is, for error messages.
            message: the request, as ``server.py`` knows it.
            tensors: what travels with it.
            generation: the process that it is for, by `generation`, where no other will do.

        Raises:
            ProgramLost: that process is gone.
            MigraphxError: MIGraphX refused, in its own words; the process lives on.
            OutOfMemory, WorkerTimeout, WorkerCrashed: the process is gone, or it ran into its memory limit.
        """
        with self._lock:
            self._bury()
            # under the lock: in a process that another thread starts meanwhile, the number means another program
            if generation is not None and (self.pid is None or generation != self.generation):
                raise ProgramLost("the program was lost when MIGraphX's process ended", hint="parse or load it again")
            self.start()
            if self._dropped:
                dropped, self._dropped = self._dropped, []
                programs = [program for owner, program in dropped if owner == self.generation]
                self._exchange("drop", {"do": "drop", "programs": programs}, {}, self.limits)
            try:
                return self._exchange(doing, message, tensors or {}, self.limits)
            except RuntimeFailure as error:
                error.step = _STEPS.get(message["do"])
                raise

    def forget(self, program: int, generation: int) -> None:
        """Let the process free a program; done with the next request."""
        self._dropped.append((generation, program))

    def _bury(self) -> None:
        """Forget a process that ended while it had nothing to do: no request is to blame for that, or to suffer."""
        if self._process is not None and self._process.ended:
            self.close()

    def close(self) -> None:
        """End the process; the next request starts another."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process = None

    def _program(self, request: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> RemoteProgram:
        with self._lock:  # so that the process is still the one that has it
            return RemoteProgram(self, self.request(request["do"], request, tensors)[0])

    def _exchange(
        self, doing: str, message: Mapping[str, Any], tensors: Mapping[str, Tensor], limits: Limits
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        assert self._process is not None
        process = self._process
        try:
            answer, outputs = process.exchange(doing, message, tensors, limits)
        except BaseException:  # also Ctrl-C: what the process is in the middle of, nobody would take any more
            self.close()
            raise
        if "error" not in answer:
            if self._told is not None:
                self._told(process.printed(None))
            return answer["ok"], outputs
        error, printed = answer["error"], answer["printed"]
        if error["memory"]:
            self.close()  # what it still holds is unknown
            raise _out_of_memory(doing, limits, printed)
        raise MigraphxError(error["what"], output=printed)


class RemoteProgram:
    """A program that lives in a worker; implements `program.Program`.

    It is lost when the worker's process ends: every use after that raises `ProgramLost`.
    """

    def __init__(self, worker: Worker, description: Mapping[str, Any]) -> None:
        self._worker = worker
        self._number = int(description["program"])
        self._generation = worker.generation
        self._describe(description)
        weakref.finalize(self, worker.forget, self._number, self._generation)

    def get_parameter_names(self) -> list[str]:
        """The names of the inputs."""
        return list(self._parameters)

    def get_parameter_shapes(self) -> dict[str, Shape]:
        """The inputs' shapes by name."""
        return dict(self._parameters)

    def get_output_shapes(self) -> list[Shape]:
        """The outputs' shapes in the model's order."""
        return list(self._outputs)

    def compile(
        self, target: str, *, offload_copy: bool = True, fast_math: bool = True, exhaustive_tune: bool = False
    ) -> None:
        """Compile for ``target``."""
        options = {"offload_copy": offload_copy, "fast_math": fast_math, "exhaustive_tune": exhaustive_tune}
        self._describe(self._request("compile", target=target, options=options)[0])

    def run(self, parameters: Mapping[str, Tensor]) -> list[Tensor]:
        """Run the compiled program."""
        _, outputs = self._request("run", parameters)
        return [outputs[str(index)] for index in range(len(outputs))]

    def save(self, path: Path) -> None:
        """Write the program as msgpack."""
        self._request("save", path=str(path.absolute()))

    def quantize_fp16(self, ins_names: Sequence[str] = ("all",)) -> None:
        """Convert the named operators to float16."""
        self._quantize("fp16", ins_names)

    def quantize_bf16(self, ins_names: Sequence[str] = ("all",)) -> None:
        """Convert the named operators to bfloat16."""
        self._quantize("bf16", ins_names)

    def quantize_int8(
        self, target: str, calibration: Sequence[Mapping[str, Tensor]], ins_names: Sequence[str] = ()
    ) -> None:
        """Quantize to int8 with ranges measured on ``calibration``."""
        self._quantize("int8", ins_names, target, calibration)

    def quantize_fp8(self, target: str, calibration: Sequence[Mapping[str, Tensor]]) -> None:
        """Quantize to fp8 with ranges measured on ``calibration``."""
        self._quantize("fp8", None, target, calibration)

    def _quantize(
        self,
        precision: str,
        ins_names: Sequence[str] | None,
        target: str | None = None,
        calibration: Sequence[Mapping[str, Tensor]] = (),
    ) -> None:
        names = None if ins_names is None else list(ins_names)
        message: dict[str, Any] = {"precision": precision, "ins_names": names}
        if target is not None:
            message |= {"target": target, "samples": len(calibration)}
        tensors = {
            f"{index}:{name}": tensor for index, sample in enumerate(calibration) for name, tensor in sample.items()
        }
        self._describe(self._request("quantize", tensors, **message)[0])

    def _request(
        self, do: str, tensors: Mapping[str, Tensor] | None = None, **message: Any
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        request = {"do": do, "program": self._number, **message}
        return self._worker.request(do, request, tensors, generation=self._generation)

    def _describe(self, description: Mapping[str, Any]) -> None:
        self._parameters = {name: _shape(value) for name, value in description["parameters"].items()}
        self._outputs = [_shape(value) for value in description["outputs"]]


class _Process:
    """The operating system's side of a worker: sockets, limits, output, death."""

    def __init__(self, runtime: Runtime, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe2(os.O_CLOEXEC)
        self._output = os.memfd_create("onnx-bridge-output", os.MFD_CLOEXEC)
        fcntl.fcntl(self._output, fcntl.F_SETFL, os.O_APPEND)  # or writes after a truncation would leave a hole
        self._connection = ours
        library = str(runtime.library or runtime.path)
        arguments = (theirs.fileno(), lifeline, os.getpid(), runtime.kind, library)
        code = _BOOT.format(root=str(_PACKAGE_ROOT), arguments=arguments)
        try:
            self._popen = subprocess.Popen(
                runtime.command(Path(sys.executable), ["-P", "-c", code]),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(theirs.fileno(), lifeline),
                env={**_MALLOC, **os.environ, **environment},
                start_new_session=True,  # the terminal's Ctrl-C is ours to handle, not the worker's
            )
        except OSError as error:
            self._close()
            raise RuntimeFailure(f"MIGraphX's process cannot be started: {error}", where=str(runtime.path)) from error
        finally:
            theirs.close()
            os.close(lifeline)
        self._data_limit: int | None = None
        _living.add(self)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def ended(self) -> bool:
        return self._popen.poll() is not None

    def exchange(
        self, doing: str, message: Mapping[str, Any], tensors: Mapping[str, Tensor], limits: Limits
    ) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Send a request, wait for its answer within the limits."""
        started = time.monotonic()
        try:
            self._limit_memory(limits.memory)
            wire.send(self._connection, message, tensors)
            self._wait(doing, limits, started)
            return wire.receive(self._connection)
        except (EOFError, ConnectionError, ProcessLookupError):
            raise self._obituary(doing, limits) from None

    def kill(self) -> None:
        """End the process, whatever it is doing."""
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait()
        self._close()
        _living.discard(self)

    def _close(self) -> None:
        self._connection.close()
        for descriptor in (self._lifeline, self._output):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _limit_memory(self, limit: int | None) -> None:
        """Set the soft limit of private memory, which gives MIGraphX a clean std::bad_alloc."""
        if limit != self._data_limit:
            soft = resource.RLIM_INFINITY if limit is None else limit
            _, hard = resource.prlimit(self.pid, resource.RLIMIT_DATA)
            resource.prlimit(self.pid, resource.RLIMIT_DATA, (soft, hard))
            self._data_limit = limit

    def _wait(self, doing: str, limits: Limits, started: float) -> None:
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        while True:
            pause = _WATCH_SECONDS if limits.memory is not None else 60.0
            if limits.timeout is not None:
                pause = min(pause, started + limits.timeout - time.monotonic())
                if pause <= 0:
                    output = self.printed()
                    self.kill()
                    raise WorkerTimeout(
                        f"{doing} took longer than its limit of {limits.timeout:g} s and was stopped",
                        hint="give it more time with --timeout",
                        output=output,
                    )
            if poll.poll(max(0.0, pause) * 1000):
                return
            if limits.memory is not None and self._anonymous_memory() > limits.memory:
                output = self.printed()
                self.kill()
                raise _out_of_memory(doing, limits, output)

    def _anonymous_memory(self) -> int:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) << 10
        return 0

    def _obituary(self, doing: str, limits: Limits) -> RuntimeFailure:
        try:
            returncode = self._popen.wait(5)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            returncode = self._popen.wait()
        output = self.printed()
        if "bad_alloc" in output:
            return _out_of_memory(doing, limits, output)
        return WorkerCrashed(doing, returncode=returncode, output=output)

    def printed(self, most: int | None = _OUTPUT_BYTES) -> str:
        """The last bytes that it printed since its last request; all of them for None."""
        size = os.fstat(self._output).st_size
        count = size if most is None else most
        return os.pread(self._output, count, max(0, size - count)).decode(errors="replace")


_living: set[_Process] = set()


@atexit.register
def _kill_all() -> None:
    for process in list(_living):
        process.kill()


def _forked() -> None:
    """A fork of this process must neither use, nor kill, nor (by its copy of the lifeline) keep alive its workers."""
    for process in _living:
        process._close()
    _living.clear()
    _shared.clear()


os.register_at_fork(after_in_child=_forked)

_shared: dict[tuple[str, tuple[tuple[str, str], ...]], Worker] = {}
_shared_lock = threading.Lock()


def shared(runtime: Runtime, environment: Mapping[str, str] | None = None) -> Worker:
    """The worker of this process for a runtime and an environment: starting one takes longer than most requests."""
    key = (runtime.identity, tuple(sorted((environment or {}).items())))
    with _shared_lock:
        if key not in _shared:
            _shared[key] = Worker(runtime, environment)
        return _shared[key]


def _out_of_memory(doing: str, limits: Limits, output: str) -> OutOfMemory:
    limit = f"its limit of {limits.memory / 2**30:.3g} GiB" if limits.memory else "what the machine has"
    hint = "give it more with --memory" if limits.memory else None
    return OutOfMemory(f"{doing} needs more memory than {limit}", hint=hint, output=output)


def _shape(value: Sequence[Any]) -> Shape:
    type_name, lens, strides, ranges = value
    return Shape(type_name, tuple(lens), tuple(strides), tuple(DynamicDimension(*each) for each in ranges))


def _to_json(options: OnnxOptions) -> dict[str, Any]:
    """The options that are set, as JSON values."""
    values = dataclasses.asdict(options)
    if options.default_dyn_dim_value:
        values["default_dyn_dim_value"] = dataclasses.astuple(options.default_dyn_dim_value)
    values["map_input_dims"] = {name: list(dims) for name, dims in options.map_input_dims.items()}
    values["map_dyn_input_dims"] = {
        name: [dataclasses.astuple(each) for each in dims] for name, dims in options.map_dyn_input_dims.items()
    }
    if options.external_data_path:
        values["external_data_path"] = str(options.external_data_path.absolute())
    return {name: value for name, value in values.items() if value not in (None, {})}
