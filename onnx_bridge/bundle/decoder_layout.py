"""The layout of a decoder: which inputs and outputs are token ids, mask, positions, logits and cache, and their sizes.

All programs of a decoder have a cache for ``max_length`` tokens; they differ in their width, the number of tokens that
they take at a time. There are two kinds of caches:

    appended   past: max_length - width   the model appends the keys of new tokens; tokens are at the end of the cache,
                                          and zeros of the mask hide its beginning (optimum, torch.onnx)
    in place   past: max_length           the model writes keys to their places; tokens are at the beginning
                                          (com.microsoft::GroupQueryAttention: onnxruntime-genai)
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx_bridge.core.schema import Size
from passes.core.limits import MAX_ELEMENTS

WIDTH = "width"
"""The name of the number of tokens that a program takes at a time."""


@dataclass(frozen=True)
class CacheTensor:
    """The keys or the values of a layer.

    Attributes:
        past: the input.
        present: the output, which has the new tokens as well.
        shape: of the cache for all tokens.
        axis: of the tokens.
    """

    past: str
    present: str
    shape: tuple[Size, ...]
    axis: Size


@dataclass(frozen=True)
class Layout:
    """The layout of a decoder.

    Attributes:
        batch: the number of texts that are generated at a time.
        max_length: the most tokens of a text, the prompt included.
        ids: the input of token ids, (batch, width).
        logits: the output, (batch, width, vocabulary); or only those of the last token.
        cache: the caches of all layers.
        mask: the input of the attention mask, (batch, max_length): 1 for tokens, 0 for what is hidden.
        positions: the input of position ids, (batch, width).
        in_place: whether the model writes to the places of a cache, instead of appending to it.
        pads: whether a program may take fewer tokens than its width, the others being padding.
    """

    batch: Size
    max_length: Size
    ids: str
    logits: str
    cache: tuple[CacheTensor, ...]
    mask: str | None = None
    positions: str | None = None
    in_place: bool = False
    pads: bool = False

    def shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs of the program that takes ``width`` tokens."""
        past = self.max_length - (0 if self.in_place else width)
        found: dict[str, tuple[int, ...]] = {self.ids: (self.batch, width)}
        if self.mask is not None:
            found[self.mask] = (self.batch, self.max_length)
        if self.positions is not None:
            found[self.positions] = (self.batch, width)
        for each in self.cache:
            found[each.past] = (*each.shape[: each.axis], past, *each.shape[each.axis + 1 :])
        return found

    def __post_init__(self) -> None:
        names = [self.ids, *(each.past for each in self.cache), *filter(None, (self.mask, self.positions))]
        if len(set(names)) < len(names):
            raise ValueError("an input of the decoder has two roles")
        for each in self.cache:
            if each.axis >= len(each.shape) or each.shape[each.axis] != self.max_length:
                raise ValueError(f"the cache {each.past} is not for {self.max_length} tokens")
        if not 0 < self.batch * self.max_length <= MAX_ELEMENTS or not self.cache:
            raise ValueError("it is a decoder without tokens or without a cache")
