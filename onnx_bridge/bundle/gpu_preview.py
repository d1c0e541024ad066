"""A bundle run on ``ref`` with a GPU's quantization.

    bundle = onnx_bridge.convert("model.onnx", "out", target="ref")
    outputs = onnx_bridge.as_gpu(bundle)({"x": array})

MIGraphX's gpu target rewrites quantization first, and ``ref`` does not: it uses 8-bit kernels where it can, and removes
every other pair of QuantizeLinear and DequantizeLinear, with its rounding and its saturation. Here these passes of the
gpu target run on the cleaned model (`onnx_bridge.migraphx.install.gpu_view`), and ``ref`` computes the result. The
summation order and the precision of a GPU's kernels are not reproduced.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.loaded_partitions import CutModel, DevicePartition, LoadedPartition
from onnx_bridge.bundle.manifest import PartitionInfo
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Value
from onnx_bridge.migraphx.install.gpu_view import Operator, gpu_view


class AsGpu(Bundle):
    """A bundle, run on ``ref`` as a GPU would compute it; host partitions are unchanged."""

    def __init__(self, bundle: Bundle) -> None:
        """Wrap a bundle.

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
        self._views: dict[int, tuple[Operator, ...]] = {}

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
        """A sentence on their kernels; empty if there are no products, or before the first call."""
        counts = Counter(each.kernel for view in self._views.values() for each in view)
        said = ", ".join(f"{count} in {kernel}" for kernel, count in counts.most_common())
        return (f"on a GPU, convolutions and matrix products are computed: {said}",) if said else ()

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
        assert self._worker is not None
        assert self.model_path is not None
        whole = contextlib.nullcontext(self.model_path)
        with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
            with cleaned.file(info) if self.manifest.partitions else whole as path:
                view = gpu_view(path, Path(folder) / "program.mxr", self._worker.runtime)
            self._views[index] = view.products
            program = self._worker.load(view.program)
        program.compile("ref")
        return DevicePartition(info, program, self._worker, self._limits)


def as_gpu(bundle: Bundle) -> AsGpu:
    """A bundle, run on ``ref`` as a GPU would compute it.

    Args:
        bundle: one that was compiled for ``ref``, in a folder.

    Raises:
        InputError: it is not one.
    """
    return AsGpu(bundle)
