"""The witnesses of a model: the same model with smaller inputs, converted by the steps of any conversion.

Open dimensions are smaller, or fixed ones if none is open. A witness proves something only if it is converted by the
same decisions (`onnx_bridge.conversion.proving.decisions`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.conversion.proving.comparison import Original, Unprovable, runs_on_reference
from onnx_bridge.conversion.proving.decisions import different_decision, rewritten_alone
from onnx_bridge.conversion.proving.shrinking import Shapes, as_sizes, fixed_axes, open_axes, share, smaller_shapes
from onnx_bridge.conversion.source import Source
from onnx_bridge.conversion.steps.clean import clean
from onnx_bridge.conversion.steps.compile import Compiled
from onnx_bridge.conversion.steps.place import compile_or_place
from onnx_bridge.conversion.steps.resolve import resolve
from onnx_bridge.core.errors import BridgeError, ParityError
from onnx_bridge.reference.resized import resize
from onnx_bridge.requests.conversion import ConvertRequest
from passes.isolation.limits import Limits

_SHARE = 6
"""A witness should take at most this part of the budget."""
_SECONDS = 30.0
"""The least seconds that the conversions and runs of witnesses may take."""
_MOST = 2
"""The number of sizes that are tried."""


class OutOfTime(Exception):
    """The search for a witness has taken as long as it may."""


@dataclass(frozen=True)
class Witness:
    """A smaller instance of a model: input shapes, and whether the model leaves their sizes open."""

    shapes: Shapes
    open: bool

    def __str__(self) -> str:
        return ", ".join(f"{name} {list(shape)}" for name, shape in self.shapes.items())


@dataclass(frozen=True)
class Witnesses:
    """The witnesses of a compiled model, converted in a folder until a deadline by the monotonic clock."""

    compiled: Compiled
    original: Original
    folder: Path
    deadline: float

    @classmethod
    def of(cls, compiled: Compiled, original: Original, folder: Path) -> Witnesses:
        """Return the witnesses that are converted from now on."""
        budget = compiled.cleaned.plan.request.prove_budget
        return cls(compiled, original, folder, time.monotonic() + max(_SECONDS, budget))

    @property
    def left(self) -> float:
        """The seconds until the deadline, at least one."""
        return max(1.0, self.deadline - time.monotonic())

    def candidates(self, manifest: Manifest) -> Iterator[Witness]:
        """Yield the witness that should take a share of the budget, then the next larger and smaller.

        Raises Unprovable if even the smallest takes longer than the budget.
        """
        shapes = {info.name: info.sizes for info in manifest.inputs}
        if any(shape is None or None in shape for shape in shapes.values()):
            return
        real: Shapes = {name: tuple(size or 0 for size in shape or ()) for name, shape in shapes.items()}
        free = open_axes(self.original.model, real, self.original.freeze)
        axes = free or fixed_axes(real, self._runs)
        seconds, budget = self.compiled.cleaned.run_seconds, self.compiled.cleaned.plan.request.prove_budget
        estimates = [(seconds * share(small, real), small) for small in smaller_shapes(real, axes)]
        least, smallest = min(estimates, key=lambda pair: pair[0], default=(0.0, real))
        if least > budget:
            raise Unprovable(
                f"no witness: with {Witness(smallest, bool(free))} it would still take about {least:.3g} s"
            )
        fitting = sorted((pair for pair in estimates if pair[0] <= budget), key=lambda pair: -pair[0])
        quick = [pair for pair in fitting if pair[0] <= budget / _SHARE]
        larger = [pair for pair in fitting if pair not in quick]
        for _, small in [*quick[:1], *larger[-1:], *quick[1:2], *larger[-2:-1]][:_MOST]:
            yield Witness(small, bool(free))

    @contextlib.contextmanager
    def converted(self, witness: Witness) -> Iterator[tuple[Compiled, Original]]:
        """Convert a witness, and yield it with its original; raises Unprovable, OutOfTime."""
        plan = self.compiled.cleaned.plan

        def progress(message: str) -> None:
            if time.monotonic() > self.deadline:
                raise OutOfTime
            plan.stopwatch.progress(f"witness: {message}")

        try:
            with resolve(self._source(witness), self.folder / "witness", self._request(witness), progress) as small:
                cleaned = clean(small, rewritten_alone(self.compiled.cleaned.model))
                compiled = compile_or_place(cleaned, widened=self.compiled.widened)
                conversions = ((whole.cleaned.model, whole.partitioned) for whole in (self.compiled, compiled))
                if (difference := different_decision(*conversions)) is not None:
                    raise Unprovable(f"the witness is not converted by the same decisions: {difference}")
                if (seconds := compiled.cleaned.run_seconds) > plan.request.prove_budget:
                    raise Unprovable(f"a run would take about {seconds:.3g} s")
                yield compiled, replace(self.original, shapes={} if witness.open else witness.shapes)
        except ParityError:
            raise
        except BridgeError as error:
            if time.monotonic() > self.deadline:  # passes report whatever stops them as an error of their own
                raise OutOfTime from None
            raise Unprovable(f"the witness cannot be converted: {error.what}") from None

    def _runs(self, shapes: Shapes) -> bool:
        """Return whether the reference runs the model with other shapes."""
        memory = Limits.of(None, self.compiled.cleaned.plan.request.memory).memory
        return runs_on_reference(replace(self.original, shapes=shapes), Limits(_SECONDS, memory))

    def _source(self, witness: Witness) -> Source:
        source = self.compiled.cleaned.plan.source
        if witness.open:
            return source
        model = resize(source.model(), witness.shapes)
        model.graph.name = source.name
        return Source(model)

    def _request(self, witness: Witness) -> ConvertRequest:
        plan = self.compiled.cleaned.plan
        dims: dict[str, int] = {}
        shapes: Mapping[str, tuple[int, ...]] = {}
        if witness.open:
            dims, shapes = as_sizes(self.original.model, witness.shapes)
        return replace(
            plan.request,
            dims=dims,
            shapes=shapes,
            target=plan.target,
            reuse=False,
            timeout=min(plan.request.timeout or self.left, self.left),
            prove="never",
            probe_budget=0.0,  # the whole is compared
        )
