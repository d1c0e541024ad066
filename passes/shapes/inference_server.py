"""ONNX's inference of large models, for `passes.isolation.worker`."""

from __future__ import annotations

from typing import Any

import onnx

from passes.isolation import value_messages
from passes.isolation.messages import Array, Message
from passes.shapes import onnx_inference


def answer(request: dict[str, Any], arrays: dict[str, Array]) -> Message:
    """The model with inferred types and shapes, or why it is not valid."""
    model = onnx.ModelProto.FromString(arrays["model"].tobytes())
    try:
        found = onnx_inference.infer_shapes(model, data_prop=request["propagate"])
    except onnx_inference.FAILURES as error:
        return {"error": str(error)}, {}
    return {}, {"model": value_messages.from_bytes(found.SerializeToString())}
