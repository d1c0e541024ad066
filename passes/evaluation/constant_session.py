"""A session of ONNX Runtime that computes constants: in this process what is small, else in one with limits."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from passes.core.text import first_line
from passes.evaluation.saturation import without_saturation
from passes.graphs.limits import MAX_RANK
from passes.isolation import value_messages
from passes.isolation.failure import lacks_memory
from passes.isolation.messages import Array, Message

_RELEASED_ONLY = "ALLOW_RELEASED_ONNX_OPSET_ONLY"
_UNKNOWN_TO_NUMPY = re.compile("BFLOAT16|FLOAT8.*")


class EvaluationError(Exception):
    """ONNX Runtime could not compute a value; the message is its own, cleaned.

    It is ``unsupported`` if no operator of the kind is computed for these dtypes: there is no implementation, or it
    crashes.
    """

    def __init__(self, message: str, *, unsupported: bool = False) -> None:
        super().__init__(message)
        self.unsupported = unsupported


@contextlib.contextmanager
def unreleased_opsets() -> Iterator[None]:
    """Let ONNX Runtime accept opsets that it supports only provisionally, which exporters write."""
    before = os.environ.get(_RELEASED_ONLY)
    os.environ[_RELEASED_ONLY] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_RELEASED_ONLY]
        else:
            os.environ[_RELEASED_ONLY] = before


def open_session(model: bytes) -> Any:
    """Return a session of ONNX Runtime for a serialized model, with all optimizations off."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    with unreleased_opsets():
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def compute(model: bytes, outputs: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
    """Compute outputs with all optimizations off; strings are arrays of objects.

    Args:
        model: serialized.
        outputs: their names.
        feeds: the inputs by name, whose memory is shared.

    Raises:
        EvaluationError: a node fails, has no kernel, or is invalid, or an output is not a tensor.
    """
    import onnxruntime as ort
    from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NotImplementedByRuntime

    try:
        session = open_session(without_saturation(model))
        given = {
            name: ort.OrtValue.ortvalue_from_numpy_with_onnx_type(feed, int(ir.DataType.from_numpy(feed.dtype)))
            for name, feed in feeds.items()
        }
        computed = session.run_with_ort_values(list(outputs), given)
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        if lacks_memory(error):
            raise MemoryError from None
        raise EvaluationError(_clean(error), unsupported=isinstance(error, NotImplementedByRuntime)) from None
    return [_array(output) for output in computed]


def answer(request: dict[str, Any], arrays: dict[str, Array]) -> Message:
    """Answer a request of `passes.isolation.worker` by `compute`."""
    model = arrays.pop("model").tobytes()
    try:
        computed = compute(model, request["outputs"], arrays)
    except EvaluationError as error:
        return {"error": str(error), "unsupported": error.unsupported}, {}
    (entries,), outputs = value_messages.pack([dict(zip(request["outputs"], computed, strict=True))])
    return {"outputs": entries}, outputs


def _array(value: Any) -> Array:
    if not value.is_tensor():
        raise EvaluationError("its result is not a tensor")
    dtype, shape = ir.DataType(value.element_type()), value.shape()
    if len(shape) > MAX_RANK:
        raise EvaluationError(f"its result has {len(shape)} dimensions, and at most {MAX_RANK} are read")
    if dtype != ir.DataType.STRING and dtype.bitwidth < 8:
        raise EvaluationError(f"results of {dtype.name} cannot be read from ONNX Runtime")
    if not _UNKNOWN_TO_NUMPY.fullmatch(dtype.name):
        return np.asarray(value.numpy())
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()) if 0 not in shape else b""
    return np.frombuffer(raw, dtype.numpy()).reshape(shape)


def _clean(error: Exception) -> str:
    """Return ONNX Runtime's message, without its codes and source locations."""
    text = first_line(error)
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ", "", text)
    return re.sub(r"\S*/(onnxruntime|onnx)/\S+:\d+ ?", "", text)
