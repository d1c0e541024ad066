"""The layout of a decoder: which inputs and outputs are token ids, mask, positions, logits and cache, and their sizes.

All programs of a decoder have a cache for ``max_length`` tokens; they differ in their width, the number of tokens that
they take at a time. There are two kinds of caches of all tokens:

    appended   past: max_length - width   the model appends the keys of new tokens; tokens are at the end of the cache,
                                          and zeros of the mask hide its beginning (optimum, torch.onnx)
    in place   past: max_length           the model writes keys to their places; tokens are at the beginning
                                          (com.microsoft::GroupQueryAttention: onnxruntime-genai)

Besides, or instead, there may be states, which the model replaces as a whole: a cache that keeps a window of tokens and
evicts those before it, the last inputs of a causal convolution, the sum of a recurrence. Padding would be part of them.

A model with an encoder has two more programs, which run once for each text: the encoder, and the projections of what it
returns to the keys and values of cross-attention (memory), which the decoder takes with every token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnx_bridge.core.schema import Size
from passes.graphs.limits import MAX_ELEMENTS

WIDTH = "width"
"""The name of the number of tokens that a program takes at a time."""
ENCODER, MEMORY = "encoder", "cross-attention"
"""The folders of the programs that run once for each text."""


@dataclass(frozen=True)
class CacheTensor:
    """The keys or the values of a layer: input, output with the new tokens, full shape, and axis of tokens.

    A state has no such axis.
    """

    past: str
    present: str
    shape: tuple[Size, ...]
    axis: Size | None

    def of(self, tokens: int) -> tuple[int, ...]:
        """Return the shape for some tokens."""
        return self.shape if self.axis is None else (*self.shape[: self.axis], tokens, *self.shape[self.axis + 1 :])


@dataclass(frozen=True)
class Given:
    """An input of the decoder that is the same for all tokens of a text.

    Attributes:
        name: its name.
        value: the input of the encoder, or the output of the encoder or of the memory, that it gets.
        shape: the shape of both.
    """

    name: str
    value: str
    shape: tuple[Size, ...]


@dataclass(frozen=True)
class Encoder:
    """The encoder that a decoder generates from.

    Attributes:
        source: the encoder's input of tokens or of features.
        shape: the shape of this input.
        hidden: the encoder's output that the memory takes.
        memory: the input of the memory.
        given: the inputs of the decoder that come from the encoder and the memory.
        start: the tokens that a text begins with; empty if they are not known.
        mask: the encoder's input that is 1 for tokens of the source, and 0 for padding.
        pads: whether a source may have fewer tokens than the shape, the others being padding.
    """

    source: str
    shape: tuple[Size, ...]
    hidden: str
    memory: str
    given: tuple[Given, ...]
    start: tuple[Size, ...] = ()
    mask: str | None = None
    pads: bool = False

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs of the encoder."""
        masks = {} if self.mask is None else {self.mask: self.shape[:2]}
        return {self.source: self.shape, **masks}

    def __post_init__(self) -> None:
        if len(self.shape) < 2 or not 0 < math.prod(self.shape) <= MAX_ELEMENTS or self.source == self.mask:
            raise ValueError("the encoder has no source")
        if self.pads and self.mask is None:
            raise ValueError("nothing hides the padding of the source")


@dataclass(frozen=True)
class Layout:
    """The layout of a decoder.

    Attributes:
        batch: the number of texts that are generated at a time.
        max_length: the size of the cache: the most tokens that are fed, which are the prompt and all new ones but the
            last.
        ids: the input of token ids, (batch, width).
        logits: the output, (batch, width, vocabulary); or (batch, vocabulary) for the last token only.
        cache: the caches of all layers.
        mask: the input of the attention mask, (batch, max_length): 1 for tokens, 0 for what is hidden.
        positions: the input of position ids, (batch, width); or (sections, batch, width), alike for a text.
        in_place: whether the model writes to the places of a cache, instead of appending to it.
        pads: whether a program may take fewer tokens than its width, the others being padding.
        length: the input, (1), of the number of tokens that are in the cache; None if the model does not need it.
        encoder: the encoder that it generates from; None for a decoder that continues its prompt.
        sections: the sections of positions that models of pictures distinguish; None if their input has no such axis.
        stop: the tokens that end a text, as the model's folder declares; empty if it does not.
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
    length: str | None = None
    encoder: Encoder | None = None
    sections: Size | None = None
    stop: tuple[Size, ...] = ()

    @property
    def given(self) -> tuple[Given, ...]:
        """The inputs that are the same for all tokens of a text."""
        return () if self.encoder is None else self.encoder.given

    def shapes(self, width: int, past: int | None = None) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the inputs of the program that takes ``width`` tokens; of the model, behind ``past``."""
        seen = self.max_length if past is None else past + width
        if past is None:
            past = self.max_length - (0 if self.in_place else width)
        shapes: dict[str, tuple[int, ...]] = {self.ids: (self.batch, width)}
        if self.mask is not None:
            shapes[self.mask] = (self.batch, seen)
        if self.positions is not None:
            shapes[self.positions] = (*filter(None, [self.sections]), self.batch, width)
        if self.length is not None:
            shapes[self.length] = (1,)
        for tensor in self.cache:
            shapes[tensor.past] = tensor.of(past)
        return {**shapes, **{given.name: given.shape for given in self.given}}

    @property
    def has_states(self) -> bool:
        """True if the model keeps something from which single tokens cannot be hidden."""
        return any(tensor.axis is None for tensor in self.cache)

    def __post_init__(self) -> None:
        names = [self.ids, *(tensor.past for tensor in self.cache), *(given.name for given in self.given)]
        names += filter(None, (self.mask, self.positions, self.length))
        if len(set(names)) < len(names):
            raise ValueError("an input of the decoder has two roles")
        for tensor in self.cache:
            if tensor.axis is not None and tensor.shape[tensor.axis : tensor.axis + 1] != (self.max_length,):
                raise ValueError(f"the cache {tensor.past} is not for {self.max_length} tokens")
        if not 0 < self.batch * self.max_length <= MAX_ELEMENTS or not self.cache:
            raise ValueError("the decoder has no tokens, too many, or no cache")
        if self.pads and self.has_states:
            raise ValueError("padding would be part of the decoder's states")
