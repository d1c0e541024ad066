"""The verb ``bisect``: the first component between a model and MIGraphX that is at fault, and the nodes in it.

    expected outputs ─► (reference model ─►) model ─► pass applications ─► cleaned model ─► MIGraphX
        ─► the gpu target's passes, rehearsed ─► lower precision

The results of each component are compared with those of the one before it, and the first that differs is bisected:

- passes by their single applications, each prefix of which is a model that ONNX Runtime runs;
- MIGraphX by submodels of the cleaned model, fed with the reference's values
(`onnx_bridge.parity.submodels.submodels`).

Bisection finds a place where correct results become wrong, whatever else is wrong. Crashes, rejections and timeouts are
searched for like wrong numbers, and only the same kind of failure counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import onnx_ir as ir

from onnx_bridge.bundle.bundle import Bundle, is_bundle
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.values import Array
from onnx_bridge.migraphx.targets import target_beside
from onnx_bridge.parity.bisect.bisection import Bisection, Component, Fault
from onnx_bridge.parity.bisect.bundle_request import source_request
from onnx_bridge.parity.bisect.expected_outputs import read_expected_outputs
from onnx_bridge.parity.bisect.localizer import FaultLocalizer
from onnx_bridge.parity.reference_runs import versions
from onnx_bridge.parity.symptoms.symptom import SymptomKind
from onnx_bridge.requests.cleaning import as_json, as_shapes
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.parity import BisectRequest, ExpectedOutputs, LowPrecision, ModelSource
from onnx_bridge.samples.files import SampleSource
from onnx_bridge.torch.export.export import export
from onnx_bridge.torch.export.exported import ExportFailed
from onnx_bridge.torch.modules import factories
from passes.isolation.limits import limited


def bisect(  # noqa: PLR0913
    model: ModelSource,
    *,
    reference: ModelSource | None = None,
    inputs: SampleSource | None = None,
    outputs: ExpectedOutputs | None = None,
    seed: int = 0,
    samples: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    precision: LowPrecision | None = None,
    as_target: Literal["gpu"] | None = None,
    target: str = "auto",
    pipeline: str = "default",
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    freeze: Mapping[str, Array | str] | None = None,
    host: bool = True,
    cache: bool = True,
    timeout: float | None = None,
    memory: float | None = None,
    progress: Progress | None = None,
) -> Bisection:
    """Find the first component that makes a model wrong: exporter, pass application, MIGraphX, or its precision.

    Args:
        model: an ONNX file, or a model in memory, which is not modified; or a bundle, for the model that it was
            converted from, with the settings of that conversion; or ``file.py:factory``, which gives a PyTorch module
            and its arguments: it is exported, and PyTorch's outputs are the expected ones.
        reference: a correct model, if ``model`` was made from it by other means; values of the same name are taken
            to mean the same.
        inputs: samples, or where to read them from, as for `onnx_bridge.check`; default: seeded samples that suit the
            model.
        outputs: the expected outputs of each sample (of the PyTorch module, for example): arrays by name, or an
            ``.npz`` of them, in which several samples are stacked along a first axis.
        seed: of generated samples.
        samples: how many to generate (default: 1), or to take of those given (default: all).
        rtol: relative tolerance of floats, as for `onnx_bridge.check`.
        atol: absolute tolerance of floats, likewise.
        precision: also compare what MIGraphX computes in ``fp16``, ``bf16``, ``int8`` or ``fp8``, calibrated on the
            samples.
        as_target: ``gpu`` also rehearses the gpu target on ``ref``, and names the group of its passes that is at fault.
        target: as for `onnx_bridge.convert`.
        pipeline: likewise.
        dims: likewise.
        shapes: likewise.
        freeze: likewise; given inputs are without the frozen ones.
        host: whether nodes that MIGraphX cannot run are left to ONNX Runtime; if not, MIGraphX is given all of the
            cleaned model.
        cache: as for `onnx_bridge.convert`.
        timeout: limit in seconds for each of MIGraphX's steps.
        memory: limit in GiB for MIGraphX's process.
        progress: called with each step.

    Raises:
        InputError: the model, the inputs or the outputs are wrong, or ONNX Runtime cannot run the model, so that there
            is no reference; or the model that a bundle was converted from is gone or was changed.
        RuntimeFailure: there is no MIGraphX.
    """
    conversion = ConvertRequest(
        target=target_beside(as_target, target),
        pipeline=pipeline,
        dims=dict(dims or {}),
        shapes=as_shapes(shapes),
        freeze=as_json(freeze),
        host=host,
        cache=cache,
        timeout=timeout,
        memory=memory,
    )
    request = BisectRequest(
        inputs=inputs,
        seed=seed,
        samples=samples,
        rtol=rtol,
        atol=atol,
        conversion=conversion,
        reference=reference,
        outputs=outputs,
        precision=precision,
        as_target=as_target,
    )
    return run(model, request, progress)


def run(model: ModelSource, request: BisectRequest, progress: Progress | None = None) -> Bisection:
    """Bisect a model as a request says; errors are those of `bisect`."""
    with limited(request.limits):
        return _run(model, request, progress)


def _run(model: ModelSource, request: BisectRequest, progress: Progress | None) -> Bisection:
    name: str | None = None
    notes: tuple[str, ...] = ()
    if factories.is_factory(model):
        if request.reference is not None or request.outputs is not None or request.inputs is not None:
            what = "a module brings its inputs, and its outputs are the expected ones"
            raise InputError(what, where=str(model), hint="leave --inputs, --outputs and --reference out")
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
    found = _first_fault(localizer, request)
    return Bisection(
        model=name or localizer.name,
        fault=found,
        runs=localizer.runs,
        samples=len(localizer.samples),
        seed=request.generated_seed,
        versions=versions(localizer.runtime.version),
        notes=(*notes, *localizer.notes),
        undetermined=next(iter(localizer.undetermined), None) if found is None else None,
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
    if fault is None and request.precision is not None:
        fault = localizer.migraphx(host=host, precision=request.precision)
    return fault
