"""Step 5: run the bundle against the reference, at real size or by a witness of the whole model.

The bundle is run as users run it: programs are read back from their files, host partitions run beside them. MIGraphX
runs in its worker, ONNX Runtime in the process of the reference, both with limits. It is not an error if nothing can be
compared: the manifest says what was. A difference is an error, unless the reference itself moves as much when its
inputs move by one unit in the last place (`onnx_bridge.reference.comparison.conditioning`).
"""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.bundle.manifest.proof import BundleProof
from onnx_bridge.bundle.manifest.text import manifest_path
from onnx_bridge.conversion.precision.computed_precision import computed_precision
from onnx_bridge.conversion.precision.precision import BY_CALIBRATION, advice
from onnx_bridge.conversion.proving.comparison import (
    SAMPLES,
    Agreement,
    NoReferenceRun,
    Original,
    TooLarge,
    Unprovable,
    compare_with_reference,
)
from onnx_bridge.conversion.steps.compile import Compiled
from onnx_bridge.conversion.steps.describe import describe
from onnx_bridge.conversion.steps.resolve import Plan
from onnx_bridge.conversion.steps.witness import OutOfTime, Witnesses
from onnx_bridge.core.errors import ParityError
from onnx_bridge.core.progress import Stage, TimedProgress
from onnx_bridge.model import io as models
from onnx_bridge.reference.comparison.compare import OutputComparison
from onnx_bridge.reference.reference import load_error
from onnx_bridge.reference.second_opinion import BY_ONNX
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.samples.inputs import Sample
from passes.graphs.randomness import is_random
from passes.graphs.scopes import scopes
from passes.isolation.limits import Limits
from passes.rewriting.base import Obstacle, Proof

_SLACK = 2.0
"""The time of a run that was estimated to fit, at most, as a multiple of the budget."""


def prove(compiled: Compiled, manifest: Manifest, samples: Sequence[Sample] = ()) -> Manifest:
    """Return the manifest of a compiled model, with its proof.

    Args:
        compiled: the model, whose files are in the staging folder.
        manifest: its manifest, which is not changed.
        samples: the samples to run it on at real size; default: a generated one.

    Raises:
        ParityError: the bundle, or its witness, differs from the reference in an output.
        RuntimeFailure: MIGraphX fails on a sample that the reference takes.
    """
    plan = compiled.cleaned.plan
    proof, started = BundleProof(unproven="a comparison was not asked for"), time.perf_counter()
    if plan.request.prove != "never":
        with plan.stopwatch(Stage.PROVE), tempfile.TemporaryDirectory(prefix="proof-", dir=plan.folder) as scratch:
            proof = _Prover(compiled, manifest, samples, Path(scratch)).proof()
        proof = replace(proof, seconds=round(time.perf_counter() - started, 4))
    proof = replace(proof, nodes=compiled.partitioned.proofs, in_doubt=bool(plan.doubts))
    return replace(manifest, proof=proof)


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
            for scope in scopes(self._model):
                if (node := next((node for node in scope.nodes() if is_random(node, scope)), None)) is not None:
                    raise Unprovable(f"{node.op_type} {node.name} draws new numbers in each run")
            return self._at_real_size()
        except TooLarge as why:
            real = str(why)
        except NoReferenceRun as why:
            takes_others = not self.samples and load_error(self._model) is None
            further = (
                "; `onnx-bridge check --inputs FILE` compares it on inputs of its real use" if takes_others else ""
            )
            return BundleProof(unproven=f"{why}{further}", comparable=False)
        except Unprovable as why:
            return BundleProof(unproven=str(why))
        try:
            return replace(self._by_witness(), unproven=real)
        except Unprovable as why:
            refused = Obstacle.REFERENCE.value in self.compiled.partitioned.proofs.unproven
            return BundleProof(unproven=f"{real}; {why}", comparable=not refused and load_error(self._model) is None)

    def _at_real_size(self) -> BundleProof:
        seconds = self.compiled.cleaned.run_seconds * (len(self.samples) or SAMPLES)
        budget = self.request.prove_budget
        unlimited = self.request.prove == "always" or self.plan.target == "gpu"
        if seconds > budget and not unlimited:
            raise TooLarge(f"a run would take about {seconds:.3g} s, and the budget is {budget:g} s")
        if seconds > 1:
            self.plan.stopwatch.progress(TimedProgress("comparing with the reference at real size", seconds))
        original = replace(self._original, samples=self.samples)
        timeout = self.request.timeout if unlimited else min(self.request.timeout or budget * _SLACK, budget * _SLACK)
        agreement = self._compare(self.compiled, self.manifest, original, timeout)
        what = f"{BY_ONNX}, at real size" if agreement.by_onnx else "compared with ONNX Runtime at real size"
        return BundleProof(Proof.RUN, what, agreement.error, agreement.samples)

    def _by_witness(self) -> BundleProof:
        if self.request.precision in BY_CALIBRATION and self.request.calibration is not None:
            raise Unprovable("no witness: the calibration data have the sizes of the model")
        reasons: list[str] = []
        witnesses = Witnesses.of(self.compiled, self._original, self.scratch)
        for witness in witnesses.candidates(self.manifest):
            self.plan.stopwatch.progress(f"converting a witness with {witness}")
            try:
                with witnesses.converted(witness) as (compiled, original):
                    agreement = self._compare(compiled, describe(compiled), original, witnesses.left)
            except Unprovable as why:
                reasons.append(f"with {witness}: {why}")
            except OutOfTime:
                reasons.append(f"with {witness}: its conversion takes too long")
                break
            else:
                what = f"the whole model was compared with ONNX Runtime by a witness with {witness}"
                return BundleProof(Proof.WITNESS, what, agreement.error, agreement.samples)
        raise Unprovable(f"no witness {reasons[0]}" if reasons else "no input of the model can be smaller")

    def _compare(self, compiled: Compiled, manifest: Manifest, original: Original, timeout: float | None) -> Agreement:
        """Return how a bundle in its staging folder agrees with the reference; raises ParityError for a difference."""
        plan = compiled.cleaned.plan
        manifest.write(plan.folder / manifest_path(plan.out).name)
        folder = plan.folder / plan.out.name if plan.program_only else plan.folder
        precision = computed_precision(original.model, compiled.cleaned.model, self.request.precision)
        limits = Limits(timeout, Limits.of(None, self.request.memory).memory)
        narrower = compiled.cleaned.path if compiled.widened else None
        compared = compare_with_reference(folder, original, precision, limits, self.plan.runtime, narrower)
        if isinstance(compared, Agreement):
            return compared
        if self.request.precision in BY_CALIBRATION:  # what is lost depends on the samples of the calibration
            what = f"in {self.request.precision} the output {compared.name} differs from the original's"
            raise Unprovable(f"{what}: {compared.reason}")
        raise self._difference(compared, original.shapes)

    def _difference(self, output: OutputComparison, shapes: Mapping[str, Sequence[int]]) -> ParityError:
        limit = None
        if output.tolerance is not None and isinstance(output.worst_expected, (int, float)):
            limit = output.tolerance.atol + output.tolerance.rtol * abs(output.worst_expected)
        how = f" (as a witness with {dict(shapes)})" if shapes else ""
        # which generates inputs: what differs on given ones, as the caches of a decoder, need not differ there
        bisect = "" if self.samples else f"`{self._bisect_command()}` finds the cause; "
        return ParityError(
            f"the bundle's output {output.name!r} differs from ONNX Runtime's{how}: {output.reason}",
            output=output.name,
            error=output.max_abs,
            tolerance=limit,
            where=self.manifest.source["path"] or self.manifest.name,
            hint=f"{bisect}{advice(self.request.precision, self._model, self.compiled.cleaned.model)}",
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

    @property
    def _original(self) -> Original:
        fresh = not (self.request.reuse and self.request.cache)
        return Original(self._path, self._model, self.request.freeze, digest=self.plan.source.digest, fresh=fresh)

    @cached_property
    def _model(self) -> ir.Model:
        """The model as the user gave it."""
        return self.plan.source.model()

    @cached_property
    def _path(self) -> Path:
        """The file of the model as the user gave it."""
        return models.as_file(self.plan.source.given, self.scratch / "original.onnx")
