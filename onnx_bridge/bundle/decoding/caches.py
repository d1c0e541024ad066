"""The state of a generation: a cache of fixed size in programs of several widths, or one that grows, for the reference.

Both take tokens by `Cache.feed`, and return the logits of the last one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from onnx_bridge.bundle.manifest.layout import Layout
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array, Value, as_array
from passes.core.text import counted

Program = Callable[[Mapping[str, Value]], Mapping[str, Value]]


class Cache(ABC):
    """The tokens of one text for each row of the batch, and what a model keeps of them.

    Args:
        dtypes: the dtypes of its inputs, by name.

    Attributes:
        length: the number of tokens so far.
    """

    def __init__(self, layout: Layout, dtypes: Mapping[str, np.dtype[Any]]) -> None:
        self.layout, self.length = layout, 0
        self._dtypes = dtypes
        self._seen = np.zeros((layout.batch, 0), np.int64)
        self._arrays: dict[str, Array] = {}

    @property
    def room(self) -> float:
        """The number of tokens that the cache can still take."""
        return math.inf

    def feed(self, ids: Array, mask: Array | None = None) -> Array:
        """Append tokens to the texts.

        Args:
            ids: (batch, count), integers.
            mask: (batch, count), 1 for tokens and 0 for padding in front of them; default: 1.

        Returns:
            The logits of the last tokens, (batch, vocabulary), float32.

        Raises:
            InputError: the tokens are of another shape, or the cache is full.
            RuntimeFailure: MIGraphX failed.
        """
        ids = np.asarray(ids)
        if ids.ndim != 2 or ids.shape[0] != self.layout.batch or not ids.size or ids.dtype.kind not in "iu":
            what = f"the token ids are {ids.dtype.name}{list(ids.shape)}"
            raise InputError(what, hint=f"give integers of shape [{self.layout.batch}, COUNT]")
        if ids.shape[1] > self.room:
            what = f"there is room for {counted(int(self.room), 'token')}, and {ids.shape[1]} are given"
            raise InputError(what, hint="convert with a larger `max_length`")
        mask = np.ones(ids.shape, np.int64) if mask is None else np.asarray(mask).astype(np.int64)
        if mask.shape != ids.shape:
            raise InputError(f"the mask is {list(mask.shape)}, and the token ids are {list(ids.shape)}")
        return self._feed(ids, mask)

    @abstractmethod
    def _feed(self, ids: Array, mask: Array) -> Array: ...

    def _call(self, program: Program, ids: Array, positions: Array, mask: Array, past: Mapping[str, Array]) -> Array:
        """Run a program, keep its caches, and return all of its logits, (batch, count, vocabulary)."""
        layout = self.layout
        given = {layout.ids: ids, **past}
        given |= {} if layout.mask is None else {layout.mask: mask}
        if layout.positions is not None:
            given[layout.positions] = np.broadcast_to(positions, layout.shapes(ids.shape[1])[layout.positions])
        given |= {} if layout.length is None else {layout.length: np.array([self.length])}
        typed = {name: np.ascontiguousarray(value, self._dtypes[name]) for name, value in given.items()}
        outputs = program(typed)
        for tensor in layout.cache:
            self._arrays[tensor.past] = as_array(outputs[tensor.present])
        logits = as_array(outputs[layout.logits]).astype(np.float32)
        return logits[:, None] if logits.ndim == 2 else logits


class StaticCache(Cache):
    """A cache of fixed size, in programs by width (one is for a single token); all tokens share ``given``."""

    def __init__(
        self,
        layout: Layout,
        dtypes: Mapping[str, np.dtype[Any]],
        programs: Mapping[int, Program],
        given: Mapping[str, Array] | None = None,
    ) -> None:
        super().__init__(layout, dtypes)
        self._programs, self._given = programs, given or {}
        for tensor in layout.cache:
            self._arrays[tensor.past] = np.zeros(tensor.shape, dtypes[tensor.past])

    @property
    def room(self) -> int:
        return self.layout.max_length - self.length

    def _feed(self, ids: Array, mask: Array) -> Array:
        if (self.layout.in_place or self.layout.encoder is not None or self.layout.has_states) and not mask.all():
            what = "a model with this kind of cache takes no padding between or before tokens"
            raise InputError(what, hint="give texts of one length, or one after the other")
        at = 0
        for count, width in chunks(ids.shape[1], self._programs, self.length, self.layout):
            logits = self._take(ids[:, at : at + count], mask[:, at : at + count], width)
            at += count
        return logits

    def _take(self, ids: Array, mask: Array, width: int) -> Array:
        """Run one program; what is missing to its width is padding, behind or, if it appends, before the tokens."""
        layout, count = self.layout, ids.shape[1]
        hidden = np.zeros((layout.batch, layout.max_length), np.int64)
        self._seen = np.concatenate([self._seen, mask], 1)
        if layout.in_place:  # later tokens overwrite the padding, and no token sees what is behind it
            ids = np.pad(ids, ((0, 0), (0, width - count)))
            hidden[:, : self.length + width] = 1
            last = count - 1
        else:
            ids = np.pad(ids, ((0, 0), (width - count, 0)))
            hidden[:, layout.max_length - self._seen.shape[1] :] = self._seen
            last = -1
        positions = _positions(hidden)
        own = slice(self.length, self.length + width) if layout.in_place else slice(-width, None)
        past = dict(self._arrays)
        for tensor in layout.cache:
            if tensor.axis is not None and not layout.in_place:
                past[tensor.past] = _last(past[tensor.past], width, tensor.axis)
        logits = self._call(self._programs[width], ids, positions[:, own], hidden, {**past, **self._given})
        self.length += count
        return logits[:, last if logits.shape[1] == width else -1]


class GrowingCache(Cache):
    """A cache of the length of the text, for a program that takes up to ``most`` tokens at a time, as the reference."""

    def __init__(
        self, layout: Layout, dtypes: Mapping[str, np.dtype[Any]], program: Program, most: int | None = None
    ) -> None:
        super().__init__(layout, dtypes)
        self._program, self._most = program, most
        for tensor in layout.cache:
            self._arrays[tensor.past] = np.zeros(tensor.of(0), dtypes[tensor.past])

    def _feed(self, ids: Array, mask: Array) -> Array:
        if self._most is not None and ids.shape[1] > self._most:
            self._feed(ids[:, : -self._most], mask[:, : -self._most])
            ids, mask = ids[:, -self._most :], mask[:, -self._most :]
        self._seen = np.concatenate([self._seen, mask], 1)
        self.length += ids.shape[1]
        positions = _positions(self._seen)[:, -ids.shape[1] :]
        return self._call(self._program, ids, positions, self._seen, dict(self._arrays))[:, -1]


def chunks(count: int, widths: Mapping[int, Any], length: int, layout: Layout) -> Iterator[tuple[int, int]]:
    """Yield the runs that take some tokens: for each, how many of them, and the width of its program.

    Padding is in the last run if the cache is written in place, otherwise in the first one, before the first token.
    """
    sizes = sorted(widths, reverse=True)
    full, rest = divmod(count, sizes[0])
    whole = [(sizes[0], sizes[0])] * full
    width = min((size for size in sizes if size >= rest), default=1)
    fits = length + count - rest + width <= layout.max_length if layout.in_place else length == 0
    if not (layout.pads and fits) or not rest:
        remainder = []
        for size in sizes:
            fitting, rest = divmod(rest, size)
            remainder += [(size, size)] * fitting
    else:
        remainder = [(rest, width)]
    yield from whole + remainder if layout.in_place else remainder + whole


def _positions(mask: Array) -> Array:
    """Return position ids: the number of tokens before, 0 for padding."""
    return np.asarray(np.maximum(np.cumsum(mask, 1) - 1, 0))


def _last(array: Array, width: int, axis: int) -> Array:
    """Return a cache without its first tokens."""
    return np.ascontiguousarray(array[(slice(None),) * axis + (slice(width, None),)])
