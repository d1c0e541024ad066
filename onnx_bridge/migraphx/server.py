"""The worker process: holds MIGraphX, answers one request after the other, and ends when its parent does.

It imports numpy and nothing else that is heavy. Standard output and standard error are one memory file that the
parent made: MIGraphX prints its error messages there, and what it printed last is there even after a crash.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from onnx_bridge.migraphx import wire
from onnx_bridge.migraphx.forks import in_fork
from onnx_bridge.migraphx.program import DynamicDimension, Library, OnnxOptions, Program, Shape, Tensor

_LOCATION = re.compile(r"\S+\.[ch]pp:\d+: (?:[\w~()]+: )?")
"""Source file, line and function, which MIGraphX puts in front of a message."""

Tensors = dict[str, Tensor]
Answer = tuple[dict[str, Any], Tensors]


class Server:
    """The programs that this process holds, by number, and the requests that it understands."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._programs: dict[int, Program] = {}
        self._next = 1

    def answer(self, request: Mapping[str, Any], tensors: Tensors) -> Answer:
        """Carry out one request."""
        action: Callable[[Mapping[str, Any], Tensors], Answer] = getattr(self, f"_do_{request['do']}")
        return action(request, tensors)

    def _do_hello(self, _request: Mapping[str, Any], _tensors: Tensors) -> Answer:
        return {"version": self._library.version, "features": sorted(self._library.features)}, {}

    def _do_has_target(self, request: Mapping[str, Any], _tensors: Tensors) -> Answer:
        return {"value": self._library.has_target(request["target"])}, {}

    def _do_parse_onnx(self, request: Mapping[str, Any], tensors: Tensors) -> Answer:
        options = _onnx_options(request["options"])
        if "model" in tensors:
            return self._keep(self._library.parse_onnx_buffer(tensors["model"].data.tobytes(), options))
        return self._keep(self._library.parse_onnx(Path(request["path"]), options))

    def _do_load(self, request: Mapping[str, Any], _tensors: Tensors) -> Answer:
        return self._keep(self._library.load(Path(request["path"])))

    def _do_drop(self, request: Mapping[str, Any], _tensors: Tensors) -> Answer:
        for number in request["programs"]:
            self._programs.pop(number, None)
        _give_back()
        return {}, {}

    def _do_compile(self, request: Mapping[str, Any], _tensors: Tensors) -> Answer:
        program = self._programs[request["program"]]
        program.compile(request["target"], **request["options"])
        return _describe(program), {}

    def _do_run(self, request: Mapping[str, Any], tensors: Tensors) -> Answer:
        outputs = self._programs[request["program"]].run(tensors)
        return {}, {str(index): output for index, output in enumerate(outputs)}

    def _do_save(self, request: Mapping[str, Any], _tensors: Tensors) -> Answer:
        self._programs[request["program"]].save(Path(request["path"]))
        _give_back()
        return {}, {}

    def _do_quantize(self, request: Mapping[str, Any], tensors: Tensors) -> Answer:
        program = self._programs[request["program"]]
        quantize = getattr(program, f"quantize_{request['precision']}")
        arguments: dict[str, Any] = {}
        if "target" in request:
            samples: list[Tensors] = [{} for _ in range(request["samples"])]
            for key, tensor in tensors.items():
                index, name = key.split(":", 1)
                samples[int(index)][name] = tensor
            arguments = {"target": request["target"], "calibration": samples}
        if request["ins_names"] is not None:
            arguments["ins_names"] = request["ins_names"]
        quantize(**arguments)
        return _describe(program), {}

    def _do_probe(self, request: Mapping[str, Any], tensors: Tensors) -> Answer:
        """Many small models in a fork, or each in its own; those after one that ends a common fork go unanswered."""
        work = []
        for index, (target, reload, empty, samples) in enumerate(request["probes"]):
            given = [
                {name: tensors[f"{index}:{sample}:{name}"] for name in names} for sample, names in enumerate(samples)
            ]
            options = OnnxOptions(map_input_dims=empty)
            work.append(partial(self._probe, tensors[str(index)].data.tobytes(), options, target, reload, given))
            if target is not None:
                self._library.has_target(target)  # loaded once, not in every fork
        groups = [[each] for each in work] if request["alone"] else [work]
        answers: list[dict[str, Any]] = []
        outputs: Tensors = {}
        for group in groups:
            for answer, found in in_fork(group, request["timeout"]):
                outputs |= {f"{len(answers)}:{name}": tensor for name, tensor in found.items()}
                answers.append({"printed": _printed(), **answer} if "died" in answer else answer)
        return {"answers": answers}, outputs

    def _probe(
        self, model: bytes, options: OnnxOptions, target: str | None, reload: bool, samples: Sequence[Tensors]
    ) -> Answer:
        """Parse a model, compile it if there is a target, perhaps save and load it, and run it on samples.

        Returns:
            The outputs' shapes after parsing, and the outputs as ``sample:output``; or the error.
        """

        def work() -> Answer:
            program = self._library.parse_onnx_buffer(model, options)
            shapes = _describe(program)["outputs"]
            if target is not None:
                program.compile(target)
                if reload:
                    program = self._reloaded(program)
            outputs = {
                f"{number}:{index}": output
                for number, sample in enumerate(samples)
                for index, output in enumerate(program.run(sample))
            }
            return {"outputs": shapes}, outputs

        os.ftruncate(2, 0)
        return _answered(work)

    def _reloaded(self, program: Program) -> Program:
        """A program as it comes back from its file."""
        file = os.memfd_create("program")
        try:
            path = Path(f"/proc/self/fd/{file}")
            program.save(path)
            return self._library.load(path)
        finally:
            os.close(file)

    def _keep(self, program: Program) -> Answer:
        number, self._next = self._next, self._next + 1
        self._programs[number] = program
        return {"program": number, **_describe(program)}, {}


def _give_back() -> None:
    """Return what was freed to the system; the allocator is told to keep it (`worker._MALLOC`)."""
    ctypes.CDLL(None).malloc_trim(0)


def _describe(program: Program) -> dict[str, Any]:
    return {
        "parameters": {name: _to_json(shape) for name, shape in program.get_parameter_shapes().items()},
        "outputs": [_to_json(shape) for shape in program.get_output_shapes()],
    }


def _to_json(shape: Shape) -> list[Any]:
    return [shape.type, shape.lens, shape.strides, [(each.min, each.max) for each in shape.dyn_dims]]


def _onnx_options(values: Mapping[str, Any]) -> OnnxOptions:
    options = dict(values)
    if options.get("default_dyn_dim_value"):
        options["default_dyn_dim_value"] = DynamicDimension(*options["default_dyn_dim_value"])
    options["map_dyn_input_dims"] = {
        name: [DynamicDimension(*each) for each in dims] for name, dims in options.get("map_dyn_input_dims", {}).items()
    }
    if options.get("external_data_path"):
        options["external_data_path"] = Path(options["external_data_path"])
    return OnnxOptions(**options)


def clean(text: str) -> str:
    """MIGraphX's message without the function, source file and line that it puts in front of it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("migraphx_") or "Error:" in line] or lines[-1:]
    if not errors:
        return ""
    message = re.sub(r"^migraphx_\w+: ", "", errors[-1])
    return _LOCATION.sub("", message.removeprefix("Error: ")).strip()


def _die_with_parent(lifeline: int, parent: int) -> None:
    """End this process once the other end of ``lifeline``, which only the parent holds, is closed.

    The kernel does it (SIGIO, whose default action ends a process), so that it works in the middle of a long call
    that holds the interpreter's lock. A fork of the parent may hold the end open too: a thread watches for that.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)

    def watch() -> None:
        pause = threading.Event()
        while os.getppid() == parent:
            pause.wait(1.0)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _load_library(kind: str, path: Path) -> Library:
    if kind == "module":
        from onnx_bridge.migraphx.python_module import ModuleLibrary

        return ModuleLibrary(path)
    from onnx_bridge.migraphx.c_api import CLibrary

    return CLibrary(path)


def main(connection_fd: int, lifeline: int, parent: int, kind: str, path: str) -> None:
    """Serve requests from the socket ``connection_fd`` until the parent closes it."""
    _die_with_parent(lifeline, parent)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection = socket.socket(fileno=connection_fd)
    server: Server | None = None
    while True:
        try:
            request, tensors = wire.receive(connection)
        except EOFError:
            return
        os.ftruncate(2, 0)

        def work(request: Mapping[str, Any] = request, tensors: Tensors = tensors) -> Answer:
            nonlocal server
            if server is None:
                server = Server(_load_library(kind, Path(path)))
            return server.answer(request, tensors)

        answer, outputs = _answered(work)
        wire.send(connection, answer, outputs)
        del request, tensors, outputs, work


def _answered(work: Callable[[], Answer]) -> Answer:
    """What ``work`` returns as ``ok``, or the error that it raises."""
    try:
        message, outputs = work()
        return {"ok": message}, outputs
    except Exception as error:
        sys.stdout.flush()
        ctypes.CDLL(None).fflush(None)
        return {"error": _describe_error(error), "printed": _printed() or str(error)}, {}


def _describe_error(error: Exception) -> dict[str, str]:
    kind = type(error).__name__
    said = _printed() if kind == "StatusError" else str(error)
    memory = isinstance(error, MemoryError) or "std::bad_alloc" in said
    return {"kind": kind, "what": clean(said) or str(error), "memory": "yes" if memory else ""}


def _printed() -> str:
    size = os.fstat(2).st_size
    return os.pread(2, 64 << 10, max(0, size - (64 << 10))).decode(errors="replace")
