"""Generate tokens: choose one by the logits of the last one, append it, and so on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import numpy as np

from onnx_bridge.bundle.decoding.caches import Cache
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array

Choose = Callable[[Array], Array]
"""The next tokens, (batch,) integers, for the logits of the last ones, (batch, vocabulary) float32."""


def greedy(logits: Array) -> Array:
    """Return the most probable tokens."""
    return np.asarray(logits.argmax(-1))


def tokens(
    cache: Cache,
    ids: Array,
    limit: int | None = None,
    *,
    mask: Array | None = None,
    choose: Choose = greedy,
    stop: Collection[int] = (),
) -> Iterator[Array]:
    """Generate tokens, one of each text at a time.

    Args:
        cache: the cache of the model; it may have tokens already.
        ids, limit, mask, choose, stop: as for `onnx_bridge.bundle.decoding.decoder.Decoder.generate`.

    Yields:
        (batch,) int64.

    Raises:
        InputError: ``choose`` returns no tokens, or as for `Cache.feed`.
        RuntimeFailure: MIGraphX failed.
    """
    if limit is not None and limit < 1:
        return
    logits = cache.feed(ids, mask)
    ended = np.zeros(len(logits), bool)
    last, count = np.zeros(len(logits), np.int64), 0
    while True:
        chosen = np.asarray(choose(logits))
        if chosen.shape != ended.shape or chosen.dtype.kind not in "iu":
            what = f"the sampling returns {chosen.dtype.name}{list(chosen.shape)}"
            raise InputError(what, hint=f"return an integer for each of the {len(ended)} rows")
        last = np.where(ended, last, chosen).astype(np.int64)
        ended |= np.isin(last, list(stop))
        count += 1
        yield last
        if ended.all() or count == limit or cache.room < 1:
            return
        logits = cache.feed(last[:, None])
