"""The types that ONNX Runtime infers for the outputs of a model, for `passes.isolation.worker`."""

from __future__ import annotations

from typing import Any

from passes.evaluation.constant_session import open_session
from passes.isolation.failure import lacks_memory
from passes.isolation.messages import Array, Message


def answer(_request: dict[str, Any], arrays: dict[str, Array]) -> Message:
    """Return the name, the type and the shape of each output; nothing where ONNX Runtime rejects the model."""
    try:
        session = open_session(arrays["model"].tobytes())
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        if lacks_memory(error):
            raise MemoryError from None
        return {"outputs": []}, {}
    return {"outputs": [[output.name, output.type, list(output.shape or ())] for output in session.get_outputs()]}, {}
