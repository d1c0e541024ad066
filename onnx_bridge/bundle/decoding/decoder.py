"""A decoder: a bundle that generates text, token by token, with a static cache."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from onnx_bridge.bundle.buckets import Buckets
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.decoding.caches import StaticCache
from onnx_bridge.bundle.decoding.encoding import Encoding
from onnx_bridge.bundle.decoding.sampling import Choose, greedy, tokens
from onnx_bridge.bundle.files.pack import unpacked
from onnx_bridge.bundle.manifest.buckets_manifest import BucketsManifest
from onnx_bridge.bundle.manifest.layout import ENCODER, MEMORY, WIDTH, Layout
from onnx_bridge.bundle.manifest.text import manifest_path
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array, Value


class Decoder(Buckets):
    """A language model, converted for a cache of fixed size and several numbers of tokens at a time.

    Attributes:
        layout: of its inputs and outputs.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        runtime: str | None = None,
        timeout: float | None = None,
        memory: float | None = None,
    ) -> None:
        super().__init__(path, runtime=runtime, timeout=timeout, memory=memory)
        if self.manifest.decoder is None:
            raise InputError("this is not a decoder", where=str(path), hint="`convert --as decoder` makes one")
        self.layout: Layout = self.manifest.decoder
        self._check()

    def generate(
        self,
        input_ids: Array,
        max_new_tokens: int | None = None,
        *,
        attention_mask: Array | None = None,
        prompt: Array | None = None,
        choose: Choose = greedy,
        stop: Collection[int] = (),
    ) -> Array:
        """Generate the tokens that follow prompts; or, of a model with an encoder, those of a text from a source.

        Args:
            input_ids: the prompts, (batch, count); or the source: tokens likewise, or features.
            max_new_tokens: the most tokens; default: until the cache is full.
            attention_mask: (batch, count), 0 for padding in front of shorter prompts, or behind shorter sources;
                default: there is none.
            prompt: of a model with an encoder, the tokens that the text begins with, (batch, count); default: its own
                first token.
            choose: sampling: from logits, (batch, vocabulary) float32, to tokens, (batch,); default: the most probable.
            stop: tokens that end a text; it is filled up with its last token while others go on.

        Returns:
            The new tokens, (batch, new) int64.

        Raises:
            InputError: an argument is wrong, or the prompt is longer than the cache.
            RuntimeFailure: MIGraphX failed.
        """
        options = {"attention_mask": attention_mask, "prompt": prompt}
        found = list(self.stream(input_ids, max_new_tokens, **options, choose=choose, stop=stop))
        return np.stack(found, 1) if found else np.zeros((self.layout.batch, 0), np.int64)

    def stream(
        self,
        input_ids: Array,
        max_new_tokens: int | None = None,
        *,
        attention_mask: Array | None = None,
        prompt: Array | None = None,
        choose: Choose = greedy,
        stop: Collection[int] = (),
    ) -> Iterator[Array]:
        """The same as `generate`, token by token: yields (batch,) int64."""
        layout = self.layout
        if layout.encoder is None:
            if prompt is not None:
                raise InputError(
                    "a decoder without an encoder has no prompt besides its input", hint="give one of both"
                )
            return tokens(self.cache(), input_ids, max_new_tokens, mask=attention_mask, choose=choose, stop=stop)
        if prompt is None:
            if not layout.encoder.start:
                what = "the token that a text begins with is not known"
                raise InputError(what, where=str(self.path), hint="give it as the prompt")
            prompt = np.tile(np.array(layout.encoder.start), (layout.batch, 1))
        return tokens(self.cache(input_ids, attention_mask), prompt, max_new_tokens, choose=choose, stop=stop)

    def cache(self, source: Array | None = None, mask: Array | None = None) -> StaticCache:
        """An empty cache, which takes tokens and returns logits; for conversations, and for sampling of one's own.

        Args:
            source: of a model with an encoder, what to generate from.
            mask: its attention mask.

        Raises:
            InputError: the source is missing, or does not fit the model.
            RuntimeFailure: MIGraphX failed.
        """
        if (self.layout.encoder is None) is not (source is None):
            what = "a decoder without an encoder has no source" if source is not None else "the source is missing"
            raise InputError(what, where=str(self.path))
        programs = self._programs
        dtypes = {each.name: each.numpy for each in programs[1].inputs}
        encoding = self.encoding
        given = {} if encoding is None or source is None else encoding(source, mask)
        return StaticCache(self.layout, dtypes, programs, given)

    @property
    def _programs(self) -> dict[int, Bundle]:
        """The programs of the decoder itself, by width."""
        pairs = zip(self.manifest.buckets, self.bundles, strict=True)
        return {each.dims[WIDTH]: bundle for each, bundle in pairs if WIDTH in each.dims}

    @property
    def encoding(self) -> Encoding | None:
        """The programs that run once for a text."""
        layout = self.layout.encoder
        found = {each.folder: bundle for each, bundle in zip(self.manifest.buckets, self.bundles, strict=True)}
        return None if layout is None else Encoding(layout, found[ENCODER], found[MEMORY])

    def __call__(self, arrays: Mapping[str, Value]) -> dict[str, Value]:
        """Run one program, the one that takes as many tokens as there are; arguments and errors are `Bundle`'s."""
        ids = arrays.get(self.layout.ids)
        shape = ids.shape if isinstance(ids, np.ndarray) else ()
        for width, bundle in self._programs.items():
            if shape == (self.layout.batch, width):
                return bundle(arrays)
        widths = ", ".join(map(str, self._programs))
        what = f"no program takes token ids of the shape {list(shape)}"
        raise InputError(what, where=str(self.path), hint=f"they take {widths} tokens; `generate` takes any number")

    @property
    def example(self) -> tuple[str, ...]:
        """Options of the verb ``generate`` that it takes."""
        encoder = self.layout.encoder
        prompt = () if encoder is None or encoder.start else ("--prompt", "1")
        if encoder is None or len(encoder.shape) == 2:
            return "--ids", "1,2,3", *prompt
        return "--inputs", f"{encoder.source}.npy", *prompt

    def _check(self) -> None:
        """Require that the programs have the layout of the manifest; raises InputError."""
        layout, buckets = self.layout, self.manifest.buckets
        folders = {ENCODER, MEMORY} if layout.encoder is not None else set()
        others = [each.folder for each in buckets if WIDTH not in each.dims]
        if not buckets or buckets[0].dims != {WIDTH: 1} or {*others} != folders or len(others) > len(folders):
            what = "the manifest is damaged: these are not the programs of a decoder"
            raise InputError(what, where=str(self.path), hint="convert again")
        needed = {layout.logits, *(each.present for each in layout.cache)}
        damaged = [
            bundle
            for width, bundle in self._programs.items()
            if not 0 < width <= layout.max_length
            or {each.name: each.shape for each in bundle.inputs} != layout.shapes(width)
            or needed - {each.name for each in bundle.outputs}
        ]
        if damaged or not (self.encoding is None or self.encoding.is_intact):
            what = "the manifest is damaged: the programs do not have the layout of the decoder"
            raise InputError(what, where=str(damaged[0].path if damaged else self.path), hint="convert again")


def open_buckets(
    path: str | os.PathLike[str],
    *,
    runtime: str | None = None,
    timeout: float | None = None,
    memory: float | None = None,
) -> Buckets:
    """A bundle with buckets, which may be a decoder; raises InputError."""
    manifest = BucketsManifest.read(manifest_path(unpacked(path)))
    kind = Buckets if manifest.decoder is None else Decoder
    return kind(path, runtime=runtime, timeout=timeout, memory=memory)
