"""Step 5: run the bundle against the reference, at real size or by a witness of the whole model.

The bundle is what users get: programs are read back from their files, host partitions run beside them. MIGraphX runs in
its worker, ONNX Runtime in the process of the reference, both with limits. What cannot be compared is no error: the
manifest says what the numbers rest on. A difference is an error, unless the reference itself moves as far when its
inputs move by one unit in the last place (`onnx_bridge.reference.comparison.conditioning`).

A witness is the same model with smaller inputs: open dimensions are smaller, or, if it has none, fixed ones. It proves
something only if it is converted by the same decisions (`onnx_bridge.conversion.proving.decisions`).
"""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.bundle.manifest.proof import BundleProof
from onnx_bridge.bundle.manifest.text import manifest_path
from onnx_bridge.conversion.precision.computed_precision import computed_precision
from onnx_bridge.conversion.precision.precision import BY_CALIBRATION
from onnx_bridge.conversion.proving.comparison import (
    SAMPLES,
    Agreement,
    NoReferenceRun,
    Original,
    TooLarge,
    Unprovable,
    compare_with_reference,
    runs_on_reference,
)
from onnx_bridge.conversion.proving.decisions import different_decision
from onnx_bridge.conversion.proving.shrinking import Shapes, as_sizes, fixed_axes, open_axes, share, smaller_shapes
from onnx_bridge.conversion.source import Source
from onnx_bridge.conversion.steps.clean import clean
from onnx_bridge.conversion.steps.compile import Compiled, partition_and_compile
from onnx_bridge.conversion.steps.describe import describe
from onnx_bridge.conversion.steps.resolve import Plan, resolve
from onnx_bridge.core.errors import BridgeError, ParityError
from onnx_bridge.core.progress import Stage, TimedProgress
from onnx_bridge.model import io as models
from onnx_bridge.model.resized import resize
from onnx_bridge.reference.comparison.compare import OutputComparison
from onnx_bridge.reference.reference import load_error
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.samples.inputs import Sample
from onnx_bridge.verdicts.run_time import work_seconds
from passes.graphs.cost import Work, work
from passes.graphs.randomness import is_random
from passes.graphs.scopes import scopes
from passes.isolation.limits import Limits
from passes.rewriting.base import Proof

_SLACK = 2.0
"""How many times the budget a run may take that was estimated to fit."""
_WITNESS_SHARE = 6
"""A witness should take at most this part of the budget."""
_WITNESS_SECONDS = 30.0
"""How long the conversions and runs of witnesses may take, at least."""
_WITNESSES = 2
"""How many sizes are tried."""


def prove(compiled: Compiled, manifest: Manifest, samples: Sequence[Sample] = ()) -> Manifest:
    """The manifest of a compiled model, with its proof.

    Args:
        compiled: the model, whose files are in the staging folder.
        manifest: it is not changed.
        samples: what to run it on at real size; default: a generated one.

    Raises:
        ParityError: the bundle, or its witness, computes something else than the reference.
        RuntimeFailure: MIGraphX fails on a sample that the reference takes.
    """
    plan = compiled.cleaned.plan
    nodes = compiled.partitioned.proofs
    if plan.request.prove == "never":
        return replace(manifest, proof=BundleProof(unproven="it was not asked for", nodes=nodes))
    started = time.perf_counter()
    with plan.stopwatch(Stage.PROVE), tempfile.TemporaryDirectory(prefix="proof-", dir=plan.folder) as scratch:
        proof = _Prover(compiled, manifest, samples, Path(scratch)).proof()
    return replace(manifest, proof=replace(proof, seconds=round(time.perf_counter() - started, 4), nodes=nodes))


class _OutOfTime(Exception):
    """The search for a witness has taken as long as it may."""


@dataclass(frozen=True)
class _Prover:
    """Proves a compiled model, whose files are in the staging folder."""

    compiled: Compiled
    manifest: Manifest
    samples: Sequence[Sample]
    scratch: Path

    @property
    def plan(self) -> Plan:
        return self.compiled.cleaned.plan

    @property
    def request(self) -> ConvertRequest:
        return self.plan.request

    def proof(self) -> BundleProof:
        try:
            self._check_determined()
            return self._at_real_size()
        except TooLarge as why:
            real = str(why)
        except Unprovable as why:
            return BundleProof(unproven=str(why), comparable=not isinstance(why, NoReferenceRun))
        try:
            return replace(self._by_witness(), unproven=real)
        except Unprovable as why:
            return BundleProof(unproven=f"{real}; {why}", comparable=load_error(self._model) is None)

    def _check_determined(self) -> None:
        for scope in scopes(self._model):
            for node in scope.nodes():
                if is_random(node, scope):
                    raise Unprovable(f"{node.op_type} {node.name} draws new numbers in each run")

    def _at_real_size(self) -> BundleProof:
        seconds = self._seconds(self.compiled) * (len(self.samples) or SAMPLES)
        budget = self.request.prove_budget
        unlimited = self.request.prove == "always" or self.plan.target == "gpu"
        if seconds > budget and not unlimited:
            raise TooLarge(f"a run would take about {seconds:.3g} s, and the budget is {budget:g} s")
        if seconds > 1:
            self.plan.stopwatch.progress(TimedProgress("comparing with the reference at real size", seconds))
        original = Original(self._path, self._model, self.request.freeze, samples=self.samples)
        timeout = self.request.timeout if unlimited else min(self.request.timeout or budget * _SLACK, budget * _SLACK)
        error = self._compare(self.compiled, self.manifest, original, timeout)
        return BundleProof(Proof.RUN, "compared with ONNX Runtime at real size", error, len(self.samples) or SAMPLES)

    def _by_witness(self) -> BundleProof:
        if self.request.precision in BY_CALIBRATION and self.request.calibration is not None:
            raise Unprovable("no witness: the calibration data have the sizes of the model")
        reasons: list[str] = []
        deadline = time.monotonic() + max(_WITNESS_SECONDS, self.request.prove_budget)
        for witness in self._witnesses():
            listed = ", ".join(f"{name} {list(shape)}" for name, shape in witness.shapes.items())
            self.plan.stopwatch.progress(f"converting a witness with {listed}")
            try:
                error = self._compare_witness(witness, deadline)
            except Unprovable as why:
                reasons.append(f"with {listed}: {why}")
            except _OutOfTime:
                reasons.append(f"with {listed}: its conversion takes too long")
                break
            else:
                what = f"the whole model was compared with ONNX Runtime by a witness with {listed}"
                return BundleProof(Proof.WITNESS, what, error, SAMPLES)
        raise Unprovable(f"no witness {reasons[0]}" if reasons else "no input of the model can be smaller")

    def _witnesses(self) -> Iterator[_Witness]:
        """Those to try, the one that should take a share of the budget first, then the next larger and smaller."""
        shapes = {each.name: each.sizes for each in self.manifest.inputs}
        if any(shape is None or None in shape for shape in shapes.values()):
            return
        real: Shapes = {name: tuple(size or 0 for size in shape or ()) for name, shape in shapes.items()}
        free = open_axes(self._model, real)
        axes = free or fixed_axes(real, self._runs)
        seconds, budget = self._seconds(self.compiled), self.request.prove_budget
        found = [(seconds * share(each, real), each) for each in smaller_shapes(real, axes)]
        fitting = sorted((pair for pair in found if pair[0] <= budget), key=lambda pair: -pair[0])
        quick = [pair for pair in fitting if pair[0] <= budget / _WITNESS_SHARE]
        larger = [pair for pair in fitting if pair not in quick]
        for _, small in [*quick[:1], *larger[-1:], *quick[1:2], *larger[-2:-1]][:_WITNESSES]:
            yield _Witness(small, bool(free))

    def _runs(self, shapes: Shapes) -> bool:
        """Whether the reference runs the model with other shapes."""
        original = Original(self._path, self._model, self.request.freeze, shapes)
        return runs_on_reference(original, Limits(_WITNESS_SECONDS, Limits.of(None, self.request.memory).memory))

    def _compare_witness(self, witness: _Witness, deadline: float) -> float | None:
        plan = self.plan

        def progress(message: str) -> None:
            if time.monotonic() > deadline:
                raise _OutOfTime
            plan.stopwatch.progress(f"witness: {message}")

        source, request = self._witness_source(witness), self._witness_request(witness, deadline)
        try:
            with resolve(source, self.scratch / "witness", request, progress) as small:
                compiled = partition_and_compile(clean(small))
                difference = different_decision(
                    *((each.cleaned.model, each.partitioned) for each in (self.compiled, compiled))
                )
                if difference is not None:
                    raise Unprovable(f"it is not converted by the same decisions: {difference}")
                seconds = self._seconds(compiled)
                if seconds > self.request.prove_budget:
                    raise Unprovable(f"a run would take about {seconds:.3g} s")
                shapes = {} if witness.open else witness.shapes
                original = Original(self._path, self._model, self.request.freeze, shapes)
                return self._compare(compiled, describe(compiled), original, max(1.0, deadline - time.monotonic()))
        except ParityError:
            raise
        except BridgeError as error:
            if time.monotonic() > deadline:  # passes report whatever stops them as an error of their own
                raise _OutOfTime from None
            raise Unprovable(f"it cannot be converted: {error.what}") from None

    def _witness_source(self, witness: _Witness) -> Source:
        if witness.open:
            return self.plan.source
        model = resize(self.plan.source.model(), witness.shapes)
        model.graph.name = self.plan.source.name
        return Source(model)

    def _witness_request(self, witness: _Witness, deadline: float) -> ConvertRequest:
        left = max(1.0, deadline - time.monotonic())
        timeout = min(self.request.timeout or left, left)
        dims: dict[str, int] = {}
        shapes: Mapping[str, tuple[int, ...]] = {}
        if witness.open:
            dims, shapes = as_sizes(self._model, witness.shapes)
        return replace(
            self.request,
            dims=dims,
            shapes=shapes,
            target=self.plan.target,
            reuse=False,
            timeout=timeout,
            prove="never",
            probe_budget=0.0,  # the whole is compared
        )

    def _compare(
        self, compiled: Compiled, manifest: Manifest, original: Original, timeout: float | None
    ) -> float | None:
        """The largest error of a bundle in its staging folder; raises ParityError for a difference."""
        plan = compiled.cleaned.plan
        manifest.write(plan.folder / manifest_path(plan.out).name)
        folder = plan.folder / plan.out.name if plan.program_only else plan.folder
        precision = computed_precision(original.model, compiled.cleaned.model, self.request.precision)
        limits = Limits(timeout, Limits.of(None, self.request.memory).memory)
        found = compare_with_reference(folder, original, precision, limits, self.plan.runtime)
        if isinstance(found, Agreement):
            return found.error
        if self.request.precision in BY_CALIBRATION:  # what is lost depends on the samples of the calibration
            raise Unprovable(f"in {self.request.precision} it differs from the original: {found.name}: {found.reason}")
        raise self._difference(found, original.shapes)

    def _difference(self, output: OutputComparison, shapes: Mapping[str, Sequence[int]]) -> ParityError:
        limit = None
        if output.tolerance is not None and isinstance(output.worst_expected, (int, float)):
            limit = output.tolerance.atol + output.tolerance.rtol * abs(output.worst_expected)
        how = f" (as a witness with {dict(shapes)})" if shapes else ""
        return ParityError(
            f"the bundle computes something else than ONNX Runtime{how}: output {output.name!r}: {output.reason}",
            output=output.name,
            error=output.max_abs,
            tolerance=limit,
            where=self.manifest.source["path"] or self.manifest.name,
            hint=f"`{self._bisect_command()}` finds the cause; --prove never converts all the same",
        )

    def _bisect_command(self) -> str:
        request = self.request
        words = ["onnx-bridge", "bisect", self.manifest.source["path"] or "MODEL", "--target", self.plan.target]
        words += ["--pipeline", request.pipeline] if request.pipeline != "default" else []
        words += ["--precision", request.precision] if request.precision != "fp32" else []
        for name, size in request.dims.items():
            words += ["--dim", f"{name}={size}"]
        for name, shape in request.shapes.items():
            words += ["--shape", f"{name}:[{','.join(map(str, shape))}]"]
        for name, value in request.freeze.items():
            words += ["--freeze", f"{name}={value}"]
        words += [] if request.host else ["--no-host"]
        return shlex.join(words)

    def _seconds(self, compiled: Compiled) -> float:
        """The estimated seconds of a run."""
        total = sum((work(node) for node in compiled.cleaned.model.graph), Work())
        return work_seconds(total, self.plan.runtime)

    @cached_property
    def _model(self) -> ir.Model:
        """The model as the user gave it."""
        return self.plan.source.model()

    @cached_property
    def _path(self) -> Path:
        """The file of the model as the user gave it."""
        given = self.plan.source.given
        if not isinstance(given, ir.Model):
            return Path(given)
        path = self.scratch / "original.onnx"
        models.save(given, path)
        return path


@dataclass(frozen=True)
class _Witness:
    """A smaller instance of a model: the shapes of its inputs, and whether the model leaves their sizes open."""

    shapes: Shapes
    open: bool
