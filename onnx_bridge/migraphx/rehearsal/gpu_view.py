"""A model after the gpu target's rewriting of quantization (``simplify_qdq``), on a machine without a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.rehearsal.gpu_operators import Operator
from onnx_bridge.migraphx.rehearsal.rehearsal import rehearsal
from onnx_bridge.migraphx.runtime import Runtime


@dataclass(frozen=True)
class GpuView:
    """A model after ``simplify_qdq``.

    Attributes:
        operators: products, and the remaining quantizelinear and dequantizelinear, in the program's order.
        program: the file of the program, which a worker can `load`, compile for ``ref`` and run.
    """

    operators: tuple[Operator, ...]
    program: Path

    @property
    def products(self) -> tuple[Operator, ...]:
        """The convolutions and matrix products."""
        return tuple(each for each in self.operators if each.is_product)


def gpu_view(model: Path, program: Path, runtime: Runtime) -> GpuView:
    """Run the passes of the gpu target on a model, up to and including ``simplify_qdq``.

    Args:
        model: an ONNX file.
        program: where to write the resulting program, as MessagePack.
        runtime: the runtime whose passes are run.

    Raises:
        MigraphxError: MIGraphX rejects the model.
        WorkerCrashed, WorkerTimeout: its process ended, or timed out.
        RuntimeNotFound, RuntimeFailure: as for `rehearsal`.
    """
    passes = rehearsal(runtime)
    parsed = workers.shared(passes.runtime).parse_onnx(model)
    operators = parsed.run_gpu_passes(passes.library, passes.through_quantization)
    parsed.save(program)
    return GpuView(tuple(map(Operator.from_json, operators)), program)
