"""A bundle against the reference, on seeded samples: MIGraphX and ONNX Runtime each in a process of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.intermediate_values import InsideProgram
from onnx_bridge.conversion.precision.computed_precision import ComputedPrecision
from onnx_bridge.core.errors import BridgeError, InputError, OutOfMemory, WorkerTimeout
from onnx_bridge.core.values import Array, Value, flat
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.model import io as models
from onnx_bridge.reference.comparison.chain import ChainJudge, of_widened
from onnx_bridge.reference.comparison.compare import Comparison, OutputComparison, compare
from onnx_bridge.reference.comparison.dependence import SAYS_NOTHING, enliven
from onnx_bridge.reference.comparison.tolerances import is_float
from onnx_bridge.reference.evaluations import NoReference, run_file
from onnx_bridge.reference.missing_kernels.half_emulation import emulate_halves
from onnx_bridge.reference.reference import Reference, kept_runs
from onnx_bridge.reference.resized import resize
from onnx_bridge.reference.second_opinion import second_opinion
from onnx_bridge.samples.dimensions import Dim
from onnx_bridge.samples.suitable import frozen_values, livelier, run_suitable, suitable
from passes.isolation.failure import NativeFailure
from passes.isolation.limits import Limits, available_bytes, limited
from passes.isolation.process import Reason

SAMPLES = 1
"""The number of samples that a bundle is compared on."""

Sample = Mapping[str, Value]


class Unprovable(Exception):
    """The reason why nothing can be compared, or why a comparison says nothing."""


class TooLarge(Unprovable):
    """A model needs more time or memory than it may have; a smaller model may fit."""


class NoReferenceRun(Unprovable):
    """The reference does not run a model on a sample that the model fits."""


@dataclass(frozen=True)
class Original:
    """The model that a bundle was converted from, as the reference runs it.

    Attributes:
        path: its file.
        model: the model in memory, as the user gave it.
        freeze: the values, as JSON text, of inputs that the bundle has as constants.
        shapes: shapes of inputs, instead of the declared ones.
        samples: the samples to run both on, without frozen inputs; empty generates one.
        digest: the digest of the file, by which its runs are kept; None keeps none.
        fresh: whether the reference runs again what is kept of it.
    """

    path: Path
    model: ir.Model
    freeze: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    samples: Sequence[Sample] = ()
    digest: str | None = None
    fresh: bool = False


@dataclass(frozen=True)
class Agreement:
    """A bundle and the reference agree.

    Attributes:
        error: the largest absolute difference; None without any numbers.
        by_onnx: whether the reference was ONNX's own evaluator, for at least one sample.
    """

    error: float | None
    samples: int = SAMPLES
    by_onnx: bool = False


def compare_with_reference(
    bundle: Path,
    original: Original,
    precision: ComputedPrecision,
    limits: Limits,
    runtime: Runtime,
    narrower: Path | None = None,
) -> Agreement | OutputComparison:
    """Run a bundle and its original on seeded samples.

    Args:
        bundle: its folder, or its program.
        runtime: the MIGraphX that compiled the bundle.
        narrower: the cleaned model, if the program computes in float32 what that computes in 16 bits: compared as well,
            rounded after each node.

    Returns:
        The agreement; or the output that is furthest beyond its tolerance.

    Raises:
        TooLarge: a limit was exceeded.
        Unprovable: the reference does not run the model, or its outputs are not determined.
        RuntimeFailure: MIGraphX fails on the sample.
    """
    return _Comparison(original, precision, limits, narrower).of(bundle, runtime)


def runs_on_reference(original: Original, limits: Limits) -> bool:
    """Return whether the reference runs a model with the shapes of ``original``."""
    comparison = _Comparison(original, ComputedPrecision(), limits)
    try:
        comparison.reference(comparison.samples(original.shapes))
    except Unprovable:
        return False
    return True


@dataclass(frozen=True)
class _Comparison:
    original: Original
    precision: ComputedPrecision
    limits: Limits
    narrower: Path | None = None

    def of(self, path: Path, runtime: Runtime) -> Agreement | OutputComparison:
        memory = None if self.limits.memory is None else self.limits.memory / 2**30
        bundle = Bundle(path, runtime=str(runtime.path), timeout=self.limits.timeout, memory=memory)
        shapes = {tensor.name: tensor.shape for tensor in bundle.inputs}
        runs = bundle.runs(fresh=True)
        samples, expected = [dict(sample) for sample in self.samples(shapes)], list[Sample]()
        if self.original.samples:
            expected += self.reference(samples)
        else:
            samples, expected = run_suitable(samples, self.reference, NoReferenceRun)
        arrays = [array for outputs in expected for array in flat(outputs).values()]
        if all(map(_is_nan, arrays)):
            raise Unprovable("the reference returns NaN alone")
        self._check_claims(bundle, expected)
        same: set[str] = set()
        if not self.original.samples:
            others = self._others(shapes, samples[0])
            same = enliven(self._cleaned(bundle), samples, expected, others, self.precision.tolerances)
        errors, by_onnx = list[float](), False
        for sample, right in zip(samples, expected, strict=True):
            legs = [] if self.narrower is None else [self._rounded(self.narrower, right, sample)]
            actual = runs.outputs(sample, partial(_outputs, bundle, sample))
            compared = compare(actual, right, self.precision.tolerances)
            if not compared.passed:
                compared, agrees = self._judged(bundle, actual, right, sample)
                by_onnx |= agrees
            outputs = [output for leg in (*legs, compared) for output in leg.outputs]
            if wrong := [output for output in outputs if output.differs]:
                return max(wrong, key=lambda output: output.severity)
            for output in compared.outputs:
                if output.undetermined is not None:
                    raise Unprovable(f"the values of {output.name} are not determined: {output.undetermined}")
            determined = [output for output in outputs if output.undetermined is None]
            errors += [output.max_abs for output in determined if output.max_abs is not None]
        if same:
            advice = "`onnx-bridge check --inputs FILE` compares it on inputs of its real use"
            raise Unprovable(f"{', '.join(sorted(same))}: {SAYS_NOTHING}; {advice}")
        return Agreement(max(errors, default=None), len(samples), by_onnx)

    def _rounded(self, cleaned: Path, right: Sample, sample: Sample) -> Comparison:
        """Compare a cleaned model with the original; raises Unprovable."""
        try:
            with limited(self._run_limits):
                return self._of_cleaned(self._judges(models.load(cleaned)), right, sample)[1]
        except BridgeError as error:
            raise Unprovable(f"the reference does not run the model rounded to 16 bits: {error}") from None

    def _of_cleaned(self, judges: ChainJudge, right: Sample, sample: Sample) -> tuple[Sample, Comparison]:
        """Return the outputs of the cleaned model, and their judgement."""
        outputs, given = Reference(judges.cleaned).run(sample), {**sample, **self._frozen}
        return outputs, judges.of_cleaned(outputs, right, sample, given, self.precision.tolerances)

    def _judges(self, cleaned: ir.Model) -> ChainJudge:
        """Return the judges of a cleaned model, each result in 16 bits rounded, as a GPU does."""
        original = models.load(self.original.path)
        if self.original.shapes:
            original = resize(original, self.original.shapes)
        return ChainJudge(original, emulate_halves(cleaned), self.precision.epsilon)

    def _cleaned(self, bundle: Bundle) -> ir.Model:
        return models.load(bundle.model_path) if bundle.model_path else self.original.model

    def _others(
        self, shapes: Mapping[str, Sequence[Dim] | None], first: Sample
    ) -> Iterator[tuple[Sample, dict[str, Value]]]:
        """Yield other samples that the reference runs, with their outputs; raises TooLarge."""
        for sample in livelier(self.original.model, shapes, first):
            with contextlib.suppress(NoReferenceRun):
                yield sample, self.reference([sample])[0]

    def _judged(self, bundle: Bundle, actual: Sample, right: Sample, sample: Sample) -> tuple[Comparison, bool]:
        """Return the outputs with their differences judged as `check` judges them, and whether ONNX's evaluator did.

        Raises Unprovable.
        """
        tolerances, given = self.precision.tolerances, {**sample, **self._frozen}
        compared = compare(actual, right, tolerances)
        judges = self._judges(self._cleaned(bundle))
        why: str | None = "the bundle keeps no cleaned model"
        if bundle.model_path is not None:
            inside = InsideProgram.of(bundle.program)
            try:
                with limited(self.limits):
                    cleaned = self._of_cleaned(judges, right, sample)
                    compared = judges.of_device(actual, right, sample, cleaned, inside, tolerances)
                why = None
            except (BridgeError, Unprovable) as error:
                why = str(error)
        if compared.differs and (second := self._second_opinion(actual, sample)) is not None:
            return second, True
        with limited(self._run_limits):
            if self.narrower is not None:
                compared = of_widened(compared, actual, models.load(self.narrower), sample)
            return judges.from_outside(compared, right, given, why), False

    @property
    def _frozen(self) -> Mapping[str, Value]:
        return frozen_values(self.original.model, self.original.freeze)

    def _second_opinion(self, outputs: Sample, sample: Sample) -> Comparison | None:
        if self.original.shapes:
            return None
        runs = kept_runs(self.original.digest, self.original.model, by_onnx=True, fresh=self.original.fresh)
        given = {**sample, **self._frozen}
        try:
            return second_opinion(self.original.path, given, outputs, self.precision.tolerances, self._run_limits, runs)
        except NoReference as error:
            raise TooLarge(str(error)) from None

    def _check_claims(self, bundle: Bundle, expected: Sequence[Sample]) -> None:
        """Require the shapes of outputs that the bundle has only because the model declares them."""
        sizes = {info.name: info.sizes for info in bundle.outputs}
        for value in () if self.original.shapes else self.original.model.graph.outputs:
            for outputs in expected:
                array = outputs[str(value.name)]
                declared = value.shape.numpy() if value.shape is not None and value.shape.is_static() else None
                if declared is None or declared != sizes.get(str(value.name)):
                    continue
                if isinstance(array, np.ndarray) and declared != array.shape:
                    what = f"{value.name} has the shape {list(array.shape)} in a run, {list(declared)} in the model"
                    raise NoReferenceRun(f"no sample is known that the model fits: {what}")

    def samples(self, shapes: Mapping[str, Sequence[Dim] | None]) -> Sequence[Sample]:
        """Return the given samples, or a generated one for inputs of some shapes."""
        if self.original.samples:
            return self.original.samples
        try:
            return list(suitable(self.original.model, shapes, samples=SAMPLES, takes=self._takes))
        except InputError as error:
            raise NoReferenceRun(f"no samples can be generated: {error}") from None

    def _takes(self, sample: Sample) -> bool:
        try:
            self.reference([sample])
        except NoReferenceRun:
            return False
        return True

    def reference(self, samples: Sequence[Sample]) -> list[dict[str, Value]]:
        """Return the outputs of the original; raises Unprovable."""
        given = [{**sample, **self._frozen} for sample in samples]
        return self._run(self.original.path, given, shapes=self.original.shapes)

    def _run(
        self, path: Path, samples: Sequence[Sample], *, shapes: Mapping[str, Sequence[int]] | None = None
    ) -> list[dict[str, Value]]:
        limits = self._run_limits

        def run(sample: Sample) -> dict[str, Value]:
            try:
                return run_file(path, [sample], shapes=shapes, limits=limits)[0]
            except NoReference as error:
                if error.is_limit:
                    raise TooLarge(str(error)) from None
                raise NoReferenceRun(f"the reference does not run the model: {error}") from None

        digest = self.original.digest if path == self.original.path else None  # runs of other models are not kept
        runs = kept_runs(digest, self.original.model, shapes=shapes, fresh=self.original.fresh)
        return [runs.outputs(sample, partial(run, sample)) for sample in samples]

    @property
    def _run_limits(self) -> Limits:
        return self.limits if self.limits.memory is not None else replace(self.limits, growth=available_bytes())


def _outputs(bundle: Bundle, sample: Sample) -> dict[str, Value]:
    try:
        return bundle(sample)
    except (WorkerTimeout, OutOfMemory) as error:
        raise TooLarge(error.what) from None
    except NativeFailure as error:
        kind = Unprovable if error.reason is Reason.DIED else TooLarge
        raise kind(error.what) from None
    except InputError as error:
        raise Unprovable(f"the bundle does not take the sample: {error}") from None


def _is_nan(array: Array) -> bool:
    """Return whether an array has elements, all of them NaN."""
    return array.size > 0 and is_float(array.dtype) and bool(np.isnan(array.astype(np.float64)).all())
