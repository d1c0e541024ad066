"""Converting a model of an encoder and a decoder: programs that run once for a text, and one for single tokens.

The encoder is converted as it is. Of the decoder without a cache, what computes the keys and values of cross-attention
is a program of its own (memory), so that the decoder with a cache generates all tokens, the first one as well, over a
cache of fixed size (`static_step`). All of them together then generate beside ONNX Runtime on the files of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.decoding.caches import StaticCache
from onnx_bridge.bundle.decoding.encoding import Encoding
from onnx_bridge.bundle.decoding.trial import Trial, trials
from onnx_bridge.bundle.manifest.layout import ENCODER, MEMORY, WIDTH, CacheTensor, Encoder, Given, Layout
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.bundle.manifest.text import manifest_path
from onnx_bridge.conversion.convert import run
from onnx_bridge.conversion.decoders.decoder_manifest import describe_decoder, refuse_difference
from onnx_bridge.conversion.decoders.encoder_decoder.files import Files
from onnx_bridge.conversion.decoders.encoder_decoder.original import EncoderDecoderOriginal
from onnx_bridge.conversion.decoders.encoder_decoder.parts import Parts
from onnx_bridge.conversion.decoders.encoder_decoder.static_step import sized, static_step
from onnx_bridge.conversion.decoders.layout import cache_shape
from onnx_bridge.conversion.precision.computed_precision import computed_precision
from onnx_bridge.conversion.programs.bucket_staging import bucket_staging
from onnx_bridge.conversion.programs.instances import (
    Instance,
    check_place,
    content_key,
    convert_instances,
    program_in,
    write_manifest,
)
from onnx_bridge.conversion.source import Source
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.code_digest import code_digest
from onnx_bridge.core.files.digest import json_digest
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.values import Value
from onnx_bridge.reference.comparison.tolerances import Tolerances
from onnx_bridge.requests.cleaning import CleanRequest
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.roles import Dim, dims_of
from onnx_bridge.samples.suitable import suitable
from passes.rewriting.base import Proof

PROMPTS = (1, 2)
"""The lengths of prompts behind which a converted model generates to be proven."""


def run_encoder_decoder(files: Files, out: Path, request: ConvertRequest, progress: Progress) -> Bundle:
    """Convert a model as a request with a decoder's sizes says; errors are those of `convert_decoder`."""
    sizes = request.decoder
    assert sizes is not None
    if sizes.prefill:
        what = "the decoder of an encoder takes its tokens one at a time"
        raise InputError(what, where="prefill", hint="leave it out: texts begin with few tokens")
    return _Conversion(files, out, request, sizes.max_length).run(progress)


@dataclass(frozen=True)
class _Conversion:
    """The conversion of one model.

    Attributes:
        files: of the model.
        out: the folder.
        request: as it was given.
        length: the most tokens of a text.
    """

    files: Files
    out: Path
    request: ConvertRequest
    length: int

    @cached_property
    def parts(self) -> Parts:
        return Parts.of(self.files, self.request.freeze)

    @cached_property
    def _source(self) -> Source:
        """The step, which the bundle is named after."""
        return Source(self.parts.step, name=self.files.given.stem, digest=self.files.digest())

    def run(self, progress: Progress) -> Bundle:
        encoder = Source(self.files.encoder)
        shapes = self._encoder_shapes(encoder)
        placeholder = Instance({WIDTH: 1}, self.request)
        check_place(Source(self.files.given), self.out, [placeholder])
        folders = [ENCODER, MEMORY, placeholder.folder]
        with bucket_staging(self.out, folders, f"{self._source.name}.onnx.data") as folder:
            run(encoder, folder / ENCODER, self._request(shapes), progress)
            layout = self._convert_memory(folder, shapes, progress)
            step = static_step(self.parts.step, partial(self._step_shapes, layout), layout.batch, self.length)
            layout = replace(layout, mask=step.mask, length=step.length)
            source = self._derived(step.model, "step", layout)
            (sample,) = suitable(step.model, layout.shapes(1))
            sample[step.mask] = np.ones((layout.batch, self.length), np.int64)
            instance = Instance({WIDTH: 1}, self._request(layout.shapes(1)), [sample])
            whole = CleanRequest(self.request.pipeline)
            cleaned, infos = convert_instances(source, folder, [instance], whole, progress)
            infos += [program_in(folder, each, {}) for each in (ENCODER, MEMORY)]
            key = content_key(self._source, self.request)
            manifest = describe_decoder(self._source, self._origin, self.request, key, layout, infos, folder)
            progress("generating beside the reference")
            tolerances = computed_precision(step.model, cleaned, self.request.precision).tolerances
            write_manifest(self._proven(manifest, tolerances, folder), folder)
        limits = {"timeout": self.request.timeout, "memory": self.request.memory}
        return Bundle(self.out, runtime=self.request.runtime, **limits)

    @property
    def _origin(self) -> dict[str, str | None]:
        """The file that the user named, and the digests of all files."""
        digests = self.files.digests()
        given = {"path": str(self.files.given.absolute()), "sha256": digests[self.files.given.name]}
        return {**given, **{f"sha256 of {name}": each for name, each in digests.items()}}

    def _request(self, shapes: Mapping[str, tuple[int, ...]]) -> ConvertRequest:
        """That of one program."""
        budget = self.request.prove_budget / 3
        common = replace(self.request, dims={}, freeze={}, decoder=None, prove_budget=budget)
        return replace(common, shapes=dict(shapes))

    def _derived(self, model: ir.Model, part: str, layout: Layout | None = None) -> Source:
        """A model that was made from the files."""
        made = [self.files.digest(), part, self.length, dict(self.request.freeze), code_digest(__package__)]
        shapes = [] if layout is None else sorted((name, list(each)) for name, each in layout.shapes(1).items())
        return Source(model, name=self.files.given.stem, digest=json_digest([*made, shapes]))

    def _encoder_shapes(self, encoder: Source) -> dict[str, tuple[int, ...]]:
        """The shapes of the encoder's inputs; raises InputError if some sizes are open."""
        shapes: dict[str, list[Dim]] = {}
        for spec in samplers.specs(encoder.model()):
            batch, *others = spec.shape or ()
            first = self.request.dims.get(batch, 1) if isinstance(batch, str) else batch
            sizes = (self.request.dims.get(dim, dim) if isinstance(dim, str) else dim for dim in others)
            shapes[spec.name] = [first, *sizes]
        fixed = {name: tuple(dim for dim in shape if isinstance(dim, int)) for name, shape in shapes.items()}
        if fixed != {name: tuple(shape) for name, shape in shapes.items()}:
            open_ = list(dict.fromkeys(str(dim) for shape in shapes.values() for dim in shape if isinstance(dim, str)))
            hint = f"choose the most that it takes: {' '.join(f'--dim {name}=64' for name in open_)}"
            raise InputError("the encoder has open sizes", where=str(self.files.encoder), hint=hint)
        return fixed

    def _convert_memory(self, folder: Path, shapes: Mapping[str, tuple[int, ...]], progress: Progress) -> Layout:
        """Convert the memory, and put together what is known of the layout."""
        parts = self.parts
        masks = [name for name in shapes if "mask" in name]
        sources = [name for name in shapes if name not in masks]
        if len(sources) != 1 or len(masks) > 1:
            what = f"the encoder's inputs are {', '.join(shapes)}"
            raise InputError(what, where=str(self.files.encoder), hint="it should take a source, and perhaps a mask")
        batch = shapes[sources[0]][0]
        states = {name: shape for name, shape in _outputs(folder / ENCODER).items() if len(shape) == 3}
        if not states:
            raise InputError("it returns no hidden states", where=str(self.files.encoder))
        hidden, shape = next(iter(states.items()))
        memory = sized(parts.memory, _with_sizes(parts.memory, parts.memory_input, shape))
        run(self._derived(memory, "memory"), folder / MEMORY, self._request({parts.memory_input: shape}), progress)
        found = _outputs(folder / MEMORY)
        given = [Given(past, name, found[name]) for past, name in parts.crossed.items()]
        given += [Given(parts.hidden, hidden, shape)] if parts.hidden is not None else []
        if parts.mask is not None:
            if not masks:
                what = f"the decoder takes {parts.mask}, and the encoder no mask"
                raise InputError(what, where=str(self.files.encoder))
            given.append(Given(parts.mask, masks[0], shapes[masks[0]]))
        encoder = Encoder(
            sources[0],
            shapes[sources[0]],
            hidden,
            parts.memory_input,
            tuple(given),
            self.files.start,
            masks[0] if masks else None,
        )
        inputs = {str(value.name): value for value in parts.step.graph.inputs}
        cache = [
            CacheTensor(past, present, *cache_shape(inputs[past], batch, self.length))
            for past, present in parts.cache.items()
        ]
        return Layout(batch, self.length, parts.ids, parts.logits, tuple(cache), encoder=encoder)

    def _step_shapes(self, layout: Layout, past: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs of the step for some size of its past."""
        shapes = layout.shapes(1)
        for each in layout.cache:
            shapes[each.past] = (*each.shape[: each.axis], past, *each.shape[each.axis + 1 :])
        return shapes

    def _proven(self, manifest: Manifest, tolerances: Tolerances, folder: Path) -> Manifest:
        """The manifest of a model that has generated what the reference generates, from shorter sources as well."""
        layout = manifest.decoder
        assert layout is not None
        assert layout.encoder is not None
        if manifest.proof.level is not Proof.RUN:
            note = "generation was not compared with the reference, so that sources are not padded"
            return replace(manifest, notes=[*manifest.notes, f"{note}: {manifest.proof.unproven}"])
        original = EncoderDecoderOriginal(self.files, self.request.freeze)
        error = manifest.proof.error or 0.0
        for each in self._trials(folder, layout, original, layout.encoder.shape[1], tolerances):
            error = max(error, each.error)
            refuse_difference(each, layout, self.files.given)
        proof = replace(manifest.proof, error=error, what=f"{manifest.proof.what}, and by generating")
        manifest = replace(manifest, proof=proof)
        if layout.encoder.mask is None or layout.encoder.shape[1] < 2:
            return manifest
        padded = replace(layout, encoder=replace(layout.encoder, pads=True))
        for each in self._trials(folder, padded, original, layout.encoder.shape[1] // 2, tolerances):
            if each.reason is not None:
                note = "shorter sources are not padded, since the model would compute something else"
                return replace(manifest, notes=[*manifest.notes, f"{note}: {each.reason}"])
        return replace(manifest, decoder=padded)

    def _trials(
        self, folder: Path, layout: Layout, original: EncoderDecoderOriginal, count: int, tolerances: Tolerances
    ) -> Iterable[Trial]:
        """Generate from a source of some size."""
        assert layout.encoder is not None
        source = original.source(layout.encoder, count)
        cache = partial(self._cache, folder, layout, source)
        return trials(cache, original.of(layout, source), PROMPTS, tolerances)

    def _cache(self, folder: Path, layout: Layout, source: Mapping[str, Value]) -> StaticCache:
        """An empty cache of the programs."""
        assert layout.encoder is not None
        limits = {"timeout": self.request.timeout, "memory": self.request.memory}
        names = (ENCODER, MEMORY, f"{WIDTH}=1")
        encoder, memory, step = (
            Bundle(folder / each, runtime=self.request.runtime, **limits).program for each in names
        )
        tokens = source[layout.encoder.source]
        assert isinstance(tokens, np.ndarray)
        given = Encoding(layout.encoder, encoder, memory)(tokens)
        return StaticCache(layout, {each.name: each.numpy for each in step.inputs}, {1: step}, given)


def _with_sizes(model: ir.Model, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The shapes of all inputs for that of one; sizes that do not follow are 1."""
    inputs = {str(value.name): dims_of(value) or () for value in model.graph.inputs}
    sizes = dict(zip(inputs[name], shape, strict=True))
    return {
        each: tuple(dim if isinstance(dim, int) else sizes.get(dim, 1) for dim in dims) for each, dims in inputs.items()
    }


def _outputs(bundle: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the outputs of a bundle that are fixed, by name."""
    found = {each.name: each.sizes or () for each in Manifest.read(manifest_path(bundle)).outputs}
    return {name: sizes for name, shape in found.items() if (sizes := tuple(filter(None, shape))) == shape}
