"""The verb ``bisect``: the first component between a model and MIGraphX that is at fault, and the nodes in it.

    expected outputs ─► (reference model ─►) model ─► pass applications ─► cleaned model ─► MIGraphX
        ─► the gpu target's passes, rehearsed ─► ONNX Runtime's provider ─► lower precision

The results of each component are compared with those of the one before it, and the first that differs is bisected:

- passes by their single applications, each prefix of which is a model that ONNX Runtime runs;
- MIGraphX by submodels of the cleaned model, fed with the reference's values
(`onnx_bridge.parity.submodels.submodels`).

Bisection finds a place where correct results become wrong, whatever else is wrong. Crashes, rejections and timeouts are
searched for like wrong numbers, and only the same kind of failure counts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

import onnx_ir as ir

from onnx_bridge.bundle.bundle import Bundle, is_bundle
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress
from onnx_bridge.parity.bisect.bisection import Bisection, Component, Fault
from onnx_bridge.parity.bisect.bundle_request import source_request
from onnx_bridge.parity.bisect.expected_outputs import read_expected_outputs
from onnx_bridge.parity.bisect.localizer import FaultLocalizer
from onnx_bridge.parity.reference_runs import versions
from onnx_bridge.parity.symptoms.symptom import SymptomKind
from onnx_bridge.requests.parity import BisectRequest
from onnx_bridge.requests.request import ModelSource
from onnx_bridge.torch.export.export import export
from onnx_bridge.torch.export.exported import ExportFailed
from onnx_bridge.torch.modules import factories
from passes.isolation.limits import limited

if TYPE_CHECKING:
    from onnx_bridge.requests.keywords import BisectOptions


def bisect(model: ModelSource, *, progress: Progress | None = None, **options: Unpack[BisectOptions]) -> Bisection:
    """Find the first component that makes a model wrong: exporter, pass application, MIGraphX, or its precision.

    Args:
        model: an ONNX file, or a model in memory, which is not modified; or a bundle, for the model that it was
            converted from, with the settings of that conversion; or ``file.py:factory``, which gives a PyTorch module
            and its arguments: it is exported, and PyTorch's outputs are the expected ones.
        progress: called with each step.
        options: the fields of `onnx_bridge.requests.parity.BisectRequest`. Values of a ``reference`` model of the same
            name are taken to mean the same; several samples of ``outputs`` are stacked along a first axis. Without
            ``host``, MIGraphX is given all of the cleaned model.

    Raises:
        InputError: the model, the inputs or the outputs are wrong, or ONNX Runtime cannot run the model, so that there
            is no reference; or the model that a bundle was converted from is gone or was changed.
        RuntimeFailure: there is no MIGraphX.
    """
    return run(model, BisectRequest.of(options), progress)


def run(model: ModelSource, request: BisectRequest, progress: Progress | None = None) -> Bisection:
    """Bisect a model as a request says; errors are those of `bisect`."""
    with limited(request.conversion.limits):
        return _run(model, request, progress)


def _run(model: ModelSource, request: BisectRequest, progress: Progress | None) -> Bisection:
    name: str | None = None
    notes: tuple[str, ...] = ()
    if factories.is_factory(model):
        if request.reference is not None or request.outputs is not None or request.inputs is not None:
            what = "a module brings its inputs, and its outputs are the expected ones"
            raise InputError(what, where=str(model), hint="leave `inputs`, `outputs` and `reference` out")
        name = str(model)
        module, arguments = factories.load_with_arguments(name)
        try:
            exported = export(module, *arguments)
        except ExportFailed as error:
            return Bisection(name, Fault(Component.EXPORT, SymptomKind.REJECTED, error.what), samples=0)
        model, notes = exported.model, exported.notes
        request = replace(request, inputs=list(exported.samples), outputs=exported.expected)
    elif not isinstance(model, ir.Model) and is_bundle(model):
        model, request = source_request(Bundle(model), request)
    localizer = FaultLocalizer(model, request, reference=request.reference, progress=progress)
    fault = _first_fault(localizer, request)
    return Bisection(
        model=name or localizer.name,
        fault=fault,
        runs=localizer.runs,
        samples=len(localizer.samples),
        seed=request.generated_seed,
        versions=versions(localizer.runtime.version),
        notes=(*notes, *localizer.notes, *([localizer.session_provider.note] if localizer.session_provider else [])),
        undetermined=next(iter(localizer.undetermined), None) if fault is None else None,
    )


def _first_fault(localizer: FaultLocalizer, request: BisectRequest) -> Fault | None:
    """Return the fault of the first component that has one; later components are not run."""
    fault = None
    host = request.conversion.host
    if request.outputs is not None:
        fault = localizer.export(read_expected_outputs(request.outputs, localizer.truth))
    if fault is None and request.reference is not None:
        fault = localizer.whole_model()
    fault = fault or localizer.passes() or localizer.migraphx(host=host)
    if fault is None and localizer.rehearsal is not None:
        fault = localizer.migraphx(host=host, passes=localizer.rehearsal)
    if fault is None and localizer.session_provider is not None:
        fault = localizer.provider(host=host)
    if fault is None and request.precision is not None:
        fault = localizer.migraphx(host=host, precision=request.precision)
    return fault
