"""The baseline of a check: the samples and the reference's outputs, and the comparison of other outputs with them."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.bundle import Bundle, is_bundle
from onnx_bridge.bundle.device import Device
from onnx_bridge.bundle.intermediate_values import InsideProgram
from onnx_bridge.bundle.manifest.compatibility import require_own_settings
from onnx_bridge.conversion import convert as conversion
from onnx_bridge.conversion.precision.computed_precision import computed_precision
from onnx_bridge.conversion.precision.precision import BY_PASS, TOLERANCES
from onnx_bridge.core.errors import BridgeError, InputError
from onnx_bridge.core.files.kept_runs import KeptRuns
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.values import Value, flat
from onnx_bridge.model import io as models
from onnx_bridge.parity.bisect.bisection import Bisection
from onnx_bridge.parity.bisect.localizer import FaultLocalizer
from onnx_bridge.parity.checking.error_histogram import Sketch, sketch_into
from onnx_bridge.parity.checking.evidence import Evidence, Network
from onnx_bridge.parity.checking.report import REFERENCE, CheckReport, Leg
from onnx_bridge.parity.failure import Failure
from onnx_bridge.parity.layers.compare import compare_layers
from onnx_bridge.parity.layers.report import LayerReport
from onnx_bridge.parity.layers.subject import LayerSubject
from onnx_bridge.parity.reference_runs import run_samples, samples_for, versions
from onnx_bridge.reference.comparison.chain import ChainJudge, of_widened
from onnx_bridge.reference.comparison.compare import Comparison, compare_all, tolerances_of
from onnx_bridge.reference.comparison.computed_precision import computed_precisions, output_presets
from onnx_bridge.reference.comparison.dependence import enliven
from onnx_bridge.reference.comparison.tolerances import Tolerances
from onnx_bridge.reference.evaluations import NoReference
from onnx_bridge.reference.missing_kernels.half_emulation import emulate_halves
from onnx_bridge.reference.reference import Reference, kept_runs
from onnx_bridge.reference.second_opinion import BY_ONNX, second_opinion
from onnx_bridge.requests.parity import CheckRequest
from onnx_bridge.requests.request import ModelSource
from onnx_bridge.samples import files
from onnx_bridge.samples.inputs import Sample
from onnx_bridge.samples.suitable import frozen_values, livelier, run_suitable
from passes.graphs.quantization import is_quantized
from passes.isolation.limits import current

Outputs = Sequence[Mapping[str, Value]]

_Request = TypeVar("_Request", bound=CheckRequest)
CLEANED = "cleaned on ONNX Runtime"
"""The name of the cleaned model's leg."""
_SECONDS = 60.0
"""The most seconds for ONNX's own evaluator, which is slow."""


@dataclass
class Baseline:
    """A model before and after cleaning, its samples, and the reference's outputs; collects the legs of the check.

    Attributes:
        original: the reference model.
        cleaned: the cleaned model; None if a bundle keeps none.
        samples: the inputs of the cleaned model.
        original_samples: the inputs of the original, frozen ones included.
        truth: the reference's outputs.
        passes: what each pass did (`passes.rewriting.pipeline.Step.to_json`).
        device_name: the leg of the bundle.
        legs: what was compared so far.
        inside: the values inside the bundle; None if none can be fetched.
        reference: the session of the original, if one is open.
        epsilon: the unit in the last place of 1.0 of what is computed; 0 if it is that of the dtypes.
        unproven: the outputs that are the same for all generated samples, and for livelier ones.
        widened: whether the bundle computes in float32 what the model computes in 16 bits.
    """

    request: CheckRequest
    original: Path | ir.Model
    cleaned: Path | ir.Model | None
    samples: Sequence[Sample]
    original_samples: Sequence[Sample]
    truth: Outputs
    cleaning_tolerances: Tolerances
    device_tolerances: Tolerances
    passes: Sequence[Mapping[str, Any]]
    device_name: str = ""
    notes: Sequence[str] = ()
    legs: list[Leg] = field(default_factory=list)
    inside: InsideProgram | None = None
    reference: Reference | None = None
    epsilon: float = 0.0
    unproven: tuple[str, ...] = ()
    widened: bool = False
    _outputs: dict[str, Outputs] = field(default_factory=dict)
    _sketches: dict[str, Sketch] = field(default_factory=dict)

    @classmethod
    def of_bundle(cls, request: CheckRequest, bundle: Bundle, tell: Progress) -> Baseline:
        """Run the original of a bundle; raises InputError if it is gone or was changed, or the samples do not fit."""
        original, notes = original_of(bundle, request.reference)
        tell("reference")
        model = models.load(original)
        reference = Reference(original, runs=runs_of_original(bundle, original, model, request))
        frozen = frozen_values(model, bundle.manifest.request.freeze)
        samples = samples_for(request, bundle.specs, model, lambda sample: reference.run({**sample, **frozen}))

        def run(samples: Sequence[Sample]) -> list[Mapping[str, Value]]:
            return run_samples(reference, [{**sample, **frozen} for sample in samples], "reference", tell)

        if request.generated_seed is None:
            truth = run(samples)
        else:
            samples, truth = run_suitable(samples, run, InputError)
        device, cleaning = tolerances_of_bundle(request, bundle)
        cleaned = [] if bundle.model_path is None else [models.load(bundle.model_path)]
        presets, said = output_presets(computed_precisions(model, *cleaned), reference.output_names)
        if request.tolerance is None:  # else the user has said what to hold it to
            device, cleaning = (replace(tolerances_, inside=presets) for tolerances_ in (device, cleaning))
        else:
            said = []
        unproven: set[str] = set()
        if request.generated_seed is not None:
            others = livelier_runs(model, reference, frozen, samples[0])
            unproven = enliven(cleaned[0] if cleaned else model, samples, truth, others, device)
        return cls(
            request,
            original,
            bundle.model_path,
            samples,
            [{**sample, **frozen} for sample in samples],
            truth,
            cleaning,
            device,
            bundle.manifest.program.passes,
            device_name(bundle),
            [*notes, *reference.notes, *said, *files.find_non_finite(samples)],
            inside=InsideProgram.of(bundle.program),
            epsilon=computed_precision(model, (cleaned or [model])[0], bundle.manifest.request.precision).epsilon,
            reference=reference,
            unproven=tuple(sorted(unproven)),
            widened=bundle.manifest.program.widened,
        )

    @classmethod
    def of_localizer(cls, request: CheckRequest, localizer: FaultLocalizer) -> Baseline:
        """Return the baseline of a model that MIGraphX rejects, which was cleaned and run to localize the fault."""
        names = Reference(localizer.cleaned).input_names
        return cls(
            request,
            localizer.model,
            localizer.cleaned,
            [{name: sample[name] for name in names} for sample in localizer.samples],
            localizer.samples,
            localizer.truth,
            replace(request.error_tolerances, preset=None),
            request.error_tolerances,
            localizer.applications.cleaned.to_json()["passes"],
        )

    def compare_cleaned(self, tell: Progress) -> None:
        """Run the cleaned model on ONNX Runtime, and compare it."""
        if self.cleaned is not None and self._rounded is not None:
            as_it_is = self._rounded is self._loaded
            digest = models.digest(self.cleaned) if as_it_is and isinstance(self.cleaned, Path) else None
            runs = kept_runs(digest, self._rounded, fresh=self.request.fresh)
            session = Reference(self.cleaned if as_it_is else self._rounded, runs=runs)
            outputs = run_samples(session, self.samples, "cleaned model on ONNX Runtime", tell)
            self.compare(CLEANED, outputs, self.cleaning_tolerances)

    def compare(self, name: str, outputs: Outputs, tolerances: Tolerances, failure: Failure | None = None) -> None:
        """Compare outputs, of all samples or those before a failure, judge what differs, and keep them as a leg."""
        self._outputs[name] = outputs
        compared = compare_all(outputs, self.truth[: len(outputs)], tolerances, self.request.layers)
        judged = tuple(self._judge(name, number, comparison, tolerances) for number, comparison in enumerate(compared))
        self.legs.append(Leg(name, judged, failure))

    def _judge(self, name: str, number: int, compared: Comparison, tolerances: Tolerances) -> Comparison:
        """Return the comparison of a sample with its differences judged, and how far the reference moves by itself."""
        right, sample, given = self.truth[number], self.samples[number], self.original_samples[number]
        judges, outputs = self._judges, self._outputs[name][number]
        if not compared.passed and judges is not None:
            own = tolerances_of(tolerances, right)
            if name == CLEANED:
                compared = judges.of_cleaned(outputs, right, sample, given, own)
            elif name == self.device_name and self.legs[0].name == CLEANED:
                cleaned = self._outputs[CLEANED][number], self.legs[0].comparisons[number]
                compared = judges.of_device(outputs, right, sample, cleaned, self.inside, own)
            if compared.differs and (second := self._second_opinion(given, outputs, own)) is not None:
                compared, self.notes = second, tuple(dict.fromkeys((*self.notes, f"{name}: {BY_ONNX}")))
            elif compared.differs and self.widened and name == self.device_name and self._loaded is not None:
                compared = of_widened(compared, outputs, self._loaded, sample)
        moves = {} if judges is None else judges.moves(right, given)
        return Comparison(
            tuple(
                replace(output, moves=moves[output.name].max_abs) if output.name in moves else output
                for output in compared.outputs
            )
        )

    def _second_opinion(self, given: Sample, outputs: Mapping[str, Value], own: Tolerances) -> Comparison | None:
        if not isinstance(self.original, Path):
            return None
        try:
            return second_opinion(self.original, given, outputs, own, current(_SECONDS), self._runs_by_onnx)
        except NoReference:
            return None

    @cached_property
    def _runs_by_onnx(self) -> KeptRuns:
        digest = models.digest(self.original) if isinstance(self.original, Path) else None
        return kept_runs(digest, models.loaded(self.original), by_onnx=True, fresh=self.request.fresh)

    @cached_property
    def _loaded(self) -> ir.Model | None:
        """The cleaned model, in memory."""
        return None if self.cleaned is None else models.loaded(self.cleaned)

    @cached_property
    def _rounded(self) -> ir.Model | None:
        """The cleaned model, each result in 16 bits rounded, as a GPU does; itself if nothing is in 16 bits."""
        return None if self._loaded is None else emulate_halves(self._loaded)

    @cached_property
    def _judges(self) -> ChainJudge | None:
        return (
            None
            if self._rounded is None
            else ChainJudge(models.loaded(self.original), self._rounded, self.epsilon, session=self.reference)
        )

    def compare_layers(self, device: Device | None, host: Mapping[str, str], tell: Progress) -> LayerReport:
        """Compare every value of the cleaned model, on the first sample that differs or fails.

        Args:
            device: MIGraphX; None if all nodes are on the host.
            host: the reasons of the nodes on the host, by name.

        Raises:
            InputError: a tolerance names no value.
        """
        assert self.cleaned is not None
        number = self._first_failing_sample()
        original = None if self.original == self.cleaned else self.original
        report = compare_layers(
            LayerSubject(self.cleaned, self.samples[number], original, self.original_samples[number], host),
            device,
            tolerances=self.device_tolerances,
            memory_limit=int(self.request.layers_memory * 2**30),
            observer=sketch_into(self._sketches) if self.request.evidence else None,
            progress=tell,
        )
        self.device_tolerances.check([*flat(self.truth[number]), *(row.tensor for row in report.rows)])
        return replace(report, sample=number)

    def report(
        self,
        model: str,
        migraphx: str,
        notes: tuple[str, ...],
        layers: LayerReport | None,
        bisection: Bisection | None,
    ) -> CheckReport:
        """Return the report of the legs so far, with the version of MIGraphX and what else was requested."""
        return CheckReport(
            model=model,
            legs=tuple(self.legs),
            samples=tuple(self.samples),
            seed=self.request.generated_seed,
            versions=versions(migraphx),
            notes=notes,
            layers=layers,
            bisection=bisection,
            evidence=self._evidence() if self.request.evidence else None,
            unproven=self.unproven,
        )

    def _evidence(self) -> Evidence:
        after = None if self.cleaned is None else Network.of(models.loaded(self.cleaned))
        results = {REFERENCE: self.truth, **self._outputs}
        return Evidence(results, Network.of(models.loaded(self.original)), after, self.passes, self._sketches)

    def _first_failing_sample(self) -> int:
        """Return the number of the first sample that differs, else of the one that MIGraphX fails on, else 0."""
        numbered = (pair for leg in self.legs for pair in enumerate(leg.comparisons))
        differing = [number for number, comparison in numbered if not comparison.passed]
        failing = [leg.failure.sample or 0 for leg in self.legs if leg.failure is not None]
        return next(iter((*differing, *failing)), 0)


def livelier_runs(
    original: ir.Model, reference: Reference, frozen: Sample, first: Mapping[str, Value], kept: Sample | None = None
) -> Iterator[tuple[Sample, Mapping[str, Value]]]:
    """Yield other samples than the first, of the same sizes, that the reference runs, with its outputs.

    Args:
        original: the model before cleaning.
        reference: the session of the original.
        frozen: values of inputs that samples do not have.
        first: the first sample.
        kept: values of inputs that stay what they are.
    """
    shapes = {name: array.shape if isinstance(array, np.ndarray) else None for name, array in first.items()}
    for other in livelier(original, shapes, first):
        other |= kept or {}
        with contextlib.suppress(BridgeError):
            yield other, reference.run({**other, **frozen})


@contextlib.contextmanager
def converted(
    model: ModelSource | Bundle, request: _Request, progress: Progress | None
) -> Iterator[tuple[Bundle, _Request]]:
    """Yield the bundle of a model, converted into a temporary folder unless it is one, and the request.

    The request then names the file of the original of a model in memory as the reference.
    """
    how = replace(request.conversion, prove="never")
    if not isinstance(model, ir.Model | Bundle) and is_bundle(model):
        model = Bundle.of(model, how)
    if isinstance(model, Bundle):
        names = [
            "pipeline",
            "dims",
            "dim_default",
            "shapes",
            "freeze",
            "host",
            *([] if request.rehearsed else ["target"]),
        ]
        require_own_settings(model.manifest, request.conversion, model.path, *names)
        yield model, request
        return
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
        bundle = conversion.run(model, Path(folder) / "bundle", how, progress)
        if isinstance(model, ir.Model) and request.reference is None:
            request = replace(request, reference=models.as_file(model, Path(folder) / "original.onnx"))
        yield bundle, request


def tolerances_of_bundle(request: CheckRequest, bundle: Bundle) -> tuple[Tolerances, Tolerances]:
    """Return the tolerances of MIGraphX, and of the cleaned model, for the precision that a bundle was converted to."""
    device = request.error_tolerances
    cleaning = replace(device, preset=None)  # passes compute in the dtypes of the model
    precision = bundle.manifest.request.precision
    if precision == "fp32":
        return device, cleaning
    device = device.at_least(TOLERANCES[precision])
    lowered_by_pass = precision in BY_PASS or bundle.manifest.quantized_in_model
    return device, device if lowered_by_pass else cleaning


def rehearsed(tolerances: Tolerances, bundle: Bundle) -> Tolerances:
    """Return the tolerances of a bundle that runs after the passes of the gpu target."""
    quantized = bundle.model_path is not None and is_quantized(models.load(bundle.model_path))
    return tolerances.at_least(TOLERANCES["int8"]) if quantized else tolerances


def original_of(bundle: Bundle, reference: Path | None) -> tuple[Path, list[str]]:
    """Return the file of the reference model, and notes for the user."""
    if reference is not None:
        return Path(reference), []
    source = bundle.manifest.source
    path = Path(source["path"]) if source["path"] else None
    if path is not None and path.exists():
        if models.digest(path) != source["sha256"]:
            what = "the model was changed since it was converted"
            raise InputError(what, where=str(path), hint="convert again, or name the original with `reference`")
        return path, []
    what = "the model that it was converted from is gone"
    if bundle.model_path is None:
        raise InputError(what, where=str(path or bundle.path), hint="name the original with `reference`")
    return bundle.model_path, [f"{what}: the reference is the cleaned model; --reference names another"]


def runs_of_original(bundle: Bundle, original: Path, model: ir.Model, request: CheckRequest) -> KeptRuns:
    """Return the runs of the original of a bundle, of which `original_of` has compared the digest unless it was named.

    Args:
        original: its file.
        model: the model in the file.
    """
    source = bundle.manifest.source
    is_compared = request.reference is None and source["path"] == str(original)
    return kept_runs(source["sha256"] if is_compared else models.digest(original), model, fresh=request.fresh)


def device_name(bundle: Bundle) -> str:
    """Return the name of a bundle's leg: what it runs on."""
    if not bundle.manifest.on_migraphx:
        return "bundle, on ONNX Runtime alone"
    return f"MIGraphX {bundle.manifest.target}{'' if bundle.wholly_on_migraphx else ' with ONNX Runtime'}"
