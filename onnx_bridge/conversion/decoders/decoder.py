"""Converting a decoder: programs for prompts and for single tokens, over a cache of fixed size, in one bundle.

All programs are the same model with other sizes (`onnx_bridge.bundle.manifest.layout`); large weights of the cleaned
models are written once. They generate beside the reference at the width of each program and inside, where a prompt is
padded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.decoding.decoder import Decoder
from onnx_bridge.bundle.decoding.trial import Original, Trial, edges, inside, trials
from onnx_bridge.bundle.manifest.axes import label
from onnx_bridge.bundle.manifest.layout import WIDTH, Layout
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.conversion.decoders.encoder_decoder.convert import run_encoder_decoder
from onnx_bridge.conversion.decoders.encoder_decoder.files import Files
from onnx_bridge.conversion.decoders.generating import GeneratingConversion
from onnx_bridge.conversion.decoders.layout import (
    BRANCH,
    has_encoder,
    recognize,
    tokens_at_once,
)
from onnx_bridge.conversion.decoders.positions import positioned, refuse_other_branch
from onnx_bridge.conversion.keys import content_key
from onnx_bridge.conversion.precision.computed_precision import computed_precision
from onnx_bridge.conversion.programs.instances import Instance
from onnx_bridge.conversion.programs.several import Converted, Resolved
from onnx_bridge.conversion.source import Source
from onnx_bridge.core.errors import InputError, ParityError
from onnx_bridge.core.files.code_digest import code_digest
from onnx_bridge.core.files.digest import json_digest
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.values import as_array
from onnx_bridge.model import io as models
from onnx_bridge.model.embedding import embedding_of, with_embedding
from onnx_bridge.model.folder import contexts, stop_tokens
from onnx_bridge.requests.conversion import CleanRequest, ConvertRequest
from onnx_bridge.samples.decoders import is_decoder, usual_length
from onnx_bridge.samples.inputs import Sample
from onnx_bridge.samples.suitable import suitable

_PREFILL = 64
"""The default of ``prefill``."""
_ASSUMED = {BRANCH: "[true]", "num_logits_to_keep": "0", "logits_to_keep": "0"}
"""The values of inputs that nobody gives: the branch with a cache, and the logits of all tokens (transformers.js)."""


def run_decoder(source: Source, out: Path, request: ConvertRequest, progress: Progress) -> Bundle:
    """Convert a decoder as a request with its sizes says; errors are those of `onnx_bridge.convert`."""
    if isinstance(source.given, ir.Model):
        raise InputError("a decoder is converted from a file", where="decoder", hint="save the model")
    for name in ("buckets", "ties", "pad", "pad_before", "shapes", "calibration"):
        if getattr(request, name):
            what = "a decoder chooses its own shapes, and is not calibrated"
            raise InputError(what, where=name, hint="give `max_length` and `prefill` alone")
    if has_encoder(source.view(), request.freeze):
        return run_encoder_decoder(Files.beside(Path(source.given)), out, request, progress)
    return DecoderConversion.of(source, out, request).run(progress)


def with_defaults(source: Source, request: ConvertRequest) -> ConvertRequest:
    """Return the request of a model, with a decoder's sizes from the configuration beside it.

    Args:
        source: a file; it is a decoder if the request says so, or if it has a cache.

    Raises:
        InputError: the configuration cannot be read, or a decoder that is no folder has none, and the request no sizes.
    """
    model = source.view()
    if (embedding := embedding_of(Path(str(source.given)), model)) is not None:
        model = with_embedding(source.model(), embedding)
    inputs = {str(value.name): value for value in model.graph.inputs}
    if not request.decoder and not is_decoder(model):
        return request
    length, prefill = request.max_length, request.prefill
    if length is None:
        known = [*contexts(Path(str(source.given)))]
        if not known and request.decoder:
            what, hint = "a decoder needs the size of its cache", "give `max_length` as well"
            error = InputError(what, where="decoder", hint=hint)
            error.options = ("--max-length", str(usual_length(inputs))) if is_decoder(model) else ()
            raise error
        length = max(2, min([*known, usual_length(inputs)]))
    if not prefill and tokens_at_once(inputs, request) is None and not has_encoder(model, request.freeze):
        prefill = (min(_PREFILL, length // 2),)
    return replace(request, decoder=True, max_length=length, prefill=prefill)


@dataclass(frozen=True)
class DecoderConversion(GeneratingConversion):
    """The conversion of a decoder.

    Attributes:
        model: the same in memory.
        request: the request, with the values of all inputs that have no role.
        key: the content key of the request as it was given.
        layout: the layout of the decoder, without padding.
        widths: the widths of the programs, the smallest first.
        programs: the models that are converted instead of the source, by width (`positioned`).
        file: the file that the user named; the source has the embedding of tokens besides, if that is another file.
        embedding: the digest of that other file, as the manifest names it; empty without one.
    """

    source: Source
    model: ir.Model
    out: Path
    request: ConvertRequest
    key: str | None
    layout: Layout
    widths: tuple[int, ...]
    programs: Mapping[int, Source]
    file: Source
    embedding: Mapping[str, str]
    shorter = "prompts"

    @classmethod
    def of(cls, source: Source, out: Path, request: ConvertRequest) -> DecoderConversion:
        """Recognize a decoder; raises InputError."""
        sizes = request.decoder_sizes
        assert sizes is not None
        source.hash()
        given, embedding = source, embedding_of(Path(str(source.given)), source.view())
        digests = {} if embedding is None else {f"sha256 of {embedding.name}": models.digest(embedding)}
        if embedding is not None:
            digest = json_digest([given.digest, *digests.values(), code_digest(with_embedding.__module__)])
            source = Source(with_embedding(given.model(), embedding), name=given.name, digest=digest)
        original, key = source.model(), content_key(source.digest, request)
        inputs = {value.name for value in original.graph.inputs}
        assumed = {name: text for name, text in _ASSUMED.items() if name in inputs}
        request = replace(request, freeze={**assumed, **request.freeze})
        layout = recognize(original, request, sizes)
        widths = tuple(sorted({1, *sizes.prefill}))
        layout = replace(layout, stop=stop_tokens(Path(str(given.given))))
        layout, programs = positioned(source, request, layout, widths)
        return cls(source, original, out, request, key, layout, widths, programs, given, digests)

    @property
    def given(self) -> Source:
        return self.file

    @property
    def origin(self) -> dict[str, str | None]:
        """The file of the decoder, and the digest of that of the embedding."""
        return {**self.file.to_json(), **self.embedding}

    @property
    def folders(self) -> list[str]:
        return [label({WIDTH: width}) for width in self.widths]

    def padded(self, layout: Layout) -> Layout | None:
        return None if layout.has_states else replace(layout, pads=True)

    def resolve(self, folder: Path, progress: Progress) -> Resolved:
        """Return a program for each width."""
        budget = self.request.prove_budget / len(self.widths)
        common = replace(self.request, dims={}, decoder=False, max_length=None, prefill=(), prove_budget=budget)
        if self.programs:  # frozen already
            common = replace(common, freeze={})
        instances = [
            Instance(
                {WIDTH: width},
                replace(common, shapes=self.layout.shapes(width)),
                [self._sample(width)],
                self.programs.get(width),
            )
            for width in self.widths
        ]
        whole = CleanRequest(self.request.pipeline, freeze=self.request.freeze)
        return Resolved(self.source, instances, whole, layout=self.layout)

    def prove(self, manifest: Manifest, converted: Converted, progress: Progress) -> Manifest:
        try:
            return super().prove(manifest, converted, progress)
        except ParityError:
            refuse_other_branch(self.source, self.request, self.layout)
            raise

    def trials(self, decoder: Decoder, converted: Converted, *, shorter: bool) -> Iterable[Trial]:
        """Generate behind prompts of the widths of programs, or of sizes between them."""
        original = Original(Path(str(self.file.given)), self.request.freeze)
        tolerances = computed_precision(self.model, converted.cleaned, self.request.precision).tolerances
        lengths = inside(self.widths) if shorter else edges(self.widths)
        return trials(decoder.cache, original, lengths, tolerances)

    def _sample(self, width: int) -> Sample:
        """Return tokens behind a full cache."""
        (sample,) = suitable(self.model, self.layout.shapes(width))
        mask = self.layout.mask
        masks = {} if mask is None else {mask: np.ones_like(as_array(sample[mask]))}
        length = {} if self.layout.length is None else {self.layout.length: np.array([self.layout.max_length - width])}
        return {**sample, **masks, **length}
