"""Converting a model of an encoder and a decoder: programs that run once for a text, and one for single tokens.

The encoder is converted as it is. The part of the decoder without a cache that computes the keys and values of
cross-attention is a program of its own (memory), so that the decoder with a cache generates all tokens, also the first,
over a cache of fixed size (`static_step`). All of them together then generate beside ONNX Runtime on the model's files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.decoding.decoder import Decoder
from onnx_bridge.bundle.decoding.trial import Trial, trials
from onnx_bridge.bundle.manifest.axes import label
from onnx_bridge.bundle.manifest.layout import ENCODER, MEMORY, WIDTH, CacheTensor, Encoder, Given, Layout
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.bundle.manifest.text import manifest_path
from onnx_bridge.conversion.decoders.encoder_decoder.files import Files
from onnx_bridge.conversion.decoders.encoder_decoder.original import EncoderDecoderOriginal
from onnx_bridge.conversion.decoders.encoder_decoder.parts import Parts
from onnx_bridge.conversion.decoders.encoder_decoder.static_step import sized, static_step
from onnx_bridge.conversion.decoders.generating import GeneratingConversion
from onnx_bridge.conversion.decoders.layout import cache_shape
from onnx_bridge.conversion.keys import content_key
from onnx_bridge.conversion.precision.computed_precision import computed_precision
from onnx_bridge.conversion.programs.instances import Instance
from onnx_bridge.conversion.programs.several import Converted, Resolved
from onnx_bridge.conversion.source import Source
from onnx_bridge.conversion.steps.run import run
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.code_digest import code_digest
from onnx_bridge.core.files.digest import json_digest
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.values import as_array
from onnx_bridge.requests.conversion import CleanRequest, ConvertRequest
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.dimensions import Dim, dims_of
from onnx_bridge.samples.suitable import suitable

PROMPTS = (1, 2)
"""The lengths of prompts behind which a converted model generates to be proven."""


def run_encoder_decoder(files: Files, out: Path, request: ConvertRequest, progress: Progress) -> Bundle:
    """Convert a model as a request with a decoder's sizes says; errors are those of `onnx_bridge.convert`."""
    sizes = request.decoder_sizes
    assert sizes is not None
    if sizes.prefill:
        what = "the decoder of an encoder takes its tokens one at a time"
        raise InputError(what, where="prefill", hint="leave it out: texts begin with few tokens")
    return EncoderDecoderConversion.of(files, out, request, sizes.max_length).run(progress)


@dataclass(frozen=True)
class EncoderDecoderConversion(GeneratingConversion):
    """The conversion of a model of an encoder and a decoder.

    Attributes:
        source: the step, which the bundle is named after.
        request: the request as it was given.
        parts: the models behind the encoder.
        length: the most tokens of a text.
    """

    source: Source
    out: Path
    request: ConvertRequest
    key: str | None
    files: Files
    parts: Parts
    length: int
    shorter = "shorter sources"

    @classmethod
    def of(cls, files: Files, out: Path, request: ConvertRequest, length: int) -> EncoderDecoderConversion:
        """Take a model apart; raises InputError."""
        parts = Parts.of(files, request.freeze)
        source = Source(parts.step, name=files.given.stem, digest=files.digest())
        return cls(source, out, request, content_key(source.digest, request), files, parts, length)

    @property
    def given(self) -> Source:
        return Source(self.files.given)

    @property
    def folders(self) -> list[str]:
        return [label({WIDTH: 1}), ENCODER, MEMORY]

    def padded(self, layout: Layout) -> Layout | None:
        """Return a layout with padding behind shorter sources; None if the encoder takes no mask."""
        encoder = layout.encoder
        if encoder is None or encoder.mask is None or encoder.shape[1] < 2:
            return None
        return replace(layout, encoder=replace(encoder, pads=True))

    def resolve(self, folder: Path, progress: Progress) -> Resolved:
        """Convert the encoder and the memory, and return the step over what they give."""
        encoder = Source(self.files.encoder)
        shapes = self._encoder_shapes(encoder)
        run(encoder, folder / ENCODER, self._request(shapes), progress)
        layout = self._convert_memory(folder, shapes, progress)
        step = static_step(self.parts.step, partial(layout.shapes, 1), layout.batch, self.length)
        layout = replace(layout, mask=step.mask, length=step.length)
        (sample,) = suitable(step.model, layout.shapes(1))
        sample[step.mask] = np.ones((layout.batch, self.length), np.int64)
        instance = Instance({WIDTH: 1}, self._request(layout.shapes(1)), [sample])
        source = self._derived(step.model, "step", layout)
        whole = CleanRequest(self.request.pipeline)
        return Resolved(source, [instance], whole, [ENCODER, MEMORY], layout)

    def trials(self, decoder: Decoder, converted: Converted, *, shorter: bool) -> Iterable[Trial]:
        """Generate from a source of the encoder's size, or from one of half of it."""
        original = EncoderDecoderOriginal(self.files, self.request.freeze)
        encoder = decoder.layout.encoder
        assert encoder is not None
        source = original.source(encoder, encoder.shape[1] // 2 if shorter else encoder.shape[1])
        tokens = as_array(source[encoder.source])
        tolerances = computed_precision(
            converted.resolved.source.model(), converted.cleaned, self.request.precision
        ).tolerances
        return trials(partial(decoder.cache, tokens), original.of(decoder.layout, source), PROMPTS, tolerances)

    @property
    def origin(self) -> dict[str, str | None]:
        """The file that the user named, and the digests of all files."""
        digests = self.files.digests()
        given = {"path": str(self.files.given.absolute()), "sha256": digests[self.files.given.name]}
        return {**given, **{f"sha256 of {name}": digest for name, digest in digests.items()}}

    def _request(self, shapes: Mapping[str, tuple[int, ...]]) -> ConvertRequest:
        """Return the request of one program."""
        common = replace(self.request, dims={}, freeze={}, decoder=False, max_length=None, prefill=())
        return replace(common, shapes=dict(shapes), prove_budget=self.request.prove_budget / 3)

    def _derived(self, model: ir.Model, part: str, layout: Layout | None = None) -> Source:
        """Return a model that was made from the files."""
        origin = [self.files.digest(), part, self.length, dict(self.request.freeze), code_digest(__package__)]
        shapes = [] if layout is None else sorted((name, list(shape)) for name, shape in layout.shapes(1).items())
        return Source(model, name=self.files.given.stem, digest=json_digest([*origin, shapes]))

    def _encoder_shapes(self, encoder: Source) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the encoder's inputs; raises InputError if some sizes are open."""
        shapes: dict[str, list[Dim]] = {}
        for spec in samplers.specs(encoder.model()):
            batch, *others = spec.shape or ()
            first = self.request.dims.get(batch, 1) if isinstance(batch, str) else batch
            sizes = (self.request.dims.get(dim, dim) if isinstance(dim, str) else dim for dim in others)
            shapes[spec.name] = [first, *sizes]
        fixed = {name: tuple(dim for dim in shape if isinstance(dim, int)) for name, shape in shapes.items()}
        if fixed != {name: tuple(shape) for name, shape in shapes.items()}:
            open_ = list(dict.fromkeys(str(dim) for shape in shapes.values() for dim in shape if isinstance(dim, str)))
            hint = f"choose the most that it takes: {' '.join(f'--dim {name}=N' for name in open_)}"
            raise InputError("the encoder has open sizes", where=str(self.files.encoder), hint=hint)
        return fixed

    def _convert_memory(self, folder: Path, shapes: Mapping[str, tuple[int, ...]], progress: Progress) -> Layout:
        """Convert the memory, and put together what is known of the layout."""
        parts = self.parts
        masks = [name for name in shapes if "mask" in name]
        sources = [name for name in shapes if name not in masks]
        if len(sources) != 1 or len(masks) > 1:
            what = f"the encoder's inputs are {', '.join(shapes)}"
            raise InputError(what, where=str(self.files.encoder), hint="an encoder takes a source, and perhaps a mask")
        batch = shapes[sources[0]][0]
        states = {name: shape for name, shape in _outputs(folder / ENCODER).items() if len(shape) == 3}
        if not states:
            raise InputError("the encoder returns no hidden states", where=str(self.files.encoder))
        hidden, shape = next(iter(states.items()))
        memory = sized(parts.memory, _with_sizes(parts.memory, parts.memory_input, shape))
        run(self._derived(memory, "memory"), folder / MEMORY, self._request({parts.memory_input: shape}), progress)
        outputs = _outputs(folder / MEMORY)
        given = [Given(past, name, outputs[name]) for past, name in parts.crossed.items()]
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
        stop = self.files.stop
        return Layout(batch, self.length, parts.ids, parts.logits, tuple(cache), encoder=encoder, stop=stop)


def _with_sizes(model: ir.Model, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all inputs, given the shape of one; sizes that do not follow are 1."""
    inputs = {str(value.name): dims_of(value) or () for value in model.graph.inputs}
    sizes = dict(zip(inputs[name], shape, strict=True))
    return {
        input_name: tuple(dim if isinstance(dim, int) else sizes.get(dim, 1) for dim in dims)
        for input_name, dims in inputs.items()
    }


def _outputs(bundle: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the outputs of a bundle that are fixed, by name."""
    shapes = {tensor.name: tensor.sizes or () for tensor in Manifest.read(manifest_path(bundle)).outputs}
    return {name: sizes for name, shape in shapes.items() if (sizes := tuple(filter(None, shape))) == shape}
