"""The test function for ONNX Runtime's provider: does a submodel show a symptom in a session?

The provider returns scalars as (1,). That is a symptom of an output of the whole model, and none of a value inside it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnx_bridge.conversion.serving.trial import Trial, shaped_as
from onnx_bridge.core.errors import Step
from onnx_bridge.core.values import Value
from onnx_bridge.parity.submodels.submodels import Submodel
from onnx_bridge.parity.symptoms.symptom import FAILURES, Symptom
from onnx_bridge.parity.symptoms.symptom_detector import SymptomDetector
from onnx_bridge.provider.provider import Session
from onnx_bridge.samples.inputs import Sample


@dataclass(frozen=True)
class SessionDevice:
    """ONNX Runtime with its MIGraphX provider, in the sessions of a trial; ``outputs`` are those of the whole model."""

    trial: Trial
    outputs: Collection[str]

    def run(self, model: ir.Model, inputs: Mapping[str, Value], expected: Mapping[str, Value]) -> Sample:
        """Run a model in memory; raises ProviderError, NativeFailure."""
        return self.run_session(self.trial.session(model), inputs, expected)

    def run_session(self, session: Session, inputs: Mapping[str, Value], expected: Mapping[str, Value]) -> Sample:
        """Run a session, and undo what the provider does to scalars inside the model."""
        results = session.run(inputs)
        return {
            name: value if name in self.outputs else shaped_as(value, expected[name]) for name, value in results.items()
        }


@dataclass(frozen=True)
class SessionDetector(SymptomDetector):
    """Runs submodels in sessions with the provider."""

    device: SessionDevice

    def _test(self, submodel: Submodel) -> Symptom | None:
        self.runs.migraphx += 1
        try:
            session = self.device.trial.session(submodel.model)
        except FAILURES as error:
            return Symptom.of_failure(error, Step.SESSION)
        return self._worst(submodel, lambda inputs, expected: self.device.run_session(session, inputs, expected))
