"""The worker process: it holds MIGraphX, and answers one request after the other.

It imports numpy and nothing else that is heavy. MIGraphX prints its error messages to standard error, which is a memory
file of the parent's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from onnx_bridge.core.errors import NotEmulated
from onnx_bridge.migraphx.c_api import CLibrary, CProgram, StatusError
from onnx_bridge.migraphx.process.forked import run_in_forks
from onnx_bridge.migraphx.process.printed_error import PrintedError
from onnx_bridge.migraphx.process.protocol import TensorMessage, Tensors, pack, unpack
from onnx_bridge.migraphx.program import Library, OnnxOptions, Program, Tensor, reloaded
from onnx_bridge.migraphx.python_module import ModuleLibrary
from onnx_bridge.migraphx.rehearsal import pass_library
from passes.isolation.child import serve
from passes.isolation.messages import Array, Message

_MOST_FORKS = 4
"""The most forks at a time: each may take as much memory as the process may."""
_TASK_SECONDS = 0.01
"""The time of a probe beyond its estimate."""


class Server:
    """The programs that this process holds, by number; each method ``_do_<name>`` carries out requests of that name."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._programs: dict[int, Program] = {}
        self._next = 1

    def answer(self, request: Mapping[str, Any], tensors: Tensors) -> TensorMessage:
        action: Callable[[Mapping[str, Any], Tensors], TensorMessage] = getattr(self, f"_do_{request['do']}")
        return action(request, tensors)

    def _do_hello(self, _request: Mapping[str, Any], _tensors: Tensors) -> TensorMessage:
        return {"version": self._library.version, "features": sorted(self._library.features)}, {}

    def _do_has_target(self, request: Mapping[str, Any], _tensors: Tensors) -> TensorMessage:
        return {"value": self._library.has_target(request["target"])}, {}

    def _do_parse_onnx(self, request: Mapping[str, Any], tensors: Tensors) -> TensorMessage:
        options = msgspec.convert(request["options"], OnnxOptions, dec_hook=lambda _kind, path: Path(path))
        if "model" in tensors:
            return self._keep(self._library.parse_onnx_buffer(tensors["model"].data.tobytes(), options))
        return self._keep(self._library.parse_onnx(Path(request["path"]), options))

    def _do_load(self, request: Mapping[str, Any], _tensors: Tensors) -> TensorMessage:
        program = self._library.load(Path(request["path"]))
        _trim_heap()  # of what was read, as large as the program itself
        return self._keep(program)

    def _do_drop(self, request: Mapping[str, Any], _tensors: Tensors) -> TensorMessage:
        for number in request["programs"]:
            self._programs.pop(number, None)
        _trim_heap()
        return {}, {}

    def _do_compile(self, request: Mapping[str, Any], _tensors: Tensors) -> TensorMessage:
        program = self._programs[request["program"]]
        self._programs[request["program"]] = program = self._compiled(program, request["target"], request["options"])
        return _describe(program), {}

    def _compiled(self, program: Program, target: str, options: Mapping[str, bool]) -> Program:
        program.compile(target, **options)
        return program

    def _do_pass_groups(self, request: Mapping[str, Any], _tensors: Tensors) -> TensorMessage:
        return {"groups": pass_library.load(Path(request["library"])).groups}, {}

    def _do_gpu_passes(self, request: Mapping[str, Any], _tensors: Tensors) -> TensorMessage:
        program = self._programs[request["program"]]
        return {"operators": _run_gpu_passes(program, request), **_describe(program)}, {}

    def _run(self, program: Program, tensors: Tensors, *, copy: bool = True) -> list[Tensor]:
        return program.run(tensors, copy=copy)

    def _do_run(self, request: Mapping[str, Any], tensors: Tensors) -> TensorMessage:
        # the outputs are sent before the next request
        outputs = self._run(self._programs[request["program"]], tensors, copy=False)
        return {"coverage": {}}, {str(index): output for index, output in enumerate(outputs)}

    def _do_save(self, request: Mapping[str, Any], _tensors: Tensors) -> TensorMessage:
        self._programs[request["program"]].save(Path(request["path"]))
        _trim_heap()
        return {}, {}

    def _do_quantize(self, request: Mapping[str, Any], tensors: Tensors) -> TensorMessage:
        program = self._programs[request["program"]]
        samples: list[Tensors] = [{} for _ in range(request["samples"])]
        for key, tensor in tensors.items():
            index, name = key.split(":", 1)
            samples[int(index)][name] = tensor
        program.quantize(**request["arguments"], calibration=samples)
        return _describe(program), {}

    def _do_probe(self, request: Mapping[str, Any], tensors: Tensors) -> TensorMessage:
        """Probe small models in a few forks, or each in its own; those after one that ends its fork get no answer."""
        passes, target = request.get("passes"), request["target"]
        self._library.has_target(target)  # loaded once, not in every fork
        if passes is not None:
            pass_library.load(Path(passes["library"]))  # once, not in every fork
        tasks = []
        for index, probe in enumerate(request["probes"]):
            samples = [
                {name: tensors[f"{index}:{number}:{name}"] for name in names}
                for number, names in enumerate(probe["samples"])
            ]
            tasks.append(partial(self._probe, tensors[str(index)].data.tobytes(), probe, samples, passes, target))
        at_a_time = min(len(os.sched_getaffinity(0)), _MOST_FORKS)
        groups = [[index] for index in range(len(tasks))]
        if not request["alone"]:
            groups = _balanced(request["seconds"], at_a_time)
        answers: list[dict[str, Any] | None] = [None] * len(tasks)
        outputs: Tensors = {}
        results = run_in_forks([[tasks[index] for index in group] for group in groups], request["timeout"], at_a_time)
        for group, answered in zip(groups, results, strict=True):
            for index, (answer, arrays) in zip(group, answered, strict=False):
                answers[index] = answer
                outputs |= {f"{index}:{name}": tensor for name, tensor in arrays.items()}
        return {"answers": answers}, outputs

    def _probe(
        self,
        model: bytes,
        probe: Mapping[str, Any],
        samples: Sequence[Tensors],
        passes: Mapping[str, Any] | None,
        target: str,
    ) -> TensorMessage:
        """Parse a model, run passes of the gpu target if wanted, compile it, save and load it if wanted, and run it.

        Returns:
            The outputs' shapes after parsing, and the outputs as ``sample:output``; or the error.
        """

        def work() -> TensorMessage:
            program = self._library.parse_onnx_buffer(model, OnnxOptions(map_input_dims=probe["shapes"]))
            shapes = _describe(program)["outputs"]
            if passes is not None:
                _run_gpu_passes(program, passes)
            program = self._compiled(program, target, {})
            if probe["reload"]:
                program = reloaded(program, self._library)
            outputs = {
                f"{number}:{index}": output
                for number, sample in enumerate(samples)
                for index, output in enumerate(self._run(program, sample))
            }
            return {"outputs": shapes}, outputs

        os.ftruncate(2, 0)
        return _result_or_error(work)

    def _keep(self, program: Program) -> TensorMessage:
        number, self._next = self._next, self._next + 1
        self._programs[number] = program
        return {"program": number, **_describe(program)}, {}


def _balanced(seconds: Sequence[float], count: int) -> list[list[int]]:
    """Return the indices of tasks in at most ``count`` groups that take about as long each, in order."""
    groups: list[list[int]] = [[] for _ in range(count)]
    taken = [0.0] * count
    for index in sorted(range(len(seconds)), key=lambda index: -seconds[index]):
        least = taken.index(min(taken))
        groups[least].append(index)
        taken[least] += seconds[index] + _TASK_SECONDS
    return [sorted(group) for group in groups if group]


def _run_gpu_passes(program: Program, passes: Mapping[str, Any]) -> list[dict[str, Any]]:
    assert isinstance(program, CProgram)
    library = pass_library.load(Path(passes["library"]))
    return library.run(program, passes["count"], fast_math=passes.get("fast_math", True))


def _trim_heap() -> None:
    """Return freed memory to the system, which the allocator keeps otherwise (`worker._MALLOC`)."""
    ctypes.CDLL(None).malloc_trim(0)


def _describe(program: Program) -> dict[str, Any]:
    shapes = {"parameters": program.get_parameter_shapes(), "outputs": program.get_output_shapes()}
    return {name: msgspec.to_builtins(value) for name, value in shapes.items()}


def main(connection: socket.socket, kind: str, path: str, server_type: type[Server] = Server) -> None:
    """Load the library, and serve requests; a failure to load is the answer to the first, with which it is repeated."""
    server: Server | None = None

    def load() -> Server:
        return server_type(ModuleLibrary(Path(path)) if kind == "module" else CLibrary(Path(path)))

    with contextlib.suppress(Exception):
        server = load()

    def answer(message: dict[str, Any], arrays: dict[str, Array]) -> Message:
        def work() -> TensorMessage:
            nonlocal server
            server = server or load()
            return server.answer(*unpack(message, arrays))

        return pack(*_result_or_error(work))

    serve(connection, answer)


def _result_or_error(work: Callable[[], TensorMessage]) -> TensorMessage:
    """Return what ``work`` returns as ``ok``, or the error that it raises."""
    try:
        message, outputs = work()
        return {"ok": message}, outputs
    except Exception as error:
        sys.stdout.flush()
        ctypes.CDLL(None).fflush(None)
        printed = _printed()
        printed_error = PrintedError.parse(printed if isinstance(error, StatusError) else str(error))
        described = {
            "what": printed_error.text or str(error),
            "out_of_memory": isinstance(error, MemoryError) or printed_error.out_of_memory,
            "not_emulated": isinstance(error, NotEmulated),
        }
        return {"error": described, "printed": printed or str(error)}, {}


def _printed() -> str:
    size = os.fstat(2).st_size
    return os.pread(2, 64 << 10, max(0, size - (64 << 10))).decode(errors="replace")
