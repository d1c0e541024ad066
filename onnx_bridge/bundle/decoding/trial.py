"""Generation beside the reference: a decoder and the original, whose cache grows, are fed the same tokens.

After the prompt both get the tokens that the reference chooses, so that one near tie between two tokens does not make
all that follows different.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from onnx_bridge.bundle.decoding.caches import GrowingCache, StaticCache
from onnx_bridge.bundle.decoding.sampling import greedy
from onnx_bridge.bundle.manifest.layout import Layout
from onnx_bridge.core.values import Array, as_array
from onnx_bridge.model import io as models
from onnx_bridge.model.embedding import embedding_of, with_embedding
from onnx_bridge.reference.comparison.compare import Comparison, OutputComparison, compare
from onnx_bridge.reference.comparison.tolerances import Tolerances
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.suitable import frozen_values, suitable

STEPS = 2
"""The number of single tokens that are generated behind each prompt."""


@dataclass(frozen=True)
class Trial:
    """One prompt of ``prompt`` tokens, with the comparisons of the logits behind it and behind each further token.

    Attributes:
        expected: the logits of the reference, by name.
    """

    prompt: int
    comparisons: tuple[Comparison, ...]
    expected: tuple[Mapping[str, Array], ...]

    @property
    def error(self) -> float:
        """The largest absolute error."""
        return max((output.max_abs or 0.0 for output in self._outputs), default=0.0)

    @property
    def reason(self) -> str | None:
        """The first difference, in words; None if nothing differs."""
        return next((output.reason for output in self._outputs if output.reason is not None), None)

    @property
    def _outputs(self) -> Iterator[OutputComparison]:
        return (output for comparison in self.comparisons for output in comparison.outputs)


class Generating(Protocol):
    """A model as the reference generates with it."""

    def cache(self, layout: Layout) -> GrowingCache:
        """Return an empty cache."""

    def prompt(self, layout: Layout, count: int, seed: int = 0) -> Array:
        """Return seeded token ids, (batch, count)."""


class Original:
    """The model that a decoder was converted from, as ONNX Runtime generates with it.

    Args:
        path: its file.
        freeze: the values, as JSON text, of inputs that the decoder has as constants.

    Raises:
        InputError: ONNX Runtime does not take the model.
        NativeFailure: as `Reference`.
    """

    def __init__(self, path: Path, freeze: Mapping[str, str]) -> None:
        self._model = models.load(path)
        embedding = embedding_of(path, self._model)
        if embedding is not None:
            self._model = with_embedding(self._model, embedding)
        self._reference = Reference(path if embedding is None else self._model)
        self._frozen = frozen_values(self._model, freeze)
        specs = samplers.specs(self._model)
        self._dtypes = {spec.name: spec.dtype for spec in specs}
        self._shapes = {spec.name: spec.shape or () for spec in specs}

    def cache(self, layout: Layout) -> GrowingCache:
        own, (_, count) = replace(layout, length=None), self._shapes[layout.ids]
        most = count if isinstance(count, int) else None
        return GrowingCache(own, self._dtypes, lambda arrays: self._reference.run({**arrays, **self._frozen}), most)

    def prompt(self, layout: Layout, count: int, seed: int = 0) -> Array:
        return as_array(suitable(self._model, {layout.ids: (layout.batch, count)}, seed=seed)[0][layout.ids])


def trials(
    caches: Callable[[], StaticCache],
    original: Generating,
    lengths: Sequence[int],
    tolerances: Tolerances,
    *,
    steps: int = STEPS,
    seed: int = 0,
) -> Iterator[Trial]:
    """Generate behind prompts of some lengths, without those that leave no room; raises InputError, RuntimeFailure."""
    for length in lengths:
        static = caches()
        if length + steps > static.room:
            continue
        growing, given = original.cache(static.layout), original.prompt(static.layout, length, seed)
        comparisons, right = [], []
        for _ in range(steps + 1):
            logits, expected = static.feed(given), growing.feed(given)
            right.append({static.layout.logits: expected})
            comparisons.append(compare({static.layout.logits: logits}, right[-1], tolerances))
            given = greedy(expected)[:, None]
        yield Trial(length, tuple(comparisons), tuple(right))


def edges(widths: Sequence[int]) -> list[int]:
    """Return the lengths of prompts that programs take without padding: each width, and two in a row."""
    return [*widths, widths[-1] + 1]


def inside(widths: Sequence[int]) -> list[int]:
    """Return the least lengths of prompts that need padding: for each program, and before one without."""
    least = [smaller + 1 for smaller, larger in itertools.pairwise(widths) if smaller + 1 < larger]
    return [*least, *(widths[-1] + length for length in least[:1])]
