"""Fault localization: a model is compared component by component on its way to MIGraphX."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.bundle.device import Device
from onnx_bridge.conversion.compiling.compiler import Compiler
from onnx_bridge.conversion.compiling.partition import judge, partition, with_inferred_types
from onnx_bridge.conversion.serving.placing import place
from onnx_bridge.conversion.serving.trial import Trial
from onnx_bridge.core.countdown import Countdown
from onnx_bridge.core.delta_debug import bisect_first
from onnx_bridge.core.errors import InputError, OutOfMemory, RuntimeFailure, Step, WorkerTimeout
from onnx_bridge.core.files.digest import file_digest
from onnx_bridge.core.progress import Progress, silent
from onnx_bridge.core.values import Value
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.gpu.rehearse import rehearsal
from onnx_bridge.migraphx.rehearsal.depth import Rehearsal
from onnx_bridge.migraphx.targets import resolve_target
from onnx_bridge.model import io as models
from onnx_bridge.parity.bisect.bisection import Component, Culprit, Fault
from onnx_bridge.parity.bisect.first_divergence import first_divergence
from onnx_bridge.parity.bisect.kernel_fault import KernelFault, kernel_of
from onnx_bridge.parity.bisect.node_localizer import NodeLocalizer
from onnx_bridge.parity.bisect.pass_applications import PassApplications
from onnx_bridge.parity.reference_runs import run_samples, samples_for
from onnx_bridge.parity.submodels.submodels import RunCounts, Submodel, SubmodelExtractor
from onnx_bridge.parity.symptoms.session_detector import SessionDetector, SessionDevice
from onnx_bridge.parity.symptoms.symptom import Symptom, SymptomKind, worse
from onnx_bridge.parity.symptoms.symptom_detector import MigraphxDetector, SymptomDetector, first_group
from onnx_bridge.provider import provider as providers
from onnx_bridge.reference.comparison.compare import compare
from onnx_bridge.reference.comparison.inside import InsideModel
from onnx_bridge.reference.comparison.judge import Judge
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests.parity import LowPrecision, ParityRequest
from onnx_bridge.requests.request import ModelSource
from onnx_bridge.samples import files
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.inputs import Sample
from onnx_bridge.samples.suitable import frozen_values, suitable
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from passes.core.text import counted
from passes.graphs.quantization import is_quantized
from passes.graphs.scopes import Scope, name_nodes
from passes.isolation.failure import NativeFailure
from passes.probing.partition import Side, plan
from passes.shapes.inference import infer


class FaultLocalizer:
    """A model, its samples, and the reference's outputs. Each component has a method that returns its fault, or None.

    Attributes:
        rehearsal: the rehearsal of the gpu target that is asked for, if any.
        session_provider: ONNX Runtime's provider, if the model is for it.
        samples: all inputs, frozen ones included.
        truth: the reference's outputs of each sample.
        applications: the cleaning.
        runs: the counts of runs by component.
        undetermined: why outputs that differed are no fault (`onnx_bridge.reference.comparison.judge`).
    """

    def __init__(
        self,
        model: ModelSource,
        request: ParityRequest,
        *,
        reference: ModelSource | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Clean the model, which is not modified, and run ``reference``; None is the model itself."""
        self.runtime = runtimes.find(request.conversion.runtime)
        self.target = resolve_target(request.conversion.target, self.runtime)
        self.tolerances, self.limits = request.error_tolerances, request.conversion.limits
        self.rehearsal = rehearsal(request.rehearsed, self.runtime)
        self.session_provider = providers.shared(runtime=self.runtime) if request.conversion.application else None
        self.tell = progress or silent
        self.runs: dict[Component, RunCounts] = {}
        self.notes: list[str] = []
        self.undetermined: list[str] = []
        self._folder = tempfile.TemporaryDirectory(prefix="onnx-bridge-")  # of sessions, as long as this is used
        self.name = (model.graph.name or "the model") if isinstance(model, ir.Model) else Path(model).name
        self.model = _loaded(model)
        self._verdicts = ProbedRuntime(
            self.runtime,
            cache=request.conversion.cache,
            progress=progress,
            budget=request.conversion.probe_budget,
            compile_for=self.target,
            rehearsal=rehearsal(request.conversion.rehearsed, self.runtime),
            provider=self.session_provider,
        )
        self.tell("clean")
        self.applications = PassApplications(self.model, self._verdicts, request.conversion, progress)
        self.cleaned = self.applications.cleaned.model
        name_nodes(Scope(self.cleaned, self.cleaned.graph))
        self._reference = self.model if reference is None else _loaded(reference)
        session = Reference(self._reference)
        self.samples = self._samples(request, session)
        self._judge = Judge(self._reference, self.tolerances, session=session)
        given = [_inputs_of(self._reference, sample) for sample in self.samples]
        self.truth = run_samples(session, given, "reference", self.tell)

    def export(self, outputs: Sequence[Mapping[str, Value]]) -> Fault | None:
        """Return the fault of the exporter, if the model does not compute the expected outputs."""
        self.runs[Component.EXPORT] = RunCounts(reference=1)
        symptom = self._difference(self.truth, outputs)
        if symptom is None:
            return None
        return Fault(Component.EXPORT, symptom.kind, symptom.message, error=symptom.error, sample=symptom.sample)

    def whole_model(self) -> Fault | None:
        """Return the fault of the model against the reference model, with the first node that diverges by itself."""
        runs = self.runs[Component.MODEL] = RunCounts(reference=1)
        symptom = self._run_on_reference(self.model, runs)
        if symptom is None:
            return None
        nodes: list[ir.Node] = []
        if symptom.kind is SymptomKind.WRONG:
            self.tell("values that both models have")
            nodes, local = self._first_divergence(self._reference, self.model, runs)
            symptom = local or symptom
        culprits = tuple(Culprit.of(node, self.model) for node in nodes)
        return Fault(
            Component.MODEL, symptom.kind, symptom.message, nodes=culprits, error=symptom.error, sample=symptom.sample
        )

    def passes(self) -> Fault | None:
        """Return the fault of the first application of a pass after which the outputs differ from the model's."""
        runs = self.runs[Component.PASSES] = RunCounts(reference=0 if self.runs else 1)
        whole = self._run_on_reference(self.cleaned, runs)
        count = len(self.applications)
        if whole is None or not count:
            return None
        symptoms = {count: whole}
        countdown = Countdown(
            self.tell, counted(count, "application") + " of passes", (count - 1).bit_length(), step_name="run"
        )

        def fails(prefix: int) -> bool:
            symptom = self._run_on_reference(self.applications.model(prefix), runs)
            countdown.step()
            if symptom is not None:
                symptoms[prefix] = symptom
            return symptom is not None

        place = bisect_first(range(1, count + 1), fails)
        symptom, application = symptoms[place], self.applications.application(place)
        nodes = list(application.changed)
        if not application.number and len(nodes) > 1 and symptom.kind is SymptomKind.WRONG:
            before, after = (self.applications.model(count) for count in (place - 1, place))
            divergent = {node.name for node in self._first_divergence(before, after, runs)[0]}
            nodes = [node for node in nodes if node.name in divergent] or nodes
        return Fault(
            Component.PASSES,
            symptom.kind,
            symptom.message,
            nodes=tuple(Culprit.of(node, self.model) for node in nodes),
            error=symptom.error,
            sample=symptom.sample,
            pass_name=application.name,
            application=application.number,
            applications=application.count,
            before=application.before or application.removed,
            after=application.after,
        )

    def migraphx(
        self, *, host: bool, precision: LowPrecision | None = None, passes: Rehearsal | None = None
    ) -> Fault | None:
        """Return the fault of MIGraphX on the cleaned model, with the nodes that it gets wrong.

        Args:
            host: whether nodes that MIGraphX cannot run are left out.
            passes: a rehearsal of the gpu target.
        """
        component = Component.MIGRAPHX if precision is None else Component.PRECISION
        component = component if passes is None else Component.REHEARSAL
        runs = self.runs[component] = RunCounts()
        failure, localizer = self.node_localizer(runs, host=host, precision=precision, passes=passes)
        if localizer is None:
            if failure is None:
                return None
            return Fault(component, SymptomKind.REJECTED, str(failure), Step.PARSE, precision, isolated=False)
        return self._fault(component, localizer, precision, grouped=passes is not None)

    def provider(self, *, host: bool) -> Fault | None:
        """Return the fault of ONNX Runtime's provider.

        Args:
            host: whether the model is placed as a conversion places it; otherwise the provider gets all of it.
        """
        runs = self.runs[Component.PROVIDER] = RunCounts()
        localizer = self.session_localizer(runs, host=host)
        return None if localizer is None else self._fault(Component.PROVIDER, localizer)

    def _fault(
        self,
        component: Component,
        localizer: NodeLocalizer,
        precision: LowPrecision | None = None,
        *,
        grouped: bool = False,
    ) -> Fault:
        nodes, symptom = localizer.localize(self.tell)
        if symptom is None:
            nodes = list(dict.fromkeys((*nodes[:1], *nodes[-1:])))
        shown = symptom or localizer.symptom
        culprits = tuple(Culprit.of(node, self.model) for node in nodes)
        maker = next((maker for node in culprits if (maker := self.applications.maker(node.name))), ("", 0, 0))
        return Fault(
            component,
            shown.kind,
            shown.message,
            shown.step,
            precision,
            culprits,
            isolated=symptom is not None,
            error=shown.error,
            sample=shown.sample,
            pass_name=next((culprit.made_by for culprit in culprits if culprit.made_by), maker[0]),
            application=maker[1],
            applications=maker[2],
            group=self._group(localizer, nodes if symptom else None) if grouped else "",
            kernel=self._kernel(localizer, nodes if symptom else None, shown) if grouped else None,
        )

    def _group(self, localizer: NodeLocalizer, nodes: Sequence[ir.Node] | None) -> str:
        """Return the group of passes after which nodes, or without them the whole, are wrong."""
        submodels = localizer.whole if nodes is None else localizer.extractor.extract(nodes)
        self.tell("rehearsal: which group of passes")
        assert isinstance(localizer.detector, MigraphxDetector)
        return first_group(localizer.detector, submodels)

    def _kernel(
        self, localizer: NodeLocalizer, nodes: Sequence[ir.Node] | None, symptom: Symptom
    ) -> KernelFault | None:
        """Return the kernel that computes nodes, or without them the whole, wrongly, if kernels are emulated."""
        detector = localizer.detector
        assert isinstance(detector, MigraphxDetector)
        if symptom.outputs is None:
            return None
        self.tell("rehearsal: which kernel")
        for submodel in localizer.whole if nodes is None else localizer.extractor.extract(nodes):
            if symptom.sample not in submodel.numbers:
                continue
            inputs = submodel.inputs[submodel.numbers.index(symptom.sample)]
            if (fault := kernel_of(detector.device, submodel.model, inputs, detector.tolerances)) is not None:
                return fault
        return None

    def session_localizer(self, runs: RunCounts, *, host: bool) -> NodeLocalizer | None:
        """Run the cleaned model with ONNX Runtime's provider; return the search for the nodes at fault, if it is wrong.

        Args:
            runs: counts its runs.
            host: true if the host partitions are taken as right, as in `provider`.
        """
        assert self.session_provider is not None
        self.tell("the cleaned model with ONNX Runtime's provider")
        model, folder = self.cleaned, Path(self._folder.name)
        infer(model)
        if host:
            samples = suitable(self.model, {spec.name: spec.shape for spec in samplers.specs(model)})
            trial = Trial.of(model, self.session_provider, samples, folder)
            models.save(model, folder / "cleaned.onnx")
            model = place(model, self._verdicts, trial, [file_digest(folder / "cleaned.onnx")]).model
        extractor = SubmodelExtractor(model, [_inputs_of(model, sample) for sample in self.samples], runs)
        outputs = frozenset(str(value.name) for value in model.graph.outputs)
        device = SessionDevice(Trial.of(model, self.session_provider, (), folder), outputs)
        tolerances = self.tolerances.at_least("int8") if is_quantized(model) else self.tolerances
        return self._localizer(extractor, SessionDetector(device, tolerances, runs))

    def _localizer(
        self, extractor: SubmodelExtractor, detector: SymptomDetector, whole: list[Submodel] | None = None
    ) -> NodeLocalizer | None:
        """Return the search for the nodes at fault if something is wrong with ``whole`` (default: all of the model)."""
        if whole is None:
            outputs = [str(value.name) for value in extractor.model.graph.outputs]
            samples = list(extractor.samples)
            whole = [Submodel(extractor.model, samples, extractor.values(outputs), list(range(len(samples))))]
        symptom = detector.detect(whole)
        self.undetermined += detector.undetermined
        return None if symptom is None else NodeLocalizer(extractor, detector, symptom, whole)

    def node_localizer(
        self, runs: RunCounts, *, host: bool, precision: LowPrecision | None, passes: Rehearsal | None
    ) -> tuple[RuntimeFailure | None, NodeLocalizer | None]:
        """Run the cleaned model on MIGraphX; arguments are those of `migraphx`.

        Returns:
            The failure if not even ONNX Runtime can run a node that MIGraphX cannot; and the search for the nodes at
            fault, if something is wrong.
        """
        self.tell("the cleaned model on MIGraphX")
        model, samples = self.cleaned, [_inputs_of(self.cleaned, sample) for sample in self.samples]
        nodes: list[ir.Node] | None = None
        failure: RuntimeFailure | None = None
        infer(model)
        if host:
            nodes, failure = self._device_nodes()
        extractor = SubmodelExtractor(model, samples, runs, nodes)
        if not extractor.order:
            return failure, None
        tolerances = self.tolerances if precision is None else self.tolerances.at_least(precision)
        if passes is not None and is_quantized(model):
            tolerances = tolerances.at_least("int8")
        # this worker checks its heap, if the runtime can, so that a submodel that corrupts it is blamed itself
        device = Device(workers.shared_with_heap_checks(self.runtime), self.target, self.limits)
        if passes is not None:
            device = Device(passes.worker(checks_heap=True), passes.target, self.limits, passes)
        detector = MigraphxDetector(device, tolerances, runs, precision)
        localizer = self._localizer(extractor, detector, None if nodes is None else extractor.extract(extractor.order))
        if localizer is None:
            return failure, None
        # what only later host partitions take need not matter to the outputs
        return failure, localizer if nodes is None or localizer.matters(localizer.symptom) else None

    def _device_nodes(self) -> tuple[list[ir.Node] | None, RuntimeFailure | None]:
        """Return the nodes that MIGraphX is to run; None for all of the model."""
        with workers.shared(self.runtime).limited(self.limits):
            try:
                compiler = Compiler(with_inferred_types(self.cleaned), workers.shared(self.runtime), self.target)
                partitioned = partition(self.cleaned, self._verdicts, compiler=compiler)
                division, failure = partitioned.plan, partitioned.error
                self.notes += [note for note in partitioned.notes if note not in self.notes]
            except (OutOfMemory, WorkerTimeout):  # which the submodels will exceed as well
                division, failure = plan(self.cleaned, judge(self.cleaned, self._verdicts).reasons), None
        if division.wholly_on_device and len(division.partitions) == 1:
            return None, failure
        device = (partition for partition in division.partitions if partition.side is Side.DEVICE)
        return [node for partition in device for node in partition.nodes], failure

    def _run_on_reference(self, model: ir.Model, runs: RunCounts) -> Symptom | None:
        """Return the symptom of a model on ONNX Runtime."""
        runs.reference += 1
        try:
            session = Reference(model)
            outputs = [session.run(_inputs_of(model, sample)) for sample in self.samples]
            return self._difference(outputs, self.truth, model)
        except (InputError, NativeFailure) as error:
            return Symptom(SymptomKind.of(error), None, error.what)

    def _first_divergence(
        self, reference: ir.Model, model: ir.Model, runs: RunCounts
    ) -> tuple[list[ir.Node], Symptom | None]:
        first, second = (
            SubmodelExtractor(side, [_inputs_of(side, sample) for sample in self.samples], runs)
            for side in (reference, model)
        )
        return first_divergence(first, second, self.tolerances)

    def _difference(
        self,
        actual: Sequence[Mapping[str, Value]],
        expected: Sequence[Mapping[str, Value]],
        model: ir.Model | None = None,
    ) -> Symptom | None:
        """Return the symptom of the sample that differs most; of a model's outputs, those that differ are judged."""
        symptom: Symptom | None = None
        for number, (got, right) in enumerate(zip(actual, expected, strict=True)):
            compared = compare(got, right, self.tolerances)
            if not compared.passed and model is not None:
                sample = _inputs_of(self._reference, self.samples[number])
                inside = InsideModel(model, _inputs_of(model, self.samples[number]))
                compared = self._judge.judge(got, right, sample, inside)
                self.undetermined += filter(None, (output.undetermined for output in compared.outputs))
            if compared.differs:
                symptom = worse(symptom, Symptom.of_comparison(compared, number))
        return symptom

    def _samples(self, request: ParityRequest, session: Reference) -> list[Sample]:
        """Return samples in the shapes of the cleaned model, with the values of frozen inputs."""
        frozen = frozen_values(self.model, request.conversion.freeze)

        def run(sample: Sample) -> object:
            return session.run(_inputs_of(self._reference, {**sample, **frozen}))

        samples = samples_for(request, samplers.specs(self.cleaned), self.model, run)
        if not samples:
            raise InputError("no sample was given", where="inputs", hint="give one at least")
        self.notes += files.find_non_finite(samples)
        return [{**sample, **frozen} for sample in samples]


def _loaded(model: ModelSource) -> ir.Model:
    """Return the model in memory, each of its nodes with a name."""
    loaded = models.owned(model)
    name_nodes(Scope(loaded, loaded.graph))
    return loaded


def _inputs_of(model: ir.Model, sample: Sample) -> Sample:
    """Return the values of a sample that a model takes."""
    names = [value.name for value in model.graph.inputs]
    return {name: value for name, value in sample.items() if name in names}
