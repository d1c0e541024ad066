"""The verb ``generate``: the tokens that follow a prompt."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.decoding.decoder import Decoder
from onnx_bridge.bundle.decoding.sampling import Choose, greedy
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.core.values import Array, as_array
from onnx_bridge.samples import files


@dataclass(frozen=True)
class Generated(JsonRecord):
    """The result of `generate`.

    Attributes:
        tokens: the new tokens.
        seconds: the duration, without loading the bundle.
    """

    tokens: list[int]
    seconds: float


def generate(  # noqa: PLR0913
    bundle: str | os.PathLike[str],
    ids: Sequence[int] | None = None,
    max_new_tokens: int | None = None,
    *,
    inputs: str | os.PathLike[str] | None = None,
    prompt: Sequence[int] | None = None,
    choose: Choose = greedy,
    stop: Collection[int] = (),
    runtime: str | None = None,
    timeout: float | None = None,
    memory: float | None = None,
) -> Generated:
    """Generate the tokens that follow one prompt; `Decoder.generate` of a loaded bundle's ``decoder`` takes several.

    Args:
        bundle: a decoder (`onnx_bridge.convert`).
        ids: the tokens of the prompt, or of the source of a model with an encoder.
        max_new_tokens: the most tokens; default: until the cache is full.
        inputs: a file with what an encoder takes, ``.npy`` or ``.npz``, instead of ``ids``.
        prompt: the tokens that the text begins with, if the model has an encoder; default: its own first token.
        choose: sampling: from logits, (1, vocabulary) float32, to tokens, (1,); default: the most probable.
        stop: tokens that end the text.
        runtime, timeout, memory: as for `onnx_bridge.load`.

    Raises:
        InputError: the bundle is not a decoder, not exactly one of ``ids`` and ``inputs`` is given, or as for
            `Decoder.generate`.
        RuntimeFailure: as for `onnx_bridge.load`.
    """
    loaded = Bundle(bundle, runtime=runtime, timeout=timeout, memory=memory)
    decoder = loaded.decoder
    if decoder.layout.batch != 1:
        what = f"the decoder generates {decoder.layout.batch} texts at a time"
        raise InputError(what, where=str(bundle), hint="from Python: onnx_bridge.load(…).decoder.generate(…)")
    source = _source(decoder, ids, inputs)
    first = None if prompt is None else np.array([prompt], np.int64)
    loaded.open()
    started = time.perf_counter()
    generated = decoder.generate(source, max_new_tokens, prompt=first, choose=choose, stop=stop)
    return Generated(generated[0].tolist(), round(time.perf_counter() - started, 6))


def _source(decoder: Decoder, ids: Sequence[int] | None, inputs: str | os.PathLike[str] | None) -> Array:
    """Return what to generate from; raises InputError."""
    hint = "give ids; or inputs, of a model with an encoder"
    if (ids is None) is (inputs is None):
        raise InputError("there is nothing to generate from" if ids is None else "there are two sources", hint=hint)
    if ids is not None:
        return np.array([ids], np.int64)
    encoding, path = decoder.encoding, Path(str(inputs))
    if encoding is None:
        raise InputError("only an encoder takes inputs from a file", where=str(path), hint=hint)
    (sample,) = files.load(path, [encoding.spec], count=1)
    return as_array(sample[encoding.spec.name])
