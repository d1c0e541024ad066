"""ONNX's inference of large models, for `passes.core.isolation.worker`."""

from __future__ import annotations

from typing import Any

import onnx

from passes.core import onnx_inference
from passes.core.isolation import value_messages
from passes.core.isolation.messages import Array, Message


def answer(request: dict[str, Any], arrays: dict[str, Array]) -> Message:
    """The model with inferred types and shapes, or why it is not valid."""
    model = onnx.ModelProto.FromString(arrays["model"].tobytes())
    try:
        found = onnx_inference.infer_shapes(model, data_prop=request["propagate"])
    except onnx_inference.FAILURES as error:
        return {"error": str(error)}, {}
    return {}, {"model": value_messages.from_bytes(found.SerializeToString())}
