"""The types that ONNX Runtime infers for the outputs of a model, for `passes.isolation.worker`."""

from __future__ import annotations

import re
from typing import Any

import onnxruntime as ort

from passes.evaluation.constant_session import unreleased_opsets
from passes.isolation.failure import NO_MEMORY
from passes.isolation.messages import Array, Message


def answer(_request: dict[str, Any], arrays: dict[str, Array]) -> Message:
    """Return the name, the type and the shape of each output; nothing where ONNX Runtime rejects the model."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        with unreleased_opsets():
            session = ort.InferenceSession(arrays["model"].tobytes(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        if re.search(NO_MEMORY, str(error)):
            raise MemoryError from None
        return {"outputs": []}, {}
    return {"outputs": [[output.name, output.type, list(output.shape or ())] for output in session.get_outputs()]}, {}
