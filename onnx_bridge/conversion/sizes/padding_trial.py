"""Trying with the reference whether padding changes what a model computes.

For each bucket the original model is run on ONNX Runtime with sizes strictly inside of it: as they are, and padded up
to the bucket and cut again. Masks are 1 for real elements. A bucket that is too large is tried with a part of its
sizes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.manifest.axes import Axis, inside, label
from onnx_bridge.bundle.manifest.entries import TensorInfo
from onnx_bridge.bundle.padding import Padding, bucket_samples
from onnx_bridge.conversion.precision.computed_precision import computed_precision
from onnx_bridge.conversion.sizes.buckets import BucketSizes, selected
from onnx_bridge.conversion.sizes.freezing import freezing
from onnx_bridge.conversion.sizes.output_sizes import output_axes
from onnx_bridge.conversion.sizes.refusals import is_quick
from onnx_bridge.conversion.source import Source
from onnx_bridge.core.errors import BridgeError, ParityError
from onnx_bridge.core.values import Array, Value, as_array
from onnx_bridge.reference.comparison.compare import OutputComparison, compare
from onnx_bridge.reference.reference import Reference
from onnx_bridge.requests.conversion import CleanRequest, ConvertRequest
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.roles import Constant, Data, IntegerRange, Mask
from onnx_bridge.samples.suitable import frozen_values
from passes.graphs.randomness import is_random
from passes.graphs.scopes import scopes
from passes.rewriting.base import Context

Sizes = Mapping[str, int]
_DIVISOR = re.compile(r"//(\d+)")
_MOST_SHIFTS = 8
"""One more than the most sizes that are tried beside the smallest one if windows divide them."""


@dataclass(frozen=True)
class Tried:
    """The result of a trial.

    Attributes:
        shapes: the shapes of outputs that were observed, by name, with their sizes.
        notes: sentences on buckets that were not tried.
        from_start: the inputs whose numbers below zero mean something else if the model is padded.
    """

    shapes: Mapping[str, Sequence[tuple[Sizes, tuple[int, ...]]]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    from_start: frozenset[str] = frozenset()


def try_padding(
    source: Source, sizes: BucketSizes, request: ConvertRequest, axes: Mapping[str, Sequence[Axis]]
) -> Tried:
    """Try all buckets; raises ParityError if padding changes an output.

    Args:
        source: the model.
        sizes: the sizes of the buckets.
        request: the request.
        axes: the dimensions of outputs that inference finds.
    """
    model = source.model()
    exact = selected(model, sizes.buckets[0])
    smaller = [bucket for bucket in sizes.buckets if inside(bucket, sizes.buckets, exact) != bucket]
    if not smaller:
        return Tried()
    if any(is_random(node, scope) for scope in scopes(model) for node in scope.nodes()):
        return Tried(notes=("padding was not tried: the model draws random numbers",))
    try:
        trial = _Trial(source, model, sizes, request, axes)
    except BridgeError as error:
        return Tried(notes=(f"padding was not tried: {error.what}",))
    runs: list[_Run] = []
    least: list[_Run] = []
    notes = []
    from_start: set[str] = set()
    for bucket in smaller:
        result = trial.run(bucket)
        if isinstance(result, _Run):
            runs += [result, *trial.varied(result), *trial.shifted(result)]
            least += trial.least(result)
            from_start |= trial.from_start(result)
        else:
            notes.append(f"padding was not tried in the bucket {label(bucket)}: {result}")
    for run in runs:
        trial.judge(run, runs)
    for run in least:
        if (wrong := trial.changed(run, runs)) is not None:
            tried = label(next(other.small for other in runs if other.bucket == run.bucket))
            notes.append(f"padding changes {wrong.name} at {label(run.small)}: {wrong.reason}; at {tried} it does not")
    return Tried(_shapes(runs), tuple(notes), frozenset(from_start))


@dataclass(frozen=True)
class _Run:
    """A run of a sample with small sizes, as it is and padded to large ones, to try a bucket."""

    bucket: Sizes
    small: Sizes
    large: Sizes
    sample: Mapping[str, Value]
    outputs: Mapping[str, Value]
    padded: Mapping[str, Value]


class _Trial:
    def __init__(
        self,
        source: Source,
        model: ir.Model,
        sizes: BucketSizes,
        request: ConvertRequest,
        axes: Mapping[str, Sequence[Axis]],
    ) -> None:
        self._model, self._sizes, self._request, self._axes = model, sizes, request, axes
        self._where = source.to_json()["path"] or source.name
        self._reference = Reference(source.given if isinstance(source.given, ir.Model) else Path(source.given))
        self._frozen = frozen_values(model, request.freeze)
        self._tolerances = computed_precision(model, model, "fp32").tolerances
        values = {str(value.name): value for value in model.graph.inputs}
        self._specs = [
            replace(
                spec,
                shape=sizes.axes(values[spec.name]),
                role=Constant(1) if isinstance(spec.role, Mask) else spec.role,
            )
            for spec in samplers.specs(model)
            if spec.name not in request.freeze
        ]

    def run(self, bucket: Sizes) -> _Run | str:
        """Run a model inside of a bucket, padded and not; return why if it cannot be run."""
        why = "the bucket is too large"
        for small, large in self._points(bucket):
            try:
                (sample,) = bucket_samples(self._specs, small)
                return self._run(bucket, small, large, sample)
            except BridgeError as error:
                why = error.what
        return why

    def _run(self, bucket: Sizes, small: Sizes, large: Sizes, sample: Mapping[str, Value]) -> _Run:
        outputs = self._reference.run({**sample, **self._frozen})
        padded = self._padded(sample, small, large, self._request.pad_before)
        return _Run(bucket, small, large, sample, outputs, padded)

    def varied(self, run: _Run) -> Iterator[_Run]:
        """Yield the runs with other data: all of one sign, beside which padding is the largest or the smallest."""
        for sign in (1, -1):
            changed = {spec.name: _signed(as_array(run.sample[spec.name]), sign)
                       for spec in self._specs if isinstance(spec.role, Data)}  # fmt: skip
            if changed:
                with suppress(BridgeError):  # the model takes no such data
                    yield self._run(run.bucket, run.small, run.large, {**run.sample, **changed})

    def shifted(self, run: _Run) -> Iterator[_Run]:
        """Yield the runs with larger sizes, if windows divide them: the last window is real in part with some."""
        axes = (axis for shape in self._axes.values() for axis in shape if isinstance(axis, str))
        period = max((int(divisor) for axis in axes for divisor in _DIVISOR.findall(axis)), default=1)
        exact = selected(self._model, run.bucket)
        for offset in range(1, min(period, _MOST_SHIFTS)):
            small = {
                name: size if name in exact else min(size + offset, run.large[name]) for name, size in run.small.items()
            }
            if small != run.large:
                with suppress(BridgeError):  # the model takes no such sizes
                    (sample,) = bucket_samples(self._specs, small)
                    yield from (shifted := self._run(run.bucket, small, run.large, sample), *self.varied(shifted))

    def least(self, run: _Run) -> Iterator[_Run]:
        """Yield the run with sizes of 1, if it is in the smallest bucket: windows may be larger than their input."""
        exact, first = selected(self._model, run.bucket), self._sizes.buckets[0]
        small = {name: size if name in exact else min(size, 1) for name, size in run.large.items()}
        if small not in (run.small, run.large) and all(
            run.bucket[name] == first[name] for name in small.keys() - exact
        ):
            with suppress(BridgeError):  # the model takes no such sizes
                (sample,) = bucket_samples(self._specs, small)
                yield self._run(run.bucket, small, run.large, sample)

    def from_start(self, run: _Run) -> set[str]:
        """Return the inputs of integers that count from the end of what is real if they are negative."""
        names = set()
        for spec in self._specs:
            if isinstance(spec.role, IntegerRange) and spec.dtype.kind == "i":
                with suppress(BridgeError):  # the model takes no such integers
                    sample = {**run.sample, spec.name: ~as_array(run.sample[spec.name])}
                    outputs = self._reference.run({**sample, **self._frozen})
                    names.add(spec.name)
                    padded = self._padded(sample, run.small, run.large, self._request.pad_before)
                    other = replace(run, sample=sample, outputs=outputs, padded=padded)
                    if self._changed(other, padded, [run, other], self._request.pad_before) is None:
                        names.remove(spec.name)
        return names

    def judge(self, run: _Run, runs: Sequence[_Run]) -> None:
        """Raise ParityError if padding changes an output."""
        wrong = self.changed(run, runs)
        if wrong is None:
            return
        at = f"at {label(run.small)}" if run.large == run.bucket else f"at {label(run.small)} of {label(run.large)}"
        raise ParityError(
            f"padding changes the output {wrong.name} in the bucket {label(run.bucket)}: {at}, {wrong.reason}",
            output=wrong.name,
            error=wrong.max_abs,
            tolerance=None,
            where=self._where,
            hint=f"{self._advice(run, runs)}; use `prove='never'` to skip this check",
        )

    def changed(self, run: _Run, runs: Sequence[_Run]) -> OutputComparison | None:
        """Return the output that padding changes most in a run; None if it changes none."""
        return self._changed(run, run.padded, runs, self._request.pad_before)

    def _advice(self, run: _Run, runs: Sequence[_Run]) -> str:
        """Return a hint: the dimension that is to be padded at its other end, if that helps."""
        given = self._request.pad_before
        for name in (dim for dim in run.small if run.small[dim] != run.large[dim]):
            before = tuple({*given} ^ {name})
            try:
                padded = self._padded(run.sample, run.small, run.large, before)
            except BridgeError:
                continue
            if self._changed(run, padded, runs, before) is None:
                how = f"omit {name} from `pad_before`" if name in given else f"give `pad_before={[name]}`"
                return f"{how}, with which it does not"
        return "the model needs a mask for what is not real, or another value in it: `pad={'NAME': 'VALUE'}`"

    def _changed(
        self, run: _Run, padded: Mapping[str, Value], runs: Sequence[_Run], before: Collection[str]
    ) -> OutputComparison | None:
        """Return the output that padding changes most; None if it changes none."""
        padding, shapes = Padding(before=before), _shapes(runs)
        cut, expected = {}, {}
        for value in self._model.graph.outputs:
            name = str(value.name)
            actual, right = padded[name], run.outputs[name]
            if isinstance(actual, np.ndarray) and isinstance(right, np.ndarray):
                axes = output_axes((self._sizes.axes(value), self._axes.get(name)), shapes.get(name, ()))
                actual = padding.cut(actual, axes, run.small, run.large)
            cut[name], expected[name] = actual, right
        compared = compare(cut, expected, self._tolerances)
        wrong = [output for output in compared.outputs if not output.passed]
        return max(wrong, key=lambda output: output.severity, default=None)

    def _padded(
        self, sample: Mapping[str, Value], small: Sizes, large: Sizes, before: Collection[str]
    ) -> Mapping[str, Value]:
        """Return the outputs for a padded sample."""
        padding, wide = Padding(self._request.pad, before), dict(sample)
        for spec in self._specs:
            tensor = TensorInfo(spec.name, spec.dtype.name, spec.shape or ())
            wide[spec.name] = padding.pad(as_array(sample[spec.name]), tensor, small, large)
        return self._reference.run({**wide, **self._frozen})

    def _points(self, bucket: Sizes) -> Iterator[tuple[Sizes, Sizes]]:
        """Yield small and large sizes to try: the bucket's, or, if these take long, parts of them."""
        exact = selected(self._model, bucket)
        large, small = dict(bucket), inside(bucket, self._sizes.buckets, exact)
        free = bucket.keys() - exact
        while not self._is_quick(large):
            if all(large[name] <= 2 for name in free):
                return
            large |= {name: max(min(large[name], 2), large[name] // 2) for name in free}
            small |= {name: max(min(large[name], 1), small[name] // 2) for name in free}
        yield small, large
        yield {name: max(min(size, 1), size - 1) if small[name] < size else size for name, size in large.items()}, large

    def _is_quick(self, sizes: Sizes) -> bool:
        model = self._model.clone()
        request = self._sizes.request_of(model, sizes, self._request)
        freezing(CleanRequest(dims=request.dims, shapes=request.shapes, freeze=request.freeze)).run(model, Context())
        return is_quick(model)


def _shapes(runs: Sequence[_Run]) -> dict[str, list[tuple[Sizes, tuple[int, ...]]]]:
    """Return the shapes of outputs, with the sizes for which they have them."""
    shapes: dict[str, list[tuple[Sizes, tuple[int, ...]]]] = {}
    for run in runs:
        for name, array in run.outputs.items():
            padded = run.padded[name]
            if isinstance(array, np.ndarray) and isinstance(padded, np.ndarray):
                shapes.setdefault(name, []).extend(((run.small, array.shape), (run.large, padded.shape)))
    return shapes


def _signed(array: Array, sign: int) -> Array:
    """Return an array whose numbers are of one sign; booleans are true for 1."""
    return np.full_like(array, sign > 0) if array.dtype == np.bool_ else np.abs(array) * array.dtype.type(sign)
