"""A model of an encoder and a decoder as ONNX Runtime generates with it, from its own files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.decoding.caches import GrowingCache
from onnx_bridge.bundle.manifest.layout import Encoder, Layout
from onnx_bridge.conversion.decoders.encoder_decoder.files import Files
from onnx_bridge.core.values import Array, Value, as_array
from onnx_bridge.model import io as models
from onnx_bridge.reference.reference import Reference
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.decoders import PAST, PRESENT, matching
from onnx_bridge.samples.inputs import Sample
from onnx_bridge.samples.suitable import frozen_values, suitable


class EncoderDecoderOriginal:
    """The files of a model, run by ONNX Runtime with frozen inputs; raises InputError, NativeFailure."""

    def __init__(self, files: Files, freeze: Mapping[str, str]) -> None:
        self.encoder = _Part.of(files.encoder, {})
        self.first = _Part.of(files.first, {**freeze, **files.branch(cached=False)})
        self.step = _Part.of(files.step, {**freeze, **files.branch(cached=True)})
        pasts = matching(PAST, [str(value.name) for value in self.step.model.graph.inputs])
        presents = matching(PRESENT, [str(value.name) for value in self.first.model.graph.outputs])
        self.presents = {pasts[key]: presents[key] for key in pasts}
        """The output of ``first`` that is each past of ``step`` at the first token."""

    def source(self, layout: Encoder, count: int, seed: int = 0) -> Sample:
        """Return seeded inputs of the encoder, with ``count`` tokens each, without padding."""
        shapes = {**layout.shapes, layout.source: (layout.shape[0], count, *layout.shape[2:])}
        shapes |= {} if layout.mask is None else {layout.mask: (layout.shape[0], count)}
        (sample,) = suitable(self.encoder.model, shapes, seed=seed)
        if layout.mask is not None:
            sample[layout.mask] = np.ones_like(as_array(sample[layout.mask]))
        return sample

    def of(self, layout: Layout, source: Mapping[str, Value]) -> _Generation:
        """Return the model with a source."""
        assert layout.encoder is not None
        hidden = self.encoder.run(source)[layout.encoder.hidden]
        others = {name: rank for name, rank in self.first.ranks.items() if name not in self.presents}
        given: Sample = {name: hidden for name, rank in others.items() if rank == 3}
        if layout.encoder.mask is not None:
            given |= {name: source[layout.encoder.mask] for name in others if "mask" in name}
        return _Generation(self, layout, given)


@dataclass(frozen=True)
class _Part:
    """One file: the model in memory, the values of constant inputs, and the file on ONNX Runtime."""

    model: ir.Model
    frozen: Sample
    reference: Reference

    @classmethod
    def of(cls, path: Path, freeze: Mapping[str, str]) -> _Part:
        model = models.load(path)
        names = {value.name for value in model.graph.inputs}
        frozen = frozen_values(model, {name: text for name, text in freeze.items() if name in names})
        return cls(model, frozen, Reference(path))

    @cached_property
    def dtypes(self) -> dict[str, np.dtype[Any]]:
        return {spec.name: spec.dtype for spec in samplers.specs(self.model)}

    @property
    def ranks(self) -> dict[str, int]:
        """The number of dimensions of each input."""
        return {spec.name: len(spec.shape or ()) for spec in samplers.specs(self.model)}

    def run(self, arrays: Mapping[str, Value]) -> dict[str, Value]:
        """Run the file on the arrays that it takes, and ignore the others."""
        return self.reference.run({**{name: arrays[name] for name in self.dtypes if name in arrays}, **self.frozen})


@dataclass(frozen=True)
class _Generation:
    """A model with a source, and the layout of the converted decoder, for `bundle.decoding.trial.trials`."""

    original: EncoderDecoderOriginal
    layout: Layout
    given: dict[str, Value]

    def cache(self, layout: Layout) -> GrowingCache:
        own = replace(layout, mask=None, length=None, encoder=None)
        dtypes = {**self.original.first.dtypes, **self.original.step.dtypes}
        return GrowingCache(own, dtypes, _Program(self))

    def prompt(self, layout: Layout, count: int, seed: int = 0) -> Array:
        (sample,) = suitable(self.original.step.model, {layout.ids: (layout.batch, count)}, seed=seed)
        return as_array(sample[layout.ids])


class _Program:
    """The decoder without a cache for the first tokens of a text, then the decoder with a cache."""

    def __init__(self, generation: _Generation) -> None:
        self._generation = generation
        self._crossed: dict[str, Value] = {}

    def __call__(self, arrays: Mapping[str, Value]) -> Mapping[str, Value]:
        original, given = self._generation.original, self._generation.given
        if self._crossed:
            return original.step.run({**given, **arrays, **self._crossed})
        own = {tensor.past for tensor in self._generation.layout.cache}
        crossing = [info for info in self._generation.layout.given if info.name in original.presents]
        unused = {info.name: np.zeros(info.shape, original.step.dtypes[info.name]) for info in crossing}
        outputs = original.first.run({**given, **unused, **arrays})
        self._crossed = {past: outputs[name] for past, name in original.presents.items() if past not in own}
        return outputs
