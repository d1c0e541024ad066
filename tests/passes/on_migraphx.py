"""Running models on MIGraphX; importing this needs ``onnx_bridge``."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from onnx_bridge.migraphx.program import Tensor
from onnx_bridge.migraphx.worker import Worker
from tests.passes.rewriting import Array, feeds


def migraphx(proto: onnx.ModelProto, inputs: Mapping[str, Array] | None = None, *, worker: Worker) -> list[Array]:
    """All outputs, by MIGraphX on ``ref``."""
    program = worker.parse_onnx_buffer(proto.SerializeToString())
    program.compile("ref")
    given = {name: Tensor.of(array) for name, array in (inputs or feeds(proto)).items()}
    return [each.numpy() for each in program.run(given)]
