"""The worker process for programs of a GPU that is not there, which it computes."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from onnx_bridge.migraphx import server
from onnx_bridge.migraphx.gpu.emulation import Emulation
from onnx_bridge.migraphx.kinds import STUB
from onnx_bridge.migraphx.process.protocol import TensorMessage, Tensors
from onnx_bridge.migraphx.program import Program, Tensor


class EmulatingServer(server.Server):
    """The programs of a process with the stub of a GPU's libraries."""

    @cached_property
    def _emulation(self) -> Emulation:
        self._library.has_target("gpu")  # loads the stub
        return Emulation(Path(os.environ[STUB]))

    def _run(self, program: Program, tensors: Tensors, *, copy: bool = True) -> list[Tensor]:
        with self._emulation.running():
            return program.run(tensors, copy=copy)

    def _do_run(self, request: Mapping[str, Any], tensors: Tensors) -> TensorMessage:
        answer, outputs = super()._do_run(request, tensors)
        return {**answer, "coverage": self._emulation.coverage()}, outputs

    def _do_probe(self, request: Mapping[str, Any], tensors: Tensors) -> TensorMessage:
        _ = self._emulation  # made once, not in every fork
        return super()._do_probe(request, tensors)


def main(connection: socket.socket, kind: str, path: str) -> None:
    """Serve requests, as `server.main` does."""
    server.main(connection, kind, path, EmulatingServer)
