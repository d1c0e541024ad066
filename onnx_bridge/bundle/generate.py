"""The verb ``generate``: the tokens that follow a prompt."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.decoding.decoder import Decoder
from onnx_bridge.bundle.decoding.sampling import Choose, greedy
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.regular_file import read_regular
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.core.third_party import describe
from onnx_bridge.core.values import Array, as_array
from onnx_bridge.model.folder import TOKENIZER
from onnx_bridge.samples import files


@dataclass(frozen=True)
class Generated(JsonRecord):
    """The result of `generate`.

    Attributes:
        tokens: the new tokens.
        seconds: the duration, without loading the bundle.
        text: the same as text; None if the prompt was not text.
    """

    tokens: list[int]
    seconds: float
    text: str | None = None


def generate(  # noqa: PLR0913
    bundle: str | os.PathLike[str],
    ids: Sequence[int] | None = None,
    max_new_tokens: int | None = None,
    *,
    inputs: str | os.PathLike[str] | None = None,
    prompt: Sequence[int] | str | None = None,
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
        prompt: the text to continue, which the tokenizer in the bundle turns into tokens; or the tokens that the text
            begins with, if the model has an encoder; default: its own first token.
        choose: sampling: from logits, (1, vocabulary) float32, to tokens, (1,); default: the most probable.
        stop: tokens that end the text.
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
    tokenizer = None
    if isinstance(prompt, str):
        if decoder.layout.encoder is not None or ids is not None:
            what = "the prompt is text, and the model takes tokens"
            raise InputError(what, where="prompt", hint="give numbers, as 1,15,7")
        tokenizer = _tokenizer(Path(bundle))
        ids, prompt = tokenizer.encode(prompt).ids, None
    source = _source(decoder, ids, inputs)
    first = None if prompt is None else np.array([prompt], np.int64)
    loaded.open()
    started = time.perf_counter()
    generated = decoder.generate(source, max_new_tokens, prompt=first, choose=choose, stop=stop)
    seconds, new = round(time.perf_counter() - started, 6), generated[0].tolist()
    return Generated(new, seconds, None if tokenizer is None else tokenizer.decode(new))


def _tokenizer(bundle: Path) -> Any:
    """Return the tokenizer in a bundle; raises InputError."""
    path = bundle / TOKENIZER
    if not path.is_file():
        what = "the bundle has no tokenizer.json, which the model's folder had not"
        raise InputError(what, where=str(bundle), hint="give the tokens of the prompt as ids")
    try:
        import tokenizers
    except ImportError:
        hint = "pip install 'onnx-bridge[tokenizers]', or give the tokens of the prompt as ids"
        raise InputError("the library tokenizers is not installed", where=str(path), hint=hint) from None
    try:
        return tokenizers.Tokenizer.from_str(read_regular(path).decode())
    except Exception as error:  # the library raises nothing more specific
        raise InputError(f"the tokenizer cannot be read: {describe(error)}", where=str(path)) from None


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
