"""The part of a bundle that generates text, token by token, with programs over a cache of fixed size."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from onnx_bridge.bundle.decoding.caches import StaticCache
from onnx_bridge.bundle.decoding.encoding import Encoding
from onnx_bridge.bundle.decoding.sampling import Choose, greedy, tokens
from onnx_bridge.bundle.manifest.layout import ENCODER, MEMORY, WIDTH, Layout
from onnx_bridge.bundle.program import Program
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array
from onnx_bridge.model.folder import TOKENIZER


class Decoder:
    """A language model, converted for a cache of fixed size and several numbers of tokens at a time.

    Args:
        path: the bundle.
        layout: the layout of its inputs and outputs.
        programs: all programs of the bundle.

    Attributes:
        layout: the layout of its inputs and outputs.
        widths: its programs by the number of tokens that they take.
    """

    def __init__(self, path: Path, layout: Layout, programs: Sequence[Program]) -> None:
        self.layout = layout
        self.widths = {program.info.dims[WIDTH]: program for program in programs if WIDTH in program.info.dims}
        self._path, self._all = path, programs

    def generate(
        self,
        input_ids: Array,
        max_new_tokens: int | None = None,
        *,
        attention_mask: Array | None = None,
        prompt: Array | None = None,
        choose: Choose = greedy,
        stop: Collection[int] | None = None,
    ) -> Array:
        """Generate the tokens that follow prompts; or, if the model has an encoder, the text for a source.

        Args:
            input_ids: the prompts, (batch, count); or the source: tokens, (batch, count), or features.
            max_new_tokens: the most tokens; default: until the cache is full; the last one does not have to fit.
            attention_mask: (batch, count), 0 for padding in front of shorter prompts, or behind shorter sources;
                default: there is none.
            prompt: the tokens that the text begins with, (batch, count), if the model has an encoder; default: its own
                first token.
            choose: sampling: from logits, (batch, vocabulary) float32, to tokens, (batch,); default: the most probable.
            stop: tokens that end a text; it is filled up with its last token while others go on; default: those that
                the model's folder declares (`Layout.stop`).

        Returns:
            The new tokens, (batch, new) int64.

        Raises:
            InputError: an argument is wrong, or the prompt is longer than the cache.
            RuntimeFailure: MIGraphX failed.
        """
        options = {"attention_mask": attention_mask, "prompt": prompt}
        generated = list(self.stream(input_ids, max_new_tokens, **options, choose=choose, stop=stop))
        return np.stack(generated, 1) if generated else np.zeros((self.layout.batch, 0), np.int64)

    def stream(
        self,
        input_ids: Array,
        max_new_tokens: int | None = None,
        *,
        attention_mask: Array | None = None,
        prompt: Array | None = None,
        choose: Choose = greedy,
        stop: Collection[int] | None = None,
    ) -> Iterator[Array]:
        """Generate as `generate` does, token by token: yields (batch,) int64."""
        layout = self.layout
        stop = layout.stop if stop is None else stop
        if layout.encoder is None:
            if prompt is not None:
                what = "a decoder without an encoder has no prompt besides its input"
                raise InputError(what, hint="give one of both")
            return tokens(self.cache(), input_ids, max_new_tokens, mask=attention_mask, choose=choose, stop=stop)
        if prompt is None:
            if not layout.encoder.start:
                what = "the token that a text begins with is not known"
                raise InputError(what, where=str(self._path), hint="give it as the prompt")
            prompt = np.tile(np.array(layout.encoder.start), (layout.batch, 1))
        return tokens(self.cache(input_ids, attention_mask), prompt, max_new_tokens, choose=choose, stop=stop)

    def cache(self, source: Array | None = None, mask: Array | None = None) -> StaticCache:
        """Return an empty cache that takes tokens and returns logits, for conversations and for sampling of one's own.

        Args:
            source: the text or features to generate from, if the model has an encoder.

        Raises:
            InputError: the source is missing, or does not fit the model.
            RuntimeFailure: MIGraphX failed.
        """
        if (self.layout.encoder is None) is not (source is None):
            what = "a decoder without an encoder has no source" if source is not None else "the source is missing"
            raise InputError(what, where=str(self._path))
        programs = self.widths
        dtypes = {tensor.name: tensor.numpy for tensor in programs[1].inputs}
        encoding = self.encoding
        given = {} if encoding is None or source is None else encoding(source, mask)
        return StaticCache(self.layout, dtypes, programs, given)

    @cached_property
    def encoding(self) -> Encoding | None:
        """The programs that run once for a text; None without an encoder."""
        if self.layout.encoder is None:
            return None
        by_folder = {program.path.name: program for program in self._all}
        return Encoding(self.layout.encoder, by_folder[ENCODER], by_folder[MEMORY])

    @property
    def example(self) -> tuple[str, ...]:
        """Options of the verb ``generate`` that it takes."""
        encoder = self.layout.encoder
        prompt = () if encoder is None or encoder.start else ("--prompt", "1")
        if encoder is None and (self._path / TOKENIZER).is_file():
            return "--prompt", "Once upon a time"
        if encoder is None or len(encoder.shape) == 2:
            return "--ids", "1,2,3", *prompt
        return "--inputs", f"{encoder.source}.npy", *prompt

    def __repr__(self) -> str:
        return f"Decoder({str(self._path)!r}, max_length={self.layout.max_length}, batch={self.layout.batch})"

    def check(self) -> None:
        """Require that the programs have the layout; raises InputError."""
        layout, infos = self.layout, [program.info for program in self._all]
        folders = {ENCODER, MEMORY} if layout.encoder is not None else set()
        others = [info.folder for info in infos if WIDTH not in info.dims]
        if infos[0].dims != {WIDTH: 1} or {*others} != folders or len(others) > len(folders):
            what = "the manifest is damaged: these are not the programs of a decoder"
            raise InputError(what, where=str(self._path), hint="convert again")
        needed = {layout.logits, *(tensor.present for tensor in layout.cache)}
        damaged = [
            program.path
            for width, program in self.widths.items()
            if not 0 < width <= layout.max_length
            or {tensor.name: tensor.sizes for tensor in program.inputs} != layout.shapes(width)
            or needed - {tensor.name for tensor in program.outputs}
        ]
        if damaged or not (self.encoding is None or self.encoding.is_intact):
            what = "the manifest is damaged: the programs do not have the layout of the decoder"
            raise InputError(what, where=str(damaged[0] if damaged else self._path), hint="convert again")
