"""What runs in the process of a `ReferenceWorker`: ONNX Runtime and ONNX's own evaluator."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from onnx_bridge.core.errors import InputError
from onnx_bridge.model import io as models
from onnx_bridge.model.resized import resize
from onnx_bridge.reference.reference import Reference
from onnx_bridge.verdicts.reference_worker import Values, flatten, nest
from passes.core.byte_strings import from_proto
from passes.core.isolation import value_messages
from passes.core.isolation.child import serve
from passes.core.isolation.messages import Message


def main(connection: socket.socket) -> None:
    """Answer requests."""

    def answer(request: dict[str, Any], arrays: Values) -> Message:
        if "path" in request:
            return _run_file(request, arrays)
        samples = [_writable(sample or {}) for sample in nest(arrays, request["samples"])]
        evaluate = _evaluate_by_onnx if request["by_onnx"] else _evaluate
        found = evaluate(arrays["model"].tobytes(), samples)
        names = [None if outputs is None else list(outputs) for outputs in found]
        return {"samples": names}, flatten([outputs or {} for outputs in found])

    serve(connection, answer)


def _run_file(request: dict[str, Any], arrays: Values) -> Message:
    """What `ReferenceWorker.run_file` asks for."""
    path, shapes = Path(request["path"]), request["shapes"]
    samples = value_messages.unpack(request["samples"], arrays)
    try:
        if request["by_onnx"]:
            evaluator = ReferenceEvaluator(str(path))
            found = [_named(evaluator, list(evaluator.run(None, _writable(sample)))) for sample in samples]
        else:
            reference = Reference(resize(models.load(path), shapes) if shapes else path)
            found = [reference.run(sample) for sample in samples]
    except InputError as error:
        return {"error": error.what}, {}
    except Exception as error:  # the evaluator raises whatever numpy and its own operators raise
        return {"error": f"{type(error).__name__}: {error}"}, {}
    entries, outputs = value_messages.pack(found)
    return {"samples": entries}, outputs


def _named(evaluator: ReferenceEvaluator, outputs: Sequence[Any]) -> dict[str, Any]:
    return {
        name: list(map(np.asarray, each)) if isinstance(each, list) else None if each is None else np.asarray(each)
        for name, each in zip(evaluator.output_names, outputs, strict=True)
    }


def _evaluate(model: bytes, samples: Sequence[Values]) -> list[Values | None]:
    """By ONNX Runtime where it takes the model, or emulates its bfloat16, else by ONNX's evaluator."""
    reference = _reference(model)
    if reference is None:
        return _evaluate_by_onnx(model, samples)
    found: list[Values | None] = []
    for sample in samples:
        try:
            found.append(_numeric(reference.run(sample)))
        except InputError:
            found.append(None)
    return found


def _reference(model: bytes) -> Reference | None:
    """ONNX Runtime with a model, which is changed only if it does not take it; None if it does not take that either."""
    for form in (lambda: model, lambda: from_proto(onnx.ModelProto.FromString(model))):
        with contextlib.suppress(InputError):
            return Reference(form())
    return None


def _evaluate_by_onnx(model: bytes, samples: Sequence[Values]) -> list[Values | None]:
    found: list[Values | None] = []
    try:
        proto = onnx.ModelProto.FromString(model)
        evaluator = ReferenceEvaluator(proto)
        for sample in samples:
            arrays = _numeric(dict(zip(evaluator.output_names, evaluator.run(None, dict(sample)), strict=True)))
            found.append(None if arrays is None else _as_declared(arrays, proto))
    except Exception:  # it raises whatever numpy and its own operators raise
        found += [None] * (len(samples) - len(found))
    return found


def _as_declared(outputs: Values, model: onnx.ModelProto) -> Values:
    """The outputs in the dtypes that the model declares: numpy makes float64 of float32 and int64."""
    declared = {value.name: value.type.tensor_type.elem_type for value in model.graph.output}
    dtypes = {name: onnx.helper.tensor_dtype_to_np_dtype(kind) for name, kind in declared.items() if kind}
    return {
        name: array.astype(dtypes.get(name, array.dtype)) if array.dtype == np.float64 else array
        for name, array in outputs.items()
    }


def _numeric(outputs: Mapping[str, Any]) -> Values | None:
    """The outputs, if all of them are arrays of numbers; MIGraphX has no others to compare with."""
    arrays = {name: np.asarray(each) for name, each in outputs.items() if isinstance(each, np.ndarray | np.generic)}
    numeric = all(array.dtype.kind not in "OUST" for array in arrays.values())
    return arrays if arrays and numeric and len(arrays) == len(outputs) else None


def _writable(arrays: Mapping[str, Any]) -> Values:
    return {name: array.copy() for name, array in arrays.items()}
