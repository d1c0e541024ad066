"""The legs of a check that show a bundle as on a GPU, rehearsed: its passes alone, or its kernels emulated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.device import Device
from onnx_bridge.bundle.gpu_preview import GpuPreview
from onnx_bridge.bundle.partitions import CutModel, DevicePartition, LoadedPartition
from onnx_bridge.core.errors import BridgeError, NotEmulated, RuntimeFailure
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.values import Value
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.gpu.compiler import GpuCompiler
from onnx_bridge.migraphx.gpu.rehearse import rehearsal
from onnx_bridge.migraphx.rehearsal.depth import Rehearsal
from onnx_bridge.model import io as models
from onnx_bridge.parity.bisect.kernel_fault import KernelFault, kernel_at_fault
from onnx_bridge.parity.checking.baseline import rehearsed
from onnx_bridge.parity.checking.report import Leg
from onnx_bridge.parity.failure import Failure
from onnx_bridge.reference.comparison.compare import Comparison
from onnx_bridge.reference.comparison.inside import InsideModel
from onnx_bridge.reference.comparison.tolerances import Tolerances
from passes.core.text import counted


class GpuLegs:
    """A bundle in a rehearsal of the gpu target.

    Attributes:
        passes: the rehearsal.
        bundle: the bundle, which runs rehearsed.
        tolerances: the tolerances of what it computes.
        notes: sentences for the user on the legs so far.
    """

    def __init__(self, bundle: Bundle, passes: Rehearsal, tolerances: Tolerances) -> None:
        self.passes, self.tolerances = passes, rehearsed(tolerances, bundle)
        self._preview = GpuPreview(bundle, passes)
        self.bundle = self._preview.bundle
        kept = any(program.gpu_programs for program in bundle.manifest.programs)
        self.notes: list[str] = [] if kept else [passes.note]

    @classmethod
    def of(cls, bundle: Bundle, name: str | None, tolerances: Tolerances) -> GpuLegs | None:
        """Return the legs for a rehearsal by its name; None without a name, with such a GPU, or on the host alone."""
        passes = None if name is None else rehearsal(name, runtimes.find(bundle.programs[0].runtime_name))
        return None if passes is None or not bundle.manifest.on_migraphx else cls(bundle, passes, tolerances)

    def compared(
        self, name: str, comparisons: Callable[[Bundle], Iterable[Comparison]], tell: Progress
    ) -> Sequence[Leg]:
        """Return the leg of lazy comparisons of the bundle, or of compiling it alone if nothing is emulated.

        There is none if what it needs is not emulated.
        """
        if not self.passes.computes:
            return self.compiled(tell)
        leg = Leg.of_bundle(name, comparisons(self.bundle))
        return () if self.leaves_out(leg.failure) else (leg,)

    def leaves_out(self, failure: Failure | None) -> bool:
        """Return whether a run ended at what is not emulated, which a note says: that is no failure."""
        if failure is None or not isinstance(failure.error, NotEmulated):
            return False
        self.notes.append(f"{self.passes.leg}: {failure.error.what}")
        return True

    def compiled(self, tell: Progress) -> Sequence[Leg]:
        """Compile the programs; returns a leg if that fails."""
        tell(self.passes.groups[0])
        try:
            self._preview.open()
        except RuntimeFailure as error:
            self.notes.append(f"`onnx-bridge bisect {self.passes.option} --no-host` names the nodes")
            return (Leg(self.passes.groups[0], failure=Failure.of(error)),)
        return ()

    def conclude(self, legs: Sequence[Leg], sample: Mapping[str, Value] | None = None) -> Sequence[str]:
        """Return all notes, with what was emulated; on what differs, the kernel at fault if a sample is given."""
        notes = [*self.notes, *self._preview.kernel_notes, *self._coverage()]
        wrong = [leg for leg in legs if not leg.passed]
        if not self.passes.computes or not wrong:
            return notes
        kernel = self._kernel(sample) if sample is not None and wrong[0].differs else None
        advice = f"`onnx-bridge bisect {self.passes.option}` names the nodes; what differs is to be confirmed on a GPU"
        return [*notes, *([] if kernel is None else [f"{self.passes.leg}: {kernel}"]), advice]

    def _coverage(self) -> Sequence[str]:
        counts = self._preview.coverage
        if not counts:
            return ()
        kernels = (
            f"{counted(counts.pop('launch', 0), 'kernel')}, {counted(counts.pop('instruction', 0), 'instruction')}"
        )
        host = ", ".join(counted(count, name) for name, count in sorted(counts.items()))
        by_host = f"; by the host instead of AMD's libraries: {host}" if host else ""
        limits = "not the rounding of transcendental instructions, races, or speed"
        return (f"{self.passes.leg}: {kernels}{by_host}; {limits}",)

    def _kernel(self, sample: Mapping[str, Value]) -> KernelFault | None:
        """Return the first kernel at fault in the programs as they are, partition by partition."""
        path = self.bundle.model_path
        if path is None or not isinstance(self.passes, GpuCompiler):
            return None
        loaded: Sequence[LoadedPartition] = self._preview.programs[0].loaded
        cut, inside = CutModel(path), InsideModel(models.load(path), sample)
        for partition in loaded:
            if not isinstance(partition, DevicePartition):
                continue
            try:
                names = [info.name for info in partition.info.inputs if info.name not in sample]
                given = {**inside.values(sample, names), **sample}
                with partition.worker.limited(partition.limits):
                    device, model = Device(partition.worker, limits=partition.limits), cut.part(partition.info)
                    fault = kernel_at_fault(device, partition.program, model, given, self.tolerances)
            except BridgeError:  # nothing is known of its kernels
                continue
            if fault is not None:
                return fault
        return None
