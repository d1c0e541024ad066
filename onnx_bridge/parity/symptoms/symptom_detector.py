"""The test function of fault localization and reduction: does a submodel show a symptom?"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from onnx_bridge.bundle.device import Device, InsideDevice, Runner, run_program, to_tensors
from onnx_bridge.core.delta_debug import bisect_first
from onnx_bridge.core.errors import NotEmulated, Step
from onnx_bridge.core.tolerance import PartialTolerance
from onnx_bridge.core.values import Value, flat
from onnx_bridge.migraphx.remote_program import RemoteProgram
from onnx_bridge.parity.submodels.submodels import RunCounts, Submodel
from onnx_bridge.parity.symptoms.symptom import FAILURES, Symptom, SymptomKind, worse
from onnx_bridge.reference.comparison.compare import Comparison, compare
from onnx_bridge.reference.comparison.judge import Judge
from onnx_bridge.reference.comparison.tolerances import Tolerances
from onnx_bridge.requests.parity import LowPrecision
from onnx_bridge.samples.inputs import Sample
from passes.core.text import counted


@dataclass(frozen=True)
class SymptomDetector:
    """Runs submodels and compares their outputs with the reference's.

    Attributes:
        device: what runs them: MIGraphX, or ONNX Runtime with its provider.
        runs: counts its runs.
        precision: what MIGraphX computes in; None is the model's own dtypes.
        undetermined: why outputs of tested submodels that differed are no symptom.
    """

    device: Runner
    tolerances: Tolerances
    runs: RunCounts
    precision: LowPrecision | None = None
    undetermined: list[str] = field(default_factory=list)

    def detect(self, submodels: Iterable[Submodel]) -> Symptom | None:
        """Return the worst symptom of the first submodel with one; raises RuntimeFailure if MIGraphX does not load."""
        return next((symptom for submodel in submodels if (symptom := self._test(submodel)) is not None), None)

    def _test(self, submodel: Submodel) -> Symptom | None:
        """Return the symptom of a submodel."""
        raise NotImplementedError

    def _worst(self, submodel: Submodel, run: Callable[[Sample, Sample], Sample]) -> Symptom | None:
        """Return the worst symptom of a submodel's samples, run with their expected outputs, or the first failure."""
        symptom: Symptom | None = None
        for number, inputs, expected in zip(submodel.numbers, submodel.inputs, submodel.expected, strict=True):
            try:
                outputs = run(inputs, expected)
            except FAILURES as error:
                return None if isinstance(error, NotEmulated) else Symptom.of_failure(error, Step.RUN, number)
            compared = self._compare(submodel, inputs, outputs, expected)
            if compared.differs:
                symptom = worse(symptom, Symptom.of_comparison(compared, number, step=Step.RUN, outputs=outputs))
        return symptom

    def _compare(self, submodel: Submodel, inputs: Sample, outputs: Sample, expected: Sample) -> Comparison:
        """Return the comparison of outputs; those that differ are judged, except in a lower precision."""
        tolerances = self._tolerances(submodel, expected)
        compared = compare(outputs, expected, tolerances)
        if compared.passed or self.precision is not None:
            return compared
        inside = InsideDevice(submodel.model, self.device)
        compared = Judge(submodel.model, tolerances).judge(outputs, expected, inputs, inside)
        self.undetermined.extend(output.undetermined for output in compared.outputs if output.undetermined is not None)
        return compared

    def _tolerances(self, submodel: Submodel, expected: Mapping[str, Value]) -> Tolerances:
        """Return the tolerances of a submodel: an output of a quantizer may round to the neighbouring step."""
        coarse = self.tolerances.at_least("int8")
        arrays = {name: array for name, array in flat(expected).items() if name in submodel.quantized}
        parts = {name: coarse.of(name, array) for name, array in arrays.items() if name not in coarse.named}
        named = {name: PartialTolerance(part.rtol, part.atol) for name, part in parts.items()}
        return replace(self.tolerances, named={**self.tolerances.named, **named})


@dataclass(frozen=True)
class MigraphxDetector(SymptomDetector):
    """Runs submodels on MIGraphX, perhaps in a lower precision."""

    device: Device

    def _test(self, submodel: Submodel) -> Symptom | None:
        self.runs.migraphx += 1
        step = Step.PARSE
        try:
            with self.device.worker.limited(self.device.limits):
                program = self.device.parse(submodel.model, submodel.inputs[0])
                count, wanted = len(program.get_output_shapes()), len(submodel.model.graph.outputs)
                if count != wanted:
                    message = f"MIGraphX gives {counted(count, 'output')} instead of {wanted}"
                    return Symptom(SymptomKind.WRONG, step, message)
                step = Step.QUANTIZE
                self._quantize(program, submodel)
                step = Step.COMPILE
                self.device.compile(program)
                if self.device.rehearsal is not None and not self.device.rehearsal.computes:
                    return None
                return self._worst(submodel, functools.partial(run_program, program))
        except NotEmulated:
            return None
        except FAILURES as error:
            return Symptom.of_failure(error, step)

    def _quantize(self, program: RemoteProgram, submodel: Submodel) -> None:
        if self.precision in ("fp16", "bf16"):
            program.quantize(self.precision)
        elif self.precision is not None:
            calibration = [to_tensors(program, inputs) for inputs in submodel.inputs]
            program.quantize(self.precision, self.device.target, calibration)


def first_group(detector: MigraphxDetector, submodels: Sequence[Submodel]) -> str:
    """Return the first group of rehearsed passes of the gpu target after which submodels have their symptom."""
    passes = detector.device.rehearsal
    assert passes is not None

    def fails(count: int) -> bool:
        device = replace(detector.device, rehearsal=passes.first(count))
        return replace(detector, device=device).detect(submodels) is not None

    return passes.groups[bisect_first(range(1, len(passes.groups) + 1), fails) - 1]
