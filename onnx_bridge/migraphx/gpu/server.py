"""The worker process for programs of a GPU that is not there, which it computes."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from onnx_bridge.migraphx import server
from onnx_bridge.migraphx.architectures import named_architecture
from onnx_bridge.migraphx.gpu.emulation import Emulation
from onnx_bridge.migraphx.kinds import STUB
from onnx_bridge.migraphx.process.protocol import TensorMessage, Tensors
from onnx_bridge.migraphx.program import Program, Tensor, reloaded


class EmulatingServer(server.Server):
    """The programs of a process with the stub of a GPU's libraries."""

    @cached_property
    def _emulation(self) -> Emulation:
        self._library.has_target("gpu")  # loads the stub
        return Emulation(Path(os.environ[STUB]))

    def _compiled(self, program: Program, target: str, options: Mapping[str, bool]) -> Program:
        program = super()._compiled(program, target, options)
        # what MIGraphX compiles for another GPU meets the one that is there, here the stub's, when it is loaded
        return program if named_architecture(target) is None else reloaded(program, self._library)

    def _run(self, program: Program, tensors: Tensors, *, copy: bool = True) -> list[Tensor]:
        with self._emulation.running():
            return program.run(tensors, copy=copy)

    def _do_run(self, request: Mapping[str, Any], tensors: Tensors) -> TensorMessage:
        self._emulation.coverage()  # counts begin with this run
        answer, outputs = super()._do_run(request, tensors)
        return {**answer, "coverage": self._emulation.coverage()}, outputs

    def _do_trace(self, request: Mapping[str, Any], tensors: Tensors) -> TensorMessage:
        program, wanted = self._programs[request["program"]], [tuple(kernel) for kernel in request["wanted"]]
        trace = self._emulation.traced(wanted, lambda: self._run(program, tensors))
        written = (Tensor("uint8_type", np.frombuffer(data, np.uint8)) for data in trace.written)
        return {"executed": trace.executed}, {str(index): tensor for index, tensor in enumerate(written)}

    def _do_probe(self, request: Mapping[str, Any], tensors: Tensors) -> TensorMessage:
        _ = self._emulation  # made once, not in every fork
        return super()._do_probe(request, tensors)


def main(connection: socket.socket, kind: str, path: str) -> None:
    """Serve requests, as `server.main` does."""
    server.main(connection, kind, path, EmulatingServer)
