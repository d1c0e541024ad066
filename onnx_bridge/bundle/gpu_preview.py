"""A bundle, rehearsed as on a GPU: run on ``ref`` after the gpu target's passes.

    bundle = onnx_bridge.convert("model.onnx", "out", target="ref")
    outputs = onnx_bridge.as_gpu(bundle)({"x": array})

MIGraphX's gpu target runs many passes that ``ref`` has not. They change quantization most: 8-bit kernels are used if
possible, and every other pair of QuantizeLinear and DequantizeLinear is removed, with its rounding and saturation. Here
the passes that need no GPU run on the cleaned model (`onnx_bridge.migraphx.rehearsal`), and ``ref`` computes the
result. The summation order and the precision of a GPU's kernels are not reproduced.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.manifest.entries import PartitionInfo
from onnx_bridge.bundle.partitions import CutModel, DevicePartition, parse
from onnx_bridge.bundle.program import Program
from onnx_bridge.core.errors import InputError, WorkerCrashed
from onnx_bridge.core.schema import read_as
from onnx_bridge.core.values import Value
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.gpu.compiler import GpuCompiler
from onnx_bridge.migraphx.rehearsal.depth import Rehearsal
from onnx_bridge.migraphx.rehearsal.operators import Operator
from onnx_bridge.migraphx.rehearsal.rehearsal import PassRehearsal, pass_rehearsal
from onnx_bridge.migraphx.worker import Worker
from onnx_bridge.requests.conversion import BY_CALIBRATION

_LISTED = 8
"""The number of nodes that a sentence names."""


class GpuPreview:
    """A bundle, run on ``ref`` after passes of the gpu target; host partitions are unchanged.

    Args:
        bundle: one for ``ref``.
        passes: the rehearsal; default: all passes, without kernels.

    Raises:
        InputError: the bundle was compiled for a GPU, or keeps no cleaned model.
    """

    def __init__(self, bundle: Bundle, passes: Rehearsal | None = None) -> None:
        if bundle.manifest.target != "ref":
            what = f"the bundle was compiled for {bundle.manifest.target}"
            raise InputError(what, where=str(bundle.path), hint="convert with `target='ref'`")
        if bundle.model_path is None:
            what = "the bundle keeps no cleaned model, which the passes of the gpu target need"
            raise InputError(what, where=str(bundle.path), hint="convert into a folder")
        self._passes = passes
        self._unfused = ""
        self.programs = [_Rehearsed(program, bundle.path, self) for program in bundle.programs]
        self.bundle = copy.copy(bundle)
        self.bundle.programs = [*self.programs]
        self.bundle.__dict__.pop("decoder", None)  # which has the programs of the original

    @cached_property
    def rehearsal(self) -> Rehearsal:
        """The passes; raises like `onnx_bridge.migraphx.rehearsal.rehearsal.pass_rehearsal`."""
        return self._passes or pass_rehearsal(runtimes.find(self.programs[0].runtime_name))

    @property
    def products(self) -> tuple[Operator, ...]:
        """The convolutions and matrix products after the passes of the gpu target; raises RuntimeFailure."""
        self.open()
        return self._products

    def open(self) -> None:
        """Compile the programs; raises RuntimeFailure if MIGraphX fails."""
        for program in self.programs:
            if not program.loaded:
                program.open()

    @property
    def _products(self) -> tuple[Operator, ...]:
        """The products of the programs that are loaded."""
        views = [view for program in self.programs for _, view in sorted(program.views.items())]
        return tuple(product for view in views for product in view)

    @property
    def kernel_notes(self) -> tuple[str, ...]:
        """A sentence on their kernels, and one on fusion if MIGraphX aborts in it; none before the first call.

        Of a quantized model it names the nodes that are left in float, if MIGraphX keeps their names.
        """
        products = self._products
        counts = Counter(product.kernel for product in products)
        left = list(dict.fromkeys(name for product in products if product.kernel == "float" for name in product.nodes))
        more = f", and {len(left) - _LISTED} more" if len(left) > _LISTED else ""
        named = {"float": f" ({', '.join(left[:_LISTED])}{more})"} if left else {}
        said = ", ".join(f"{count} in {kernel}{named.get(kernel, '')}" for kernel, count in counts.most_common())
        notes = [f"rehearsed as gpu, convolutions and matrix products are computed: {said}"] if said else []
        manifest = self.bundle.manifest
        precision = manifest.request.precision
        if precision in BY_CALIBRATION and not manifest.quantized_in_model:
            notes.append(f"rehearsed as gpu in float, without the ranges that --precision {precision} measured")
        return (*notes, *([f"rehearsed as gpu without fusion: {self._unfused}"] if self._unfused else []))

    @property
    def coverage(self) -> Counter[str]:
        """The counts of what was emulated in the last run."""
        partitions = [partition for program in self.programs for partition in program.loaded]
        device = [partition for partition in partitions if isinstance(partition, DevicePartition)]
        return sum((partition.program.coverage for partition in device), Counter[str]())

    def __call__(self, arrays: Mapping[str, Value]) -> dict[str, Value]:
        """Run the model, as `Bundle` does.

        Raises:
            InputError: an array is missing, unknown, or of another shape or dtype.
            MigraphxError: the passes of the gpu target refuse the model.
            RuntimeNotFound: there is no compiler, or there are no headers of the runtime's version.
            RuntimeFailure: MIGraphX failed, or its process ended.
        """
        return self.bundle(arrays)

    def omit_fusion(self, error: WorkerCrashed) -> None:
        """Run only the passes before fusion, in which MIGraphX aborted; raises the error if passes were given."""
        if self._passes is not None or not isinstance(self.rehearsal, PassRehearsal):
            raise error
        self._unfused, self._passes = error.what, self.rehearsal.before_fusion
        del self.rehearsal


class _Rehearsed(Program):
    """A program whose device partitions are computed after passes of the gpu target."""

    def __init__(self, program: Program, bundle: Path, preview: GpuPreview) -> None:
        super().__init__(bundle, program.manifest, program.info, program.runtime_name, program.limits)
        self._preview = preview
        self.views: dict[int, tuple[Operator, ...]] = {}

    def open(self, worker: Worker | None = None) -> None:
        """Load the partitions; without fusion if MIGraphX aborts in it."""
        try:
            super().open(worker)
        except WorkerCrashed as error:
            self._preview.omit_fusion(error)
            super().open(worker)

    def _load_device(self, index: int, info: PartitionInfo, cleaned: CutModel) -> DevicePartition:
        passes = self._preview.rehearsal
        worker = passes.worker(self.info.environment)
        shapes = {tensor.name: tensor.sizes for tensor in info.inputs}
        with worker.limited(self.limits):
            if isinstance(passes, GpuCompiler) and info.gpu and info.gpu.architecture == passes.architecture.name:
                self._check_files("program", [info.gpu.file])
                return DevicePartition(info, worker.load(self._folder / info.gpu.file.file), worker, self.limits)
            with self.part(info, cleaned) as path:
                program = parse(worker, path, shapes, use_debug_symbols=bool(self.info.forecast))
            operators = read_as(list[Operator], passes.prepare(program))
            self.views[index] = tuple(operator for operator in operators if operator.is_product)
            program.compile(passes.target)
        return DevicePartition(info, program, worker, self.limits)


def as_gpu(bundle: Bundle) -> GpuPreview:
    """Return a bundle, run on ``ref`` rehearsed as on a GPU.

    Args:
        bundle: one that was compiled for ``ref``, in a folder.

    Raises:
        InputError: the bundle was compiled for a GPU, or keeps no cleaned model.
    """
    return GpuPreview(bundle)
