"""A text as data for a language model: its tokens in pieces, each token labelled with the one that follows.

    text ─► tokenizer.json ─► t₀ … t₁₂₇ │ t₁₂₈ … t₂₅₅ │ …      labels: t₁ … t₁₂₈ │ t₁₂₉ … t₂₅₆ │ …

A piece is as long as what the model takes; what does not fill the last one is left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.regular_file import read_regular
from onnx_bridge.core.third_party import describe
from onnx_bridge.model.folder import TOKENIZER
from onnx_bridge.samples.dataset import DataSource
from onnx_bridge.samples.inputs import TensorSpec

TOKENS = 128
"""The length of a piece if the model takes any."""
_BESIDE: dict[str, Callable[[int], Any]] = {
    "attention_mask": np.ones,
    "position_ids": np.arange,
    "token_type_ids": np.zeros,
}
"""The inputs that follow from the number of tokens."""


def load_tokenizer(path: Path) -> Any:
    """Return the tokenizer in a file; raises InputError."""
    try:
        import tokenizers
    except ImportError:
        hint = "pip install 'onnx-bridge[tokenizers]', or give tokens as ids"
        raise InputError("the library tokenizers is not installed", where=str(path), hint=hint) from None
    try:
        return tokenizers.Tokenizer.from_str(read_regular(path).decode())
    except Exception as error:  # the library raises nothing more specific
        raise InputError(f"the tokenizer cannot be read: {describe(error)}", where=str(path)) from None


def as_data(
    source: DataSource, specs: Sequence[TensorSpec], folders: Sequence[Path], longest: int = TOKENS
) -> DataSource:
    """Return the samples in a text file, with their labels; any other source is returned as it is.

    Args:
        folders: the folders in which the tokenizer may be, after that of the text.
        longest: the length of a piece if the model takes any.

    Raises:
        InputError: the text or the tokenizer cannot be read, the text is too short, or the model takes no text.
    """
    if not isinstance(source, (str, os.PathLike)) or Path(source).suffix != ".txt":
        return source
    path = Path(source)
    tokens = [spec for spec in specs if spec.name not in _BESIDE]
    if len(tokens) != 1 or tokens[0].dtype.kind not in "iu" or len(tokens[0].shape or ()) != 2:
        what = f"a text gives tokens, and the model takes {', '.join(spec.name for spec in tokens)}"
        raise InputError(what, where=str(path), hint="of a model with a cache, check the bundle of --as decoder")
    files = [file for folder in (path.parent, *folders) if (file := folder / TOKENIZER).is_file()]
    if not files:
        raise InputError(f"there is no {TOKENIZER} beside the text or the model", where=str(path))
    try:
        ids = np.array(load_tokenizer(files[0]).encode(read_regular(path).decode()).ids, np.int64)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the text cannot be read: {describe(error)}", where=str(path)) from None
    rows, length = (size if isinstance(size, int) else None for size in tokens[0].shape or ())
    batch = rows or 1
    count = length or max(min(longest, (len(ids) - 1) // batch), 1)
    pieces = (len(ids) - 1) // (batch * count)
    if not pieces:
        what = f"the text has {len(ids)} tokens, and the model takes {batch * count}, each with the one that follows"
        raise InputError(what, where=str(path), hint="give a longer text")
    given, labels = (ids[at : at + pieces * batch * count].reshape(pieces, batch, count) for at in (0, 1))
    inputs = {spec.name: np.tile(_BESIDE[spec.name](count), (batch, 1)) for spec in specs if spec.name in _BESIDE}
    dtypes = {spec.name: spec.dtype for spec in specs}
    samples = [{tokens[0].name: piece, **inputs} for piece in given]
    typed = [{name: array.astype(dtypes[name]) for name, array in sample.items()} for sample in samples]
    return list(zip(typed, labels, strict=True))
