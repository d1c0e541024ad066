"""A model on its way to MIGraphX, leg by leg: what `bisect` and `reduce` look for faults in."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, Unpack

import numpy as np
import onnx_ir as ir

from onnx_bridge.conversion.partition import completed, judged, partition
from onnx_bridge.conversion.request import as_json
from onnx_bridge.core.delta_debug import bisect_first
from onnx_bridge.core.errors import InputError, OutOfMemory, RuntimeFailure, WorkerTimeout
from onnx_bridge.core.values import Array, Value
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.limits import Limits
from onnx_bridge.model import io as models
from onnx_bridge.parity.bisect.applications import Applications
from onnx_bridge.parity.bisect.bisection import Culprit, Finding, Leg
from onnx_bridge.parity.bisect.first_difference import differing
from onnx_bridge.parity.bisect.narrow import Narrowing
from onnx_bridge.parity.pieces import Piece, Pieces, Runs
from onnx_bridge.parity.trial import Device, Kind, Precision, Symptom, reasons
from onnx_bridge.reference.compare import compare
from onnx_bridge.reference.reference import Reference
from onnx_bridge.reference.tolerances import Part, Tolerances
from onnx_bridge.samples import files
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.files import Given
from onnx_bridge.samples.inputs import Sample
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from passes.core.base import Context
from passes.core.graphs import Scope, name_nodes
from passes.core.inference import infer
from passes.specialize.freeze_inputs import FreezeInputs
from passes.target.partition import Side, plan

Model = str | os.PathLike[str] | ir.Model


class How(TypedDict, total=False):
    """How a model goes to MIGraphX, and what it is fed; what is left out has its default.

    Attributes:
        inputs: samples, or where to read them from, as for `onnx_bridge.check`; default: seeded samples that suit the
            model.
        seed: of generated samples; 0.
        samples: how many to generate (1), or to take of those given (all).
        rtol: relative tolerance of floats, as for `onnx_bridge.check`.
        atol: absolute tolerance of floats, likewise.
        target: what MIGraphX compiles for: ``gpu``, ``ref``, or ``auto``.
        pipeline: the passes, as for `onnx_bridge.convert`; ``default``.
        dims: likewise.
        input_shapes: whole shapes of inputs by name.
        freeze: inputs that become constant; given inputs are without them.
        cache: whether to use what MIGraphX said of nodes in earlier runs; True.
        timeout: most seconds for each of MIGraphX's steps; what takes longer is taken not to end.
        memory: most GiB that MIGraphX's process may take.
        progress: told what is being tried.
    """

    inputs: Given | None
    seed: int
    samples: int | None
    rtol: float | None
    atol: float | None
    target: str
    pipeline: str
    dims: Mapping[str, int] | None
    input_shapes: Mapping[str, Sequence[int]] | None
    freeze: Mapping[str, Array | str] | None
    cache: bool
    timeout: float | None
    memory: float | None
    progress: Callable[[str], None] | None


class Search:
    """A model, its samples, and what is right; each leg is a method, which says what is wrong with it, or None.

    Attributes:
        name: of the model, for people.
        samples: what is fed, with frozen inputs.
        truth: what the reference gives for each sample.
        applications: the cleaning.
        runs: counts, by leg.
        notes: what people should know, in sentences.
    """

    def __init__(
        self, model: Model, *, reference: Model | None = None, preset: str | None = None, **how: Unpack[How]
    ) -> None:
        """Clean the model, and compute what is right.

        Args:
            model: an ONNX file, or a model in memory, which is left as it is.
            reference: another model that is right, as for `onnx_bridge.bisect`.
            preset: the precision that the passes make the model compute in, which tolerances go by; None is its own.
            how: see `How`.
        """
        progress, cache = how.get("progress"), how.get("cache", True)
        seed, samples, freeze = how.get("seed", 0), how.get("samples"), how.get("freeze")
        self.runtime = runtimes.find(None)
        self.target = runtimes.resolve_target(how.get("target", "auto"), self.runtime)
        self.tolerances = Tolerances(preset, Part(how.get("rtol"), how.get("atol")))
        self.limits = Limits.of(how.get("timeout"), how.get("memory"))
        self.tell = progress or (lambda _stage: None)
        self.runs: dict[Leg, Runs] = {}
        self.notes: list[str] = []
        self.name = (model.graph.name or "the model") if isinstance(model, ir.Model) else Path(model).name
        self.model = _loaded(model)
        self._verdicts = ProbedRuntime(self.runtime, cache=cache, progress=progress, compile_for=self.target)
        self.tell("clean")
        self.applications = Applications(
            self.model,
            self._verdicts,
            pipeline=how.get("pipeline", "default"),
            dims=how.get("dims"),
            shapes=how.get("input_shapes"),
            freeze=freeze,
            progress=progress,
        )
        self.cleaned = self.applications.cleaned.model
        name_nodes(Scope(self.cleaned, self.cleaned.graph))
        self._reference = self.model if reference is None else _loaded(reference)
        self.samples = self._samples(how.get("inputs"), seed, samples, as_json(freeze or {}))
        self.tell("the reference on ONNX Runtime")
        session = Reference(self._reference)
        self.truth = [session.run(_fed(self._reference, sample)) for sample in self.samples]

    def export(self, outputs: Sequence[Mapping[str, Value]]) -> Finding | None:
        """Whether the model gives the outputs that were given for it."""
        self.runs[Leg.EXPORT] = Runs(reference=1)
        found = self._differs(self.truth, outputs)
        if found is None:
            return None
        return Finding(Leg.EXPORT, found.kind, found.message, error=found.error, sample=found.sample)

    def whole_model(self) -> Finding | None:
        """Whether the model gives what the reference gives, and if not, the first node that differs by itself."""
        runs = self.runs[Leg.MODEL] = Runs(reference=1)
        found = self._on_reference(self.model, runs)
        if found is None:
            return None
        nodes: list[ir.Node] = []
        if found.kind is Kind.WRONG:
            self.tell("values that both models have")
            reference = Pieces(self._reference, [_fed(self._reference, each) for each in self.samples], runs)
            model = Pieces(self.model, [_fed(self.model, each) for each in self.samples], runs)
            nodes, local = differing(reference, model, self.tolerances)
            found = local or found
        culprits = tuple(Culprit.of(node, self.model) for node in nodes)
        return Finding(Leg.MODEL, found.kind, found.message, nodes=culprits, error=found.error, sample=found.sample)

    def passes(self) -> Finding | None:
        """Whether the cleaned model gives what the model gives, and if not, the application of a pass that broke it."""
        runs = self.runs[Leg.PASSES] = Runs(reference=0 if self.runs else 1)
        whole = self._on_reference(self.cleaned, runs)
        count = len(self.applications)
        if whole is None or not count:
            return None
        symptoms = {count: whole}

        def fails(prefix: int) -> bool:
            self.tell(f"passes: the first {prefix} of {count} applications")
            found = self._on_reference(self.applications.model(prefix), runs)
            if found is not None:
                symptoms[prefix] = found
            return found is not None

        place = bisect_first(range(1, count + 1), fails)
        found, application = symptoms[place], self.applications.application(place)
        nodes = list(application.changed)
        if not application.number and len(nodes) > 1 and found.kind is Kind.WRONG:
            sides = [self.applications.model(each) for each in (place - 1, place)]
            before, after = (Pieces(each, [_fed(each, one) for one in self.samples], runs) for each in sides)
            guilty = {node.name for node in differing(before, after, self.tolerances)[0]}
            nodes = [node for node in nodes if node.name in guilty] or nodes
        return Finding(
            Leg.PASSES,
            found.kind,
            found.message,
            nodes=tuple(Culprit.of(node, self.model) for node in nodes),
            error=found.error,
            sample=found.sample,
            pass_name=application.name,
            application=application.number,
            applications=application.count,
            before=application.before or application.removed,
            after=application.after,
        )

    def migraphx(self, *, host: bool, precision: Precision | None = None) -> Finding | None:
        """Whether MIGraphX computes what the cleaned model says, and if not, the nodes that it gets wrong."""
        leg = Leg.MIGRAPHX if precision is None else Leg.PRECISION
        runs = self.runs[leg] = Runs()
        failure, narrowing = self.narrowing(runs, host=host, precision=precision)
        if narrowing is None:
            if failure is None:
                return None
            return Finding(leg, Kind.REJECTED, str(failure), "parse", precision or "", alone=False)
        self.tell(f"{leg.value}: which nodes")
        nodes, found = narrowing.narrow()
        if found is None:
            nodes = list(dict.fromkeys((*nodes[:1], *nodes[-1:])))
        shown = found or narrowing.symptom
        culprits = tuple(Culprit.of(node, self.model) for node in nodes)
        made = next((made for each in culprits if (made := self.applications.maker(each.name))), ("", 0, 0))
        return Finding(
            leg,
            shown.kind,
            shown.message,
            shown.step,
            precision or "",
            culprits,
            found is not None,
            shown.error,
            shown.sample,
            next((each.made_by for each in culprits if each.made_by), made[0]),
            *made[1:],
        )

    def narrowing(
        self, runs: Runs, *, host: bool, precision: Precision | None
    ) -> tuple[RuntimeFailure | None, Narrowing | None]:
        """Give the cleaned model to MIGraphX.

        Returns:
            Where something is wrong with it, the search for what that is. Or why it cannot be run at all, by ONNX
            Runtime neither.
        """
        self.tell("the cleaned model on MIGraphX")
        model, samples = self.cleaned, [_fed(self.cleaned, sample) for sample in self.samples]
        nodes: list[ir.Node] | None = None
        failure: RuntimeFailure | None = None
        infer(model)
        if host:
            nodes, failure = self._on_device()
        pieces = Pieces(model, samples, runs, nodes)
        if not pieces.order:
            return failure, None
        tolerances = self.tolerances if precision is None else self.tolerances.at_least(precision)
        device = Device(self.runtime, self.target, self.limits, tolerances, runs, precision)
        outputs = [str(value.name) for value in model.graph.outputs]
        whole = [Piece(model, samples, pieces.values(outputs), list(range(len(samples))))]
        if nodes is not None:
            whole = pieces.of(pieces.order)
        symptom = device.symptom(whole)
        if symptom is None:
            return failure, None
        narrowing = Narrowing(pieces, device, symptom, whole)
        # what only later partitions on the host take need not matter to the outputs
        return failure, narrowing if nodes is None or narrowing.matters(symptom) else None

    def _on_device(self) -> tuple[list[ir.Node] | None, RuntimeFailure | None]:
        """The nodes that MIGraphX is to run; None for all of the model."""
        with workers.shared(self.runtime).limited(self.limits):
            try:
                partitioned = partition(completed(self.cleaned), self._verdicts, compile_for=self.target)
                found, failure = partitioned.plan, partitioned.error
                self.notes += [note for note in partitioned.notes if note not in self.notes]
            except (OutOfMemory, WorkerTimeout):  # which the pieces will run into as well
                found, failure = plan(self.cleaned, judged(self.cleaned, self._verdicts)), None
        if found.wholly_on_device and len(found.partitions) == 1:
            return None, failure
        return [node for each in found.partitions if each.side is Side.DEVICE for node in each.nodes], failure

    def _on_reference(self, model: ir.Model, runs: Runs) -> Symptom | None:
        """What is wrong with a model on ONNX Runtime."""
        runs.reference += 1
        try:
            session = Reference(model)
            return self._differs([session.run(_fed(model, sample)) for sample in self.samples], self.truth)
        except InputError as error:
            return Symptom(Kind.REJECTED, "", error.what)

    def _differs(
        self, actual: Sequence[Mapping[str, Value]], expected: Sequence[Mapping[str, Value]]
    ) -> Symptom | None:
        """The sample that differs most."""
        found: Symptom | None = None
        for number, (got, right) in enumerate(zip(actual, expected, strict=True)):
            compared = compare(got, right, self.tolerances)
            if not compared.passed:
                each = Symptom(Kind.WRONG, "", reasons(compared), number, compared)
                found = each if found is None or (each.error or 0) > (found.error or 0) else found
        return found

    def _samples(self, given: Given | None, seed: int, count: int | None, frozen: Mapping[str, str]) -> list[Sample]:
        """Samples in the shapes that the cleaned model takes, with the values of frozen inputs."""
        specs = samplers.specs(self.cleaned)
        if given is None:
            names = {spec.name for spec in specs}
            shapes = {spec.name: spec.shape for spec in specs if spec.shape is not None}
            wanted = [spec for spec in samplers.specs(self.model) if spec.name in names]
            wanted, dims = samplers.fixed(wanted, shapes)
            found = samplers.generate(wanted, seed=seed, samples=1 if count is None else count, dims=dims)
        else:
            found = files.given(given, specs, count=count)
        if not found:
            raise InputError("there is no sample", where="inputs", hint="give one at least")
        self.notes += files.doubts(found)
        constants: Sample = {}
        if frozen:
            model = self.model.clone()
            FreezeInputs(values=frozen).run(model, Context())
            tensors = {name: model.graph.initializers[name].const_value for name in frozen}
            constants = {name: np.asarray(tensor.numpy()) for name, tensor in tensors.items() if tensor is not None}
        return [{**sample, **constants} for sample in found]


def _loaded(model: Model) -> ir.Model:
    """The model in memory, each of its nodes with a name."""
    loaded = model.clone() if isinstance(model, ir.Model) else models.load(model)
    name_nodes(Scope(loaded, loaded.graph))
    return loaded


def _fed(model: ir.Model, sample: Sample) -> Sample:
    """What of a sample a model takes; what it takes besides is missed by ONNX Runtime."""
    names = [value.name for value in model.graph.inputs]
    return {name: value for name, value in sample.items() if name in names}
