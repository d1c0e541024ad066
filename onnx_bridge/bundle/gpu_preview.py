"""A bundle run on ``ref`` with the numbers that a GPU would compute, as far as quantization goes.

    bundle = onnx_bridge.convert("model.onnx", "out", target="ref")
    outputs = onnx_bridge.as_gpu(bundle)({"x": array})

MIGraphX's gpu target rewrites quantization before all else, and ``ref`` does not: it makes kernels of 8 bits, and
deletes every other pair of QuantizeLinear and DequantizeLinear with its rounding and its saturation. Here these passes
run over the cleaned model (`onnx_bridge.migraphx.install.gpu_view`), and ``ref`` computes what they leave. The order
in which a GPU's kernels add numbers up, and their own precision, are not to be seen.
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
    """A bundle, run on ``ref`` as a GPU would compute it; partitions on the host run as ever."""

    def __init__(self, bundle: Bundle) -> None:
        """Look at a bundle in another way.

        Raises:
            InputError: it was compiled for a GPU, which can be asked itself, or keeps no cleaned model.
        """
        super().__init__(bundle.path, runtime=bundle.runtime_name)
        self._limits = bundle.limits
        if self.manifest.target != "ref":
            what = f"it was compiled for {self.manifest.target}, and runs there"
            raise InputError(what, where=str(self.path), hint="convert with --target ref")
        if self.model_path is None:
            what = "it keeps no cleaned model, which the passes of the gpu target would have to see"
            raise InputError(what, where=str(self.path), hint="convert into a folder")
        self._views: dict[int, tuple[Operator, ...]] = {}

    @property
    def products(self) -> tuple[Operator, ...]:
        """The convolutions and matrix products that the gpu target goes on with.

        Raises:
            RuntimeFailure: as for a call.
        """
        if not self._partitions:
            self.open()
        return tuple(each for _, view in sorted(self._views.items()) for each in view)

    @property
    def kernel_notes(self) -> tuple[str, ...]:
        """Which kernels these are, in a sentence; none before they are known, and without any."""
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
        InputError: it is none.
    """
    return AsGpu(bundle)
