"""The verb ``reduce``: the smallest part of a model, with inputs, that still shows what is wrong on MIGraphX."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import onnx_ir as ir

from onnx_bridge.bundle.bundle import Bundle, is_bundle
from onnx_bridge.core.delta_debug import ddmin
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.schema import JsonRecord, to_json
from onnx_bridge.core.values import flat
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.migraphx.gpu.compiler import GpuCompiler
from onnx_bridge.parity.bisect.bisection import Component
from onnx_bridge.parity.bisect.bundle_request import cleaned_request
from onnx_bridge.parity.bisect.kernel_fault import kernel_of
from onnx_bridge.parity.bisect.localizer import FaultLocalizer
from onnx_bridge.parity.bisect.node_localizer import NodeLocalizer
from onnx_bridge.parity.reduce.minimizer import Minimizer, Reproduction, without_metadata
from onnx_bridge.parity.reduce.reproduction import PROVIDER, Environment, title, write
from onnx_bridge.parity.submodels.submodels import RunCounts, Submodel
from onnx_bridge.parity.symptoms.symptom import Symptom, SymptomKind
from onnx_bridge.parity.symptoms.symptom_detector import MigraphxDetector, first_group
from onnx_bridge.requests.parity import ReduceRequest
from onnx_bridge.requests.request import ModelSource
from passes.core.text import counted
from passes.isolation.limits import limited

if TYPE_CHECKING:
    from onnx_bridge.requests.keywords import ReduceOptions


@dataclass(frozen=True)
class Reduction(JsonRecord):
    """The result of `onnx_bridge.reduce`.

    Attributes:
        model: the name of the model.
        path: the folder of the reproduction; None if nothing is wrong.
        reproduction: the smallest model with the symptom; None if nothing is wrong.
        nodes_before: how many nodes the cleaned model has.
        runs: how often ONNX Runtime and MIGraphX were run.
        notes: sentences for the user.
        group: the group of the gpu target's passes at fault, in a rehearsal.
        runtime: what the model was run on.
    """

    in_json = ("summary",)

    model: str
    path: Path | None
    reproduction: Reproduction | None = field(repr=False)
    nodes_before: int
    runs: RunCounts
    notes: Sequence[str] = ()
    group: str = ""
    runtime: str = "MIGraphX"

    @property
    def summary(self) -> str:
        if self.reproduction is None:
            return f"{self.model}: nothing diverges on {self.runtime}, so there is nothing to reduce"
        after = sum(1 for _ in self.reproduction.model.graph)
        message = " ".join(self.reproduction.symptom.message.split())
        how = f"rehearsed as gpu, after {self.group}, " if self.group else ""
        what = title(self.reproduction, self.runtime)
        return f"{self.model}: {how}{what}: {self.nodes_before} → {counted(after, 'node')}; {message}"

    def to_json(self) -> dict[str, Any]:
        symptom = self.reproduction and self.reproduction.symptom
        about = {name: to_json(getattr(symptom, name, None)) for name in ("kind", "step", "message")}
        nodes = [] if self.reproduction is None else self.reproduction.model.graph
        return super().to_json() | about | {"nodes": [f"{node.op_type} {node.name}" for node in nodes]}


def reduce(
    model: ModelSource,
    out: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Unpack[ReduceOptions],
) -> Reduction:
    """Reduce a model to what is wrong on MIGraphX, and write that as a reproduction that does not need this project.

    MIGraphX is given all of the cleaned model, whatever `onnx_bridge.convert` would leave to ONNX Runtime; with the
    pipeline ``none`` that is the model as it is. ONNX Runtime's outputs of it are the expected ones. All samples are
    tried at each step; one that shows the symptom is kept. If the gpu target is rehearsed, the reproduction is a C++
    program, as Python has no way to run its passes.

    Args:
        model: an ONNX file, or a model in memory, which is not modified; or a bundle, for the cleaned model in it.
        out: the folder to write to: ``model.onnx``, ``inputs.npz``, ``expected.npz``, ``README.md``.
        progress: called with each step.
        options: the fields of `onnx_bridge.requests.parity.ReduceRequest`.

    Returns:
        The reduction; without a reproduction if nothing is wrong.

    Raises:
        InputError: the model or the inputs are wrong, ONNX Runtime cannot run the model, or ``out`` cannot be written.
        RuntimeFailure: there is no MIGraphX.
    """
    return run(model, Path(out), ReduceRequest.of(options), progress)


def run(model: ModelSource, out: Path, request: ReduceRequest, progress: Progress | None = None) -> Reduction:
    """Reduce a model as a request says; errors are those of `reduce`."""
    with limited(request.conversion.limits):
        return _run(model, out, request, progress)


def _run(model: ModelSource, out: Path, request: ReduceRequest, progress: Progress | None) -> Reduction:
    if out.exists() and not out.is_dir():
        raise InputError("this is a file already", where=str(out), hint="name a folder")
    if not isinstance(model, ir.Model) and is_bundle(model):
        model, request = cleaned_request(Bundle(model), request)
    localizer = FaultLocalizer(model, request, progress=progress)
    runs = localizer.runs[Component.MIGRAPHX] = RunCounts(reference=1)
    before = localizer.cleaned.graph.num_nodes()
    passes = localizer.rehearsal
    provider = localizer.session_provider
    runtime = "MIGraphX" if provider is None else PROVIDER
    if provider is not None:
        nodes = localizer.session_localizer(runs, host=False)
    else:
        _, nodes = localizer.node_localizer(runs, host=False, precision=request.precision, passes=passes)
    if nodes is None:
        return Reduction(localizer.name, None, None, before, runs, tuple(localizer.notes), runtime=runtime)
    minimizer = Minimizer(nodes.detector, runs, localizer.tell)
    minimal = without_metadata(minimizer.minimize(_fewest_nodes(nodes, localizer.tell)))
    environment = Environment(localizer.target, request.precision, localizer.runtime.version)
    reproduction, notes = minimal, list(localizer.notes)
    if isinstance(nodes.detector, MigraphxDetector):
        localizer.tell("the reproduction in a process of its own")
        device = nodes.detector.device
        worker = workers.shared(device.worker.runtime) if passes is None else passes.worker()
        unchecked = replace(device, worker=worker)
        plain = Minimizer(replace(nodes.detector, device=unchecked), runs, localizer.tell)
        without_heap_checks = plain.attempt(minimal.model, {**minimal.sample}, minimal.symptom)
        reproduction = without_heap_checks or minimal
        environment = replace(environment, checks_heap=without_heap_checks is None)
    if provider is not None:
        target = "ref behind a stub of HIP" if provider.stubbed else "gpu"
        environment = replace(environment, target=target, provider=provider.environment.version)
        notes = [provider.note, *notes]
    if isinstance(passes, GpuCompiler) and isinstance(nodes.detector, MigraphxDetector):
        environment = replace(environment, target="gpu")
        wrong = minimal.symptom.kind is SymptomKind.WRONG
        kernel = (
            kernel_of(nodes.detector.device, minimal.model, minimal.sample, nodes.detector.tolerances)
            if wrong
            else None
        )
        notes = [passes.note, *notes, *([] if kernel is None else [str(kernel)])]
    elif passes is not None and isinstance(nodes.detector, MigraphxDetector):
        whole = Submodel(minimal.model, [{**minimal.sample}], [{**minimal.expected}], [0])
        group = first_group(nodes.detector, [whole])
        environment = replace(environment, groups=passes.groups[: passes.groups.index(group) + 1])
        notes = [passes.note, *notes]
    write(reproduction, out, environment)
    return Reduction(localizer.name, out, reproduction, before, runs, tuple(notes), environment.group, runtime)


def _fewest_nodes(localizer: NodeLocalizer, tell: Progress) -> Reproduction:
    """Return the fewest nodes that show the symptom, with its first sample; the whole if no submodel shows it."""
    nodes, symptom = localizer.localize(tell)
    if symptom is None:
        return _reproduction(localizer.whole, localizer.symptom)

    def shows(fewer: list[ir.Node]) -> bool:
        tell(f"{len(fewer)} of {counted(len(nodes), 'node')}")
        return isinstance(localizer.shows(fewer), Symptom)

    kept = ddmin(nodes, shows)
    shown = localizer.shows(kept)
    assert isinstance(shown, Symptom)
    return _reproduction(localizer.extractor.extract(kept), shown)


def _reproduction(submodels: Sequence[Submodel], symptom: Symptom) -> Reproduction:
    for submodel in submodels:
        for number, sample, expected in zip(submodel.numbers, submodel.inputs, submodel.expected, strict=True):
            if symptom.sample in (None, number):
                return Reproduction(submodel.model, flat(sample), flat(expected), symptom)
    raise AssertionError("a symptom is of one of the samples")
