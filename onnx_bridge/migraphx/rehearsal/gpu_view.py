"""A model after the gpu target's rewriting of quantization (``simplify_qdq``), on a machine without a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onnx_bridge.core.schema import read_as
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.rehearsal.rehearsal import pass_rehearsal
from onnx_bridge.migraphx.runtime import Runtime

_PRODUCTS = {"convolution", "convolution_backwards", "dot", "quant_convolution", "quant_dot"}


@dataclass(frozen=True)
class Operator:
    """One operator of the program after ``simplify_qdq``.

    Attributes:
        operator: the name in MIGraphX ("quant_dot").
        dims: the shape of its result.
        dtypes: the types of its first two operands ("int8_type").
        correction: whether it multiplies a zero point, and so only corrects another product.
        int4: whether an operand is unpacked from 4 bits.
        nodes: the names of the ONNX nodes that it comes from, if MIGraphX keeps them.
    """

    operator: str
    dims: tuple[int, ...]
    dtypes: tuple[str, str]
    correction: bool
    int4: bool
    nodes: tuple[str, ...] = ()

    @property
    def is_product(self) -> bool:
        """True if it is a convolution or a matrix product of the model, and not a correction."""
        return self.operator in _PRODUCTS and not self.correction

    @property
    def kernel(self) -> str:
        """Its kind of kernel: ``int8``, ``fp8``, ``int4-weight`` or ``float``."""
        if self.operator.startswith("quant_"):
            return "int8" if "int8_type" in self.dtypes else "fp8"
        return "int4-weight" if self.int4 else "float"


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
        return tuple(operator for operator in self.operators if operator.is_product)


def gpu_view(model: Path, program: Path, runtime: Runtime) -> GpuView:
    """Run the passes of the gpu target on a model, up to and including ``simplify_qdq``.

    Args:
        program: where to write the resulting program, as MessagePack.
        runtime: the runtime whose passes are run.

    Raises:
        MigraphxError: MIGraphX rejects the model.
        WorkerCrashed, WorkerTimeout: its process ended, or timed out.
        RuntimeNotFound, RuntimeFailure: as for `pass_rehearsal`.
    """
    passes = pass_rehearsal(runtime)
    parsed = workers.shared(passes.runtime).parse_onnx(model)
    operators = parsed.run_gpu_passes(passes.library, passes.through_quantization)
    parsed.save(program)
    return GpuView(read_as(tuple[Operator, ...], operators), program)
