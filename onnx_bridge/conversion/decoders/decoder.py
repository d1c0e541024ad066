"""Converting a decoder: programs for prompts and for single tokens, over a cache of fixed size, in one bundle.

All programs are the same model with other sizes (`onnx_bridge.bundle.manifest.layout`); large weights of the cleaned
models are written once. They generate beside the reference at the width of each program and inside, where a prompt is
padded.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.decoding.decoder import Decoder
from onnx_bridge.bundle.decoding.trial import Original, Trial, edges, inside, trials
from onnx_bridge.bundle.manifest.axes import label
from onnx_bridge.bundle.manifest.layout import WIDTH, Layout
from onnx_bridge.conversion.decoders.encoder_decoder.convert import run_encoder_decoder
from onnx_bridge.conversion.decoders.encoder_decoder.files import Files
from onnx_bridge.conversion.decoders.encoder_decoder.parts import has_encoder
from onnx_bridge.conversion.decoders.generating import GeneratingConversion
from onnx_bridge.conversion.decoders.layout import BRANCH, recognize
from onnx_bridge.conversion.decoders.positions import positioned
from onnx_bridge.conversion.precision.computed_precision import computed_precision
from onnx_bridge.conversion.programs.instances import Instance, content_key
from onnx_bridge.conversion.programs.several import Converted, Resolved
from onnx_bridge.conversion.source import ModelSource, Source
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.progress import Progress, silent
from onnx_bridge.core.values import Array
from onnx_bridge.model import io as models
from onnx_bridge.requests.cleaning import CleanRequest, as_json
from onnx_bridge.requests.conversion import PROVE_BUDGET, ConvertRequest, DecoderSizes, Prove
from onnx_bridge.samples.inputs import Sample
from onnx_bridge.samples.suitable import suitable
from passes.isolation.limits import Limits, limited


def convert_decoder(  # noqa: PLR0913
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    max_length: int,
    *,
    prefill: Sequence[int] = (),
    target: str = "auto",
    pipeline: str = "default",
    dims: Mapping[str, int] | None = None,
    freeze: Mapping[str, Array | str] | None = None,
    host: bool = True,
    cache: bool = True,
    precision: str = "fp32",
    keep_fp32: Sequence[str] = (),
    options: Mapping[str, bool | str] | None = None,
    timeout: float | None = None,
    memory: float | None = None,
    runtime: str | None = None,
    reuse: bool = True,
    prove: Prove = "auto",
    prove_budget: float = PROVE_BUDGET,
    progress: Progress | None = None,
) -> Bundle:
    """Convert a language model with a cache, as optimum and onnxruntime-genai export it, so that it generates.

    Args:
        model: an ONNX file; its inputs are token ids, an attention mask, perhaps position ids, and the cache. If it
            takes what an encoder returns, its other files are beside it, as optimum names them.
        out: a folder.
        max_length: the most tokens of a text, the prompt included: the size of the cache.
        prefill: how many tokens of a prompt programs take at a time, a program for each; there is always one for a
            single token. A prompt of any length is cut into these.
        target: like the following, as for `onnx_bridge.convert`.
        pipeline: as above.
        dims: the size of the batch, by its symbol, default 1; and the sizes of an encoder's inputs.
        freeze: as above.
        host: as above.
        cache: as above.
        precision: fp32, fp16 or bf16, as above.
        keep_fp32: as above.
        options: as above.
        timeout: as above.
        memory: as above.
        runtime: as above.
        reuse: whether to keep those programs of an earlier bundle in ``out`` that are up to date.
        prove: as above; programs are proven one by one, and then by generating with all of them.
        prove_budget: as above; that of all programs together.
        progress: as above.

    Raises:
        InputError: the model is not a decoder whose cache can be of fixed size, or as for `onnx_bridge.convert`.
        ParityError: the decoder's logits differ from the reference's.
        RuntimeFailure: as for `onnx_bridge.convert`.
    """
    request = ConvertRequest(
        target=target,
        pipeline=pipeline,
        dims=dict(dims or {}),
        freeze=as_json(freeze),
        decoder=DecoderSizes(max_length, tuple(prefill)),
        host=host,
        cache=cache,
        precision=precision,
        keep_fp32=tuple(keep_fp32),
        options=dict(options or {}),
        timeout=timeout,
        memory=memory,
        runtime=runtime,
        reuse=reuse,
        prove=prove,
        prove_budget=prove_budget,
    )
    return run_decoder(model, Path(out), request, progress)


def run_decoder(model: ModelSource, out: Path, request: ConvertRequest, progress: Progress | None = None) -> Bundle:
    """Convert a decoder as a request with its sizes says; errors are those of `convert_decoder`."""
    if isinstance(model, ir.Model):
        raise InputError("a decoder is converted from a file", where="decoder", hint="save the model")
    for name in ("buckets", "ties", "pad", "pad_before", "shapes", "calibration"):
        if getattr(request, name):
            what = "a decoder chooses its own shapes, and is not calibrated"
            raise InputError(what, where=name, hint="give max_length and prefill alone")
    with limited(Limits.of(request.timeout, request.memory)):
        if has_encoder(models.load(model), request.freeze):
            return run_encoder_decoder(Files.beside(Path(model)), out, request, progress or silent)
        return DecoderConversion.of(model, out, request).run(progress or silent)


@dataclass(frozen=True)
class DecoderConversion(GeneratingConversion):
    """The conversion of a decoder.

    Attributes:
        source: the model.
        model: the same in memory.
        out: the folder.
        request: with the values of all inputs that have no role.
        key: the content key of the request as it was given.
        layout: of the decoder, without padding.
        widths: of the programs, the smallest first.
        programs: by width, the models that are converted instead of the source (`positioned`).
    """

    source: Source
    model: ir.Model
    out: Path
    request: ConvertRequest
    key: str | None
    layout: Layout
    widths: tuple[int, ...]
    programs: Mapping[int, Source]
    shorter = "prompts"

    @classmethod
    def of(cls, model: ModelSource, out: Path, request: ConvertRequest) -> DecoderConversion:
        """Recognize a decoder; raises InputError."""
        sizes = request.decoder
        assert sizes is not None
        source = Source.of(model)
        source.hash()
        original, key = source.model(), content_key(source, request)
        if any(value.name == BRANCH for value in original.graph.inputs) and BRANCH not in request.freeze:
            request = replace(request, freeze={**request.freeze, BRANCH: "[true]"})
        layout = recognize(original, request, sizes)
        widths = tuple(sorted({1, *sizes.prefill}))
        layout, programs = positioned(source, request, layout, widths)
        return cls(source, original, out, request, key, layout, widths, programs)

    @property
    def folders(self) -> list[str]:
        """The folders of all programs."""
        return [label({WIDTH: width}) for width in self.widths]

    def padded(self, layout: Layout) -> Layout:
        """Return a layout with padding."""
        return replace(layout, pads=True)

    def resolve(self, folder: Path, progress: Progress) -> Resolved:
        """Return a program for each width."""
        budget = self.request.prove_budget / len(self.widths)
        common = replace(self.request, dims={}, decoder=None, prove_budget=budget)
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

    def trials(self, decoder: Decoder, converted: Converted, *, shorter: bool) -> Iterable[Trial]:
        """Generate behind prompts of the widths of programs, or of sizes between them."""
        original = Original(Path(str(self.source.given)), self.request.freeze)
        tolerances = computed_precision(self.model, converted.cleaned, self.request.precision).tolerances
        lengths = inside(self.widths) if shorter else edges(self.widths)
        return trials(decoder.cache, original, lengths, tolerances)

    def _sample(self, width: int) -> Sample:
        """Return tokens behind a full cache."""
        (sample,) = suitable(self.model, self.layout.shapes(width))
        assert self.layout.mask is not None
        mask = sample[self.layout.mask]
        assert isinstance(mask, np.ndarray)
        length = {} if self.layout.length is None else {self.layout.length: np.array([self.layout.max_length - width])}
        return {**sample, self.layout.mask: np.ones_like(mask), **length}
