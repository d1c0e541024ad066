"""A decoder: a bundle that generates text, token by token, with a static cache."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from onnx_bridge.bundle.buckets import Buckets
from onnx_bridge.bundle.buckets_manifest import BucketsManifest
from onnx_bridge.bundle.decoder_layout import WIDTH, Layout
from onnx_bridge.bundle.decoding.caches import StaticCache
from onnx_bridge.bundle.decoding.sampling import Choose, greedy, tokens
from onnx_bridge.bundle.manifest_text import manifest_path
from onnx_bridge.bundle.pack import unpacked
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array, Value

if TYPE_CHECKING:
    from rich.console import RenderableType


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
        choose: Choose = greedy,
        stop: Collection[int] = (),
    ) -> Array:
        """Generate the tokens that follow prompts.

        Args:
            input_ids: the prompts, (batch, count).
            max_new_tokens: the most tokens; default: until the cache is full.
            attention_mask: (batch, count), 0 for padding in front of shorter prompts; default: there is none.
            choose: sampling: from logits, (batch, vocabulary) float32, to tokens, (batch,); default: the most probable.
            stop: tokens that end a text; it is filled up with its last token while others go on.

        Returns:
            The new tokens, (batch, new) int64.

        Raises:
            InputError: an argument is wrong, or the prompt is longer than the cache.
            RuntimeFailure: MIGraphX failed.
        """
        found = list(self.stream(input_ids, max_new_tokens, attention_mask=attention_mask, choose=choose, stop=stop))
        return np.stack(found, 1) if found else np.zeros((self.layout.batch, 0), np.int64)

    def stream(
        self,
        input_ids: Array,
        max_new_tokens: int | None = None,
        *,
        attention_mask: Array | None = None,
        choose: Choose = greedy,
        stop: Collection[int] = (),
    ) -> Iterator[Array]:
        """The same as `generate`, token by token: yields (batch,) int64."""
        return tokens(self.cache(), input_ids, max_new_tokens, mask=attention_mask, choose=choose, stop=stop)

    def cache(self) -> StaticCache:
        """An empty cache, which takes tokens and returns logits; for conversations, and for sampling of one's own."""
        dtypes = {each.name: each.numpy for each in self.bundles[0].inputs}
        programs = {each.dims[WIDTH]: bundle for each, bundle in zip(self.manifest.buckets, self.bundles, strict=True)}
        return StaticCache(self.layout, dtypes, programs)

    def __call__(self, arrays: Mapping[str, Value]) -> dict[str, Value]:
        """Run one program, the one that takes as many tokens as there are; arguments and errors are `Bundle`'s."""
        ids = arrays.get(self.layout.ids)
        shape = ids.shape if isinstance(ids, np.ndarray) else ()
        for bundle in self.bundles:
            if bundle.inputs and any(each.name == self.layout.ids and each.shape == shape for each in bundle.inputs):
                return bundle(arrays)
        widths = ", ".join(str(each.dims[WIDTH]) for each in self.manifest.buckets)
        what = f"no program takes token ids of the shape {list(shape)}"
        raise InputError(what, where=str(self.path), hint=f"they take {widths} tokens; `generate` takes any number")

    def render(self) -> RenderableType:
        """As text for the terminal."""
        from rich.console import Group

        layout = self.layout
        kind = "written in place" if layout.in_place else "appended to"
        line = f"decoder: {len(layout.cache)} caches for {layout.max_length} tokens, {kind}; batch {layout.batch}"
        return Group(super().render(), line)

    def _check(self) -> None:
        """Require that the programs have the layout of the manifest; raises InputError."""
        for info, bundle in zip(self.manifest.buckets, self.bundles, strict=True):
            width = info.dims.get(WIDTH, 0)
            inputs = {each.name: each.shape for each in bundle.inputs}
            outputs = {each.name for each in bundle.outputs}
            needed = {self.layout.logits, *(each.present for each in self.layout.cache)}
            if not 0 < width <= self.layout.max_length or inputs != self.layout.shapes(width) or needed - outputs:
                what = "the manifest is damaged: the program does not have the layout of the decoder"
                raise InputError(what, where=str(bundle.path), hint="convert again")
        if not self.bundles or self.manifest.buckets[0].dims != {WIDTH: 1}:
            what = "the manifest is damaged: no program takes a single token"
            raise InputError(what, where=str(self.path), hint="convert again")


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
