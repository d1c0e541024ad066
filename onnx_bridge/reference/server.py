"""The process of the reference: sessions of ONNX Runtime, and ONNX's own evaluator."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array
from onnx_bridge.model import io as models
from onnx_bridge.reference.evaluations import Values
from onnx_bridge.reference.onnxruntime_errors import OnnxRuntimeError
from onnx_bridge.reference.quark import library as quark_library
from onnx_bridge.reference.resized import resize
from onnx_bridge.reference.session import Session
from passes.graphs.byte_strings import from_proto
from passes.isolation import value_messages
from passes.isolation.messages import Message

_sessions: dict[int, Session] = {}
"""The sessions that `onnx_bridge.reference.reference.Reference` has opened, by number."""


@dataclass(frozen=True)
class _Received:
    """The elements of a weight, mapped from the file or the memory of the process that asks."""

    elements: Array

    def view(self) -> Array:
        return self.elements


def answer(request: dict[str, Any], arrays: Values) -> Message:
    """Answer a request; raises MemoryError if ONNX Runtime has none left."""
    actions: dict[str, Callable[[dict[str, Any], Values], Message]] = {
        "open": _open,
        "run": _run,
        "evaluate": _evaluate_samples,
        "run file": _run_file,
    }
    try:
        return actions[request["do"]](request, arrays)
    except OnnxRuntimeError as error:
        unknown = None if error.unknown is None else asdict(error.unknown)
        return {"error": {"message": error.message, "where": error.where, "unknown": unknown}}, {}
    except InputError as error:
        return {"error": {"what": error.what, "where": error.where, "hint": error.hint}}, {}


def _open(request: dict[str, Any], arrays: Values) -> Message:
    _drop(request)
    libraries = [Path(path) for path in request["libraries"]]
    quark = request.get("quark")
    if quark is not None and quark_library.load_torch():
        libraries.append(Path(quark))
    emulate = "quark" in request and (quark is None or Path(quark) not in libraries)
    model = Path(request["path"]) if "path" in request else arrays["model"].tobytes()
    if isinstance(model, bytes) and "weights" in request:
        weights = {
            name: models.Weight(_Received(arrays[f"weight {name}"]), ir.DataType(kind), tuple(shape))
            for name, (kind, shape) in request["weights"].items()
        }
        source: Path | bytes | models.SessionSource = models.SessionSource(model, weights)
    else:
        source = model
    session = Session(source, custom_op_libraries=libraries, where=request["where"], emulate=emulate)
    number = max(_sessions, default=0) + 1
    _sessions[number] = session
    types = {} if emulate else session.output_types()
    names = {"inputs": session.input_names, "outputs": session.output_names, "types": types}
    return {"session": number, "notes": session.notes, **names}, {}


def _run(request: dict[str, Any], arrays: Values) -> Message:
    _drop(request)
    (sample,) = value_messages.unpack([request["sample"]], arrays)
    (entries,), outputs = value_messages.pack([_sessions[request["session"]].run(sample)])
    return {"outputs": entries}, outputs


def _drop(request: dict[str, Any]) -> None:
    for process, number in request["drop"]:
        if process == os.getpid():
            del _sessions[number]


def _evaluate_samples(request: dict[str, Any], arrays: Values) -> Message:
    """Return what `onnx_bridge.reference.evaluations.run` asks for."""
    samples = [_writable(sample) for sample in value_messages.unpack(request["samples"], arrays)]
    evaluate = _evaluate_by_onnx if request["by_onnx"] else _evaluate
    computed = evaluate(arrays["model"].tobytes(), samples)
    entries, results = value_messages.pack([outputs or {} for outputs in computed])
    return {"samples": [entry or None for entry in entries]}, results


def _run_file(request: dict[str, Any], arrays: Values) -> Message:
    """Return what `onnx_bridge.reference.evaluations.run_file` asks for."""
    path, shapes = Path(request["path"]), request["shapes"]
    samples = value_messages.unpack(request["samples"], arrays)
    if request["by_onnx"]:
        try:
            evaluator = ReferenceEvaluator(str(path))
            computed = [_named(evaluator, list(evaluator.run(None, _writable(sample)))) for sample in samples]
        except MemoryError:
            raise
        except Exception as error:  # it raises whatever numpy and its own operators raise
            raise InputError(f"{type(error).__name__}: {error}") from error
    else:
        session = Session(resize(models.load(path), shapes) if shapes else path)
        computed = [session.run(sample) for sample in samples]
    entries, outputs = value_messages.pack(computed)
    return {"samples": entries}, outputs


def _named(evaluator: ReferenceEvaluator, outputs: Sequence[Any]) -> dict[str, Any]:
    return {
        name: list(map(np.asarray, output))
        if isinstance(output, list)
        else None
        if output is None
        else np.asarray(output)
        for name, output in zip(evaluator.output_names, outputs, strict=True)
    }


def _evaluate(model: bytes, samples: Sequence[Values]) -> list[Values | None]:
    """Evaluate with ONNX Runtime if it takes the model, or emulates its bfloat16, otherwise with ONNX's evaluator."""
    session = _session(model)
    if session is None:
        return _evaluate_by_onnx(model, samples)
    computed: list[Values | None] = []
    for sample in samples:
        try:
            computed.append(_numeric(session.run(sample)))
        except InputError:
            computed.append(None)
    return computed


def _session(model: bytes) -> Session | None:
    """Return a session of a model, which is changed only if ONNX Runtime refuses it; None if it refuses that, too."""
    for form in (lambda: model, lambda: from_proto(onnx.ModelProto.FromString(model))):
        with contextlib.suppress(InputError):
            return Session(form())
    return None


def _evaluate_by_onnx(model: bytes, samples: Sequence[Values]) -> list[Values | None]:
    computed: list[Values | None] = []
    try:
        proto = onnx.ModelProto.FromString(model)
        evaluator = ReferenceEvaluator(proto)
        for sample in samples:
            arrays = _numeric(dict(zip(evaluator.output_names, evaluator.run(None, dict(sample)), strict=True)))
            computed.append(None if arrays is None else _as_declared(arrays, proto))
    except MemoryError:
        raise
    except Exception:  # it raises whatever numpy and its own operators raise
        computed += [None] * (len(samples) - len(computed))
    return computed


def _as_declared(outputs: Values, model: onnx.ModelProto) -> Values:
    """Return the outputs in the dtypes that the model declares: numpy makes float64 of float32 and int64."""
    declared = {value.name: value.type.tensor_type.elem_type for value in model.graph.output}
    dtypes = {name: onnx.helper.tensor_dtype_to_np_dtype(kind) for name, kind in declared.items() if kind}
    return {
        name: array.astype(dtypes.get(name, array.dtype)) if array.dtype == np.float64 else array
        for name, array in outputs.items()
    }


def _numeric(outputs: Mapping[str, Any]) -> Values | None:
    """Return the outputs, if all of them are arrays of numbers; MIGraphX has no others to compare with."""
    arrays = {
        name: np.asarray(output) for name, output in outputs.items() if isinstance(output, np.ndarray | np.generic)
    }
    numeric = all(array.dtype.kind not in "OUST" for array in arrays.values())
    return arrays if arrays and numeric and len(arrays) == len(outputs) else None


def _writable(arrays: Mapping[str, Any]) -> Values:
    return {name: array.copy() for name, array in arrays.items()}
