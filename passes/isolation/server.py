"""The loop that runs in the process of a `Worker`."""

from __future__ import annotations

import importlib
import socket
from typing import Any

from passes.isolation.child import serve
from passes.isolation.messages import Array, Message


def main(connection: socket.socket, module: str) -> None:
    """Answer requests by the modules that they name; ``module`` is imported before the first."""
    importlib.import_module(module)

    def answer(request: dict[str, Any], arrays: dict[str, Array]) -> Message:
        named = importlib.import_module(request["module"])
        if "request" not in request:
            return {}, {}
        message: Message = named.answer(request["request"], arrays)
        return message

    serve(connection, answer)
