"""Where the tests of passes run a rewritten model: on MIGraphX, or in the fast tier on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import onnx

from tests.passes.harness import feeds, run

if TYPE_CHECKING:
    from onnx_bridge.migraphx.worker import Worker

Array = np.ndarray[Any, np.dtype[Any]]


class Device(Protocol):
    """Something that runs a model."""

    def run(self, proto: onnx.ModelProto, inputs: Mapping[str, Array] | None = None) -> list[Array]:
        """All outputs, of random inputs by default; inputs that the model does not need may be given."""


class MIGraphX:
    """MIGraphX on ``ref``, in a worker process."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def run(self, proto: onnx.ModelProto, inputs: Mapping[str, Array] | None = None) -> list[Array]:
        from onnx_bridge.migraphx.program import Tensor

        inputs = feeds(proto) if inputs is None else inputs
        program = self._worker.parse_onnx_buffer(proto.SerializeToString())
        program.compile("ref")
        needed = set(program.get_parameter_shapes())
        given = {name: Tensor.of(np.asarray(each, order="C")) for name, each in inputs.items() if name in needed}
        return [each.numpy() for each in program.run(given)]


class OnnxRuntime:
    """ONNX Runtime without optimizations: shows that a rewrite is right, but not that MIGraphX computes it right."""

    def run(self, proto: onnx.ModelProto, inputs: Mapping[str, Array] | None = None) -> list[Array]:
        inputs = feeds(proto) if inputs is None else inputs
        needed = {value.name for value in proto.graph.input}
        return list(run(proto, {name: each for name, each in inputs.items() if name in needed}).values())
