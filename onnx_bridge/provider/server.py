"""The process of the provider: sessions of ONNX Runtime, in an environment that has only numpy and onnxruntime.

Without a GPU, the stub of HIP and the shim are loaded first, by path: the dynamic loader then takes them for the
libraries that the provider asks for by name.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from passes.isolation import value_messages
from passes.isolation.failure import lacks_memory
from passes.isolation.messages import Array, Message

_NAME = "MIGraphXExecutionProvider"
_PLAIN = re.compile(r"(optional\()?(seq\()?tensor\((float|double|float16|u?int(8|16|32|64)|bool|string)\)*")
"""The types that ONNX Runtime converts to numpy arrays correctly."""


class _Calls:
    """The calls of MIGraphX's C library that the shim has logged since the last look; none without the shim."""

    def __init__(self) -> None:
        self._log = os.memfd_create("calls")
        self._read = 0
        os.environ["STANDIN_LOG"] = f"/proc/self/fd/{self._log}"

    def new(self) -> list[dict[str, Any]]:
        text = os.pread(self._log, os.fstat(self._log).st_size - self._read, self._read)
        self._read += len(text)
        return [json.loads(line) for line in text.splitlines()]


_calls = _Calls()
if "STANDIN_SHIM" in os.environ:
    ctypes.CDLL(os.environ["STANDIN_STUB"], mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(os.environ["STANDIN_REAL"], mode=os.RTLD_LOCAL | os.RTLD_NOW)
    ctypes.CDLL(os.environ["STANDIN_SHIM"], mode=ctypes.RTLD_GLOBAL)

import onnxruntime  # noqa: E402 (after the libraries that it must find)

_sessions: dict[int, Any] = {}
"""Sessions by number."""


def answer(request: dict[str, Any], arrays: dict[str, Array]) -> Message:
    """Answer a request; every answer has the calls of MIGraphX that it took."""
    for process, number in request["drop"]:
        if process == os.getpid():
            _sessions.pop(number, None)
    actions: dict[str, Callable[[dict[str, Any], dict[str, Array]], Message]] = {
        "hello": _hello,
        "open": _open,
        "run": _run,
    }
    wanted = {name for name, _ in request.get("providers", [(_NAME, {})])}
    if not wanted.issubset(onnxruntime.get_available_providers()):
        return {"lacking": onnxruntime.__version__}, {}
    try:
        message, results = actions[request["do"]](request, arrays)
    except Exception as error:  # ONNX Runtime raises its own classes, RuntimeError and ValueError
        if lacks_memory(error):
            raise MemoryError from error
        message, results = {"error": str(error)}, {}
    return {**message, "calls": _calls.new()}, results


def _hello(_request: dict[str, Any], _arrays: dict[str, Array]) -> Message:
    return {"version": onnxruntime.__version__}, {}


def _open(request: dict[str, Any], arrays: dict[str, Array]) -> Message:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel(request["optimization"])
    options.log_severity_level = request["severity"]
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    for name, value in request["entries"].items():
        options.add_session_config_entry(name, value)
    for name, size in request["dims"].items():
        options.add_free_dimension_override_by_name(name, size)
    model = arrays["model"].tobytes() if "model" in arrays else request["path"]
    providers = [(name, chosen) for name, chosen in request["providers"]]
    # with the fallback, an option that the provider does not know would give a session on the CPU
    session = onnxruntime.InferenceSession(model, options, providers=providers, enable_fallback=0)
    number = max(_sessions, default=0) + 1
    _sessions[number] = session
    assigned = [
        [part.ep_name, [[node.name, node.domain, node.op_type] for node in part.get_nodes()]]
        for part in session.get_provider_graph_assignment_info()
    ]
    described = {
        kind: [[value.name, value.type, list(value.shape or ())] for value in values]
        for kind, values in (("inputs", session.get_inputs()), ("outputs", session.get_outputs()))
    }
    return {"session": number, "assigned": assigned, **described}, {}


def _run(request: dict[str, Any], arrays: dict[str, Array]) -> Message:
    session, kinds = _sessions[request["session"]], request["kinds"]
    (sample,) = value_messages.unpack([request["sample"]], arrays)
    feeds = {name: _feed(value, kinds.get(name)) for name, value in sample.items()}
    outputs = session.get_outputs()
    elements: dict[str, Any] = {}
    if all(_PLAIN.fullmatch(output.type) for output in outputs):
        results = session.run(None, feeds)
    else:
        results = session.run_with_ort_values(None, {name: _ort_value(feed) for name, feed in feeds.items()})
        for output, value in zip(outputs, results, strict=True):
            if not _PLAIN.fullmatch(value.data_type()):
                elements[output.name] = [value.element_type(), value.shape()]
        results = [_array(value) for value in results]
    named = {output.name: result for output, result in zip(outputs, results, strict=True)}
    (entries,), packed = value_messages.pack([named])
    return {"outputs": entries, "elements": elements}, packed


def _feed(value: Any, kind: list[Any] | None) -> Any:
    """Return a value as a session takes it; ``kind`` is the element type and shape of one that came as bytes."""
    if kind is None:
        return value
    element, shape = kind
    tensor = onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, element)
    ctypes.memmove(tensor.data_ptr(), value.ctypes.data, value.nbytes)
    return tensor


def _ort_value(feed: Any) -> Any:
    return feed if isinstance(feed, onnxruntime.OrtValue) else onnxruntime.OrtValue.ortvalue_from_numpy(feed)


def _array(value: Any) -> Array:
    """Return an output; of a type that numpy does not know, its bytes."""
    if _PLAIN.fullmatch(value.data_type()):
        return np.asarray(value.numpy())
    return np.frombuffer(ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()), np.uint8)
