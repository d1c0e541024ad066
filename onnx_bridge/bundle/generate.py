"""The verb ``generate``: the tokens that follow a prompt."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.decoding.decoder import Decoder
from onnx_bridge.bundle.decoding.sampling import Choose, greedy
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.core.values import Array, as_array
from onnx_bridge.model.folder import TOKENIZER
from onnx_bridge.samples import files
from onnx_bridge.samples.text import load_tokenizer

Ended = Literal["stop", "count", "cache", "interrupted"]
"""The reason why a text ended: a token that ends it, the requested number, a full cache, or Ctrl-C."""


@dataclass(frozen=True)
class Generated(JsonRecord):
    """The result of `generate`.

    Attributes:
        tokens: the new tokens.
        seconds: the duration, without loading the bundle.
        ended: why there are no more.
        max_length: the size of the cache (`onnx_bridge.bundle.manifest.layout.Layout`).
        text: the same as text; None if the prompt was not text.
    """

    tokens: list[int]
    seconds: float
    ended: Ended
    max_length: int
    text: str | None = None


def generate(  # noqa: PLR0913
    bundle: str | os.PathLike[str],
    ids: Sequence[int] | None = None,
    max_new_tokens: int | None = None,
    *,
    inputs: str | os.PathLike[str] | None = None,
    prompt: Sequence[int] | str | None = None,
    choose: Choose = greedy,
    stop: Collection[int | str] | None = None,
    emit: Callable[[str], object] | None = None,
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
        prompt: the text to continue, which the tokenizer in the bundle turns into tokens; or the tokens that the text
            begins with, if the model has an encoder; default: its own first token.
        choose: sampling: from logits, (1, vocabulary) float32, to tokens, (1,); default: the most probable.
        stop: tokens that end the text, as ids or as the tokenizer has them; default: as for `Decoder.generate`.
        emit: is called with each piece of the text as it comes, or of the list of tokens if the prompt is not text;
            Ctrl-C then ends the text, instead of discarding it.
        runtime, timeout, memory: as for `onnx_bridge.load`.

    Raises:
        InputError: the bundle is not a decoder, not exactly one source is given, the bundle has no tokenizer, or as for
            `Decoder.generate`.
        RuntimeFailure: as for `onnx_bridge.load`.
    """
    if max_new_tokens is not None and max_new_tokens < 1:
        raise InputError(
            f"the number of tokens cannot be {max_new_tokens}", where="max_new_tokens", hint="give 1 or more"
        )
    loaded = Bundle(bundle, runtime=runtime, timeout=timeout, memory=memory)
    decoder = loaded.decoder
    if decoder.layout.batch != 1:
        what = f"the decoder generates {decoder.layout.batch} texts at a time"
        raise InputError(what, where=str(bundle), hint="from Python: onnx_bridge.load(…).decoder.generate(…)")
    decode = None
    if isinstance(prompt, str):
        if decoder.layout.encoder is not None or ids is not None:
            what = "the prompt is text, and the model takes tokens"
            raise InputError(what, where="prompt", hint="give numbers, as 1,15,7")
        tokenizer = _tokenizer(loaded.path)
        ids, prompt, decode = tokenizer.encode(prompt).ids, None, tokenizer.decode
    ends = decoder.layout.stop if stop is None else [_token(loaded.path, token) for token in stop]
    source = _source(decoder, ids, inputs)
    first = None if prompt is None else np.array([prompt], np.int64)
    loaded.open()
    started, new = time.perf_counter(), list[int]()
    pieces = None if emit is None else Pieces(decode or _listed, emit)
    ended: Ended = "cache"
    try:
        for token in decoder.stream(source, max_new_tokens, prompt=first, choose=choose, stop=ends):
            new.append(int(token[0]))
            if pieces is not None:
                pieces.show(new)
    except KeyboardInterrupt:
        if pieces is None:
            raise
        ended = "interrupted"
    else:
        if new and new[-1] in ends:
            ended = "stop"
        elif len(new) == max_new_tokens:
            ended = "count"
    seconds = round(time.perf_counter() - started, 6)
    if pieces is not None:
        pieces.show(new, last=True)
    return Generated(new, seconds, ended, decoder.layout.max_length, None if decode is None else decode(new))


class Pieces:
    """The pieces of a growing text; a character of several tokens is part of one when all of them are there.

    Args:
        decode: returns the text of all tokens so far; a character that is not complete is U+FFFD at its end.
        emit: is called with each piece.
    """

    def __init__(self, decode: Callable[[list[int]], str], emit: Callable[[str], object]) -> None:
        self._decode, self._emit, self._shown = decode, emit, ""

    def show(self, tokens: list[int], *, last: bool = False) -> None:
        """Emit what is new, and if no token follows, also what is incomplete."""
        text = self._decode(tokens)
        text = text if last else text.rstrip("\ufffd")
        # less than what is shown, if a token cleans up the space before it
        begun = len(os.path.commonprefix([text, self._shown]))  # noqa: RUF071
        if text[begun:]:
            self._shown = text
            self._emit(text[begun:])


def _listed(tokens: list[int]) -> str:
    return ",".join(map(str, tokens))


def _token(bundle: Path, token: int | str) -> int:
    """Return the id of a token; raises InputError if the tokenizer does not have it."""
    number = _tokenizer(bundle).token_to_id(token) if isinstance(token, str) else token
    if number is None:
        raise InputError(f"the tokenizer has no token {token!r}", where="stop", hint="give its id, as 2")
    return int(number)


def _tokenizer(bundle: Path) -> Any:
    """Return the tokenizer in a bundle; raises InputError."""
    path = bundle / TOKENIZER
    if not path.is_file():
        what = "the bundle has no tokenizer.json, which the model's folder had not"
        raise InputError(what, where=str(bundle), hint="give the tokens of the prompt as `ids`")
    return load_tokenizer(path)


def _source(decoder: Decoder, ids: Sequence[int] | None, inputs: str | os.PathLike[str] | None) -> Array:
    """Return what to generate from; raises InputError."""
    hint = "give `prompt` or `ids`; or `inputs`, of a model with an encoder"
    if (ids is None) is (inputs is None):
        raise InputError("there is nothing to generate from" if ids is None else "there are two sources", hint=hint)
    if ids is not None:
        return np.array([ids], np.int64)
    encoding, path = decoder.encoding, Path(str(inputs))
    if encoding is None:
        raise InputError("only an encoder takes inputs from a file", where=str(path), hint=hint)
    (sample,) = files.load(path, [encoding.spec], count=1)
    return as_array(sample[encoding.spec.name])
