"""The loop that runs in the process of a `Worker`."""

from __future__ import annotations

import importlib
import socket
from typing import Any

from passes.isolation import messages
from passes.isolation.child import TOLD, serve
from passes.isolation.messages import Array, Message

_connections: list[socket.socket] = []


def tell(count: int) -> None:
    """Tell the process that waits for an answer how far it is."""
    messages.send(_connections[0], {TOLD: count}, {})


def main(connection: socket.socket, module: str) -> None:
    """Answer requests by the modules that they name; ``module`` is imported before the first."""
    importlib.import_module(module)
    _connections.append(connection)

    def answer(request: dict[str, Any], arrays: dict[str, Array]) -> Message:
        named = importlib.import_module(request["module"])
        if "request" not in request:
            return {}, {}
        message: Message = named.answer(request["request"], arrays)
        return message

    serve(connection, answer)
