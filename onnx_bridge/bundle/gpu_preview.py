"""A bundle, rehearsed as on a GPU: run on ``ref`` after the gpu target's passes.

    bundle = onnx_bridge.convert("model.onnx", "out", target="ref")
    outputs = onnx_bridge.as_gpu(bundle)({"x": array})

MIGraphX's gpu target runs many passes that ``ref`` has not. They change quantization most: 8-bit kernels are used where
they can be, and every other pair of QuantizeLinear and DequantizeLinear is removed, with its rounding and its
saturation. Here those passes that need no GPU run on the cleaned model (`onnx_bridge.migraphx.rehearsal`), and ``ref``
computes the result. The summation order and the precision of a GPU's kernels are not reproduced.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from functools import cached_property

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.loaded_partitions import CutModel, DevicePartition, LoadedPartition
from onnx_bridge.bundle.manifest.entries import PartitionInfo
from onnx_bridge.bundle.submodel import parse
from onnx_bridge.core.errors import InputError, WorkerCrashed
from onnx_bridge.core.values import Value
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.rehearsal.gpu_operators import Operator
from onnx_bridge.migraphx.rehearsal.rehearsal import Rehearsal, rehearsal
from onnx_bridge.migraphx.worker import Worker

_LISTED = 8
"""How many nodes a sentence names."""


class AsGpu(Bundle):
    """A bundle, run on ``ref`` after passes of the gpu target; host partitions are unchanged."""

    def __init__(self, bundle: Bundle, passes: Rehearsal | None = None) -> None:
        """Wrap a bundle.

        Args:
            bundle: one for ``ref``.
            passes: those that run; default: all.

        Raises:
            InputError: it was compiled for a GPU, or keeps no cleaned model.
        """
        super().__init__(bundle.path, runtime=bundle.runtime_name)
        self._limits = bundle.limits
        if self.manifest.target != "ref":
            what = f"it was compiled for {self.manifest.target}"
            raise InputError(what, where=str(self.path), hint="convert with --target ref")
        if self.model_path is None:
            what = "it keeps no cleaned model, which the passes of the gpu target need"
            raise InputError(what, where=str(self.path), hint="convert into a folder")
        self._passes = passes
        self._unfused = ""
        self._views: dict[int, tuple[Operator, ...]] = {}

    @cached_property
    def rehearsal(self) -> Rehearsal:
        """The passes.

        Raises:
            RuntimeNotFound, RuntimeFailure: as for `onnx_bridge.migraphx.rehearsal.rehearsal.rehearsal`.
        """
        return self._passes or rehearsal(runtimes.find(self.runtime_name))

    @property
    def products(self) -> tuple[Operator, ...]:
        """The convolutions and matrix products after the passes of the gpu target.

        Raises:
            RuntimeFailure: as for a call.
        """
        if not self._partitions:
            self.open()
        return tuple(each for _, view in sorted(self._views.items()) for each in view)

    @property
    def kernel_notes(self) -> tuple[str, ...]:
        """A sentence on their kernels, and one on fusion if MIGraphX aborts in it; none before the first call.

        Of a quantized model it names the nodes that are left in float, where MIGraphX keeps their names.
        """
        products = [each for view in self._views.values() for each in view]
        counts = Counter(each.kernel for each in products)
        left = list(dict.fromkeys(name for each in products if each.kernel == "float" for name in each.nodes))
        more = f", and {len(left) - _LISTED} more" if len(left) > _LISTED else ""
        named = {"float": f" ({', '.join(left[:_LISTED])}{more})"} if left else {}
        said = ", ".join(f"{count} in {kernel}{named.get(kernel, '')}" for kernel, count in counts.most_common())
        notes = [f"rehearsed as gpu, convolutions and matrix products are computed: {said}"] if said else []
        return (*notes, *([f"rehearsed as gpu without fusion: {self._unfused}"] if self._unfused else []))

    def open(self, worker: Worker | None = None) -> None:
        """Load the programs, as `Bundle` does; without fusion, where MIGraphX aborts in it."""
        try:
            super().open(worker)
        except WorkerCrashed as error:
            if self._passes is not None:
                raise
            self._unfused, self._passes = error.what, self.rehearsal.before_fusion
            del self.rehearsal
            super().open(worker)

    def __call__(self, arrays: Mapping[str, Value]) -> dict[str, Value]:
        """Run the model, as `Bundle` does.

        Raises:
            InputError: an array is missing, unknown, or of another shape or dtype.
            MigraphxError: the passes of the gpu target refuse the model.
            RuntimeNotFound: there is no compiler, or there are no headers of the runtime's version.
            RuntimeFailure: MIGraphX failed, or its process ended.
        """
        return super().__call__(arrays)

    def _open(self, index: int, info: PartitionInfo, cleaned: CutModel) -> LoadedPartition:
        if info.program is None:
            return super()._open(index, info, cleaned)
        assert self.model_path is not None
        passes = self.rehearsal
        worker = workers.shared(passes.runtime, self.manifest.environment)
        shapes = {each.name: each.shape for each in info.inputs}
        with worker.limited(self._limits):
            with cleaned.file(info) if self.manifest.partitions else contextlib.nullcontext(self.model_path) as path:
                program = parse(worker, path, shapes, use_debug_symbols=bool(self.manifest.forecast))
            operators = map(Operator.from_json, program.run_gpu_passes(passes.library, len(passes.groups)))
            self._views[index] = tuple(each for each in operators if each.is_product)
            program.compile("ref")
        return DevicePartition(info, program, worker, self._limits)


def as_gpu(bundle: Bundle) -> AsGpu:
    """A bundle, run on ``ref`` rehearsed as on a GPU.

    Args:
        bundle: one that was compiled for ``ref``, in a folder.

    Raises:
        InputError: it is not one.
    """
    return AsGpu(bundle)
