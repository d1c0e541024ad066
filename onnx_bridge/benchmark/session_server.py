"""A session of ONNX Runtime as it is deployed, with all its optimizations, for `passes.isolation.worker`."""

from __future__ import annotations

from typing import Any

import onnxruntime

from passes.isolation import value_messages
from passes.isolation.messages import Array, Message

_sessions: list[Any] = []
"""The session of this process, once there is one."""


def answer(request: dict[str, Any], arrays: dict[str, Array]) -> Message:
    """Start, make the session of a file, or run a sample."""
    try:
        if request["do"] == "start":
            return {}, {}
        if request["do"] == "open":
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            _sessions[:] = [onnxruntime.InferenceSession(request["path"], options, providers=[request["provider"]])]
            return {}, {}
        (sample,) = value_messages.unpack([request["sample"]], arrays)
        (session,) = _sessions
        outputs = dict(zip((output.name for output in session.get_outputs()), session.run(None, sample), strict=True))
        (entries,), packed = value_messages.pack([outputs])
        return {"outputs": entries}, packed
    except MemoryError:
        raise
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        return {"error": str(error)}, {}
