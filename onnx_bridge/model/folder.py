"""The folder of a language model, as its exporter lays it out: the file of its decoder, and where its texts end.

genai_config.json  model.onnx                               onnxruntime-genai; it names the files of decoder, embedding
config.json  model.onnx                                     optimum; with an encoder, decoder_model_merged.onnx
config.json  onnx/model.onnx                                transformers.js; for pictures, onnx/embed_tokens.onnx, too
tokenizer.json  generation_config.json                      in all of them, perhaps
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.regular_file import read_regular
from onnx_bridge.core.schema import Size, parse_json, read_as

TOKENIZER, CONFIG = "tokenizer.json", "config.json"
_GENAI, _GENERATION = "genai_config.json", "generation_config.json"
_FILES = ("decoder_model_merged", "decoder_with_past_model", "model")
"""The files of a decoder, the preferred one first."""
_ENDINGS = ("", "_fp16", "_int8", "_uint8", "_quantized", "_q8", "_bnb4", "_q4", "_q4f16")
"""The endings that transformers.js gives to a file by its precision, the preferred one first."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class _Decoder:
    filename: str | None = None


@dataclass(frozen=True)
class _End:
    eos_token_id: Size | tuple[Size, ...] | None = None


@dataclass(frozen=True)
class _Ends(_End):
    """The tokens that end a text, as files of transformers have them."""

    text_config: _End = _End()


@dataclass(frozen=True)
class _Model(_End):
    context_length: Size | None = None
    decoder: _Decoder = _Decoder()
    embedding: _Decoder = _Decoder()


@dataclass(frozen=True)
class _Genai:
    """The members of genai_config.json that are read."""

    model: _Model = _Model()


@dataclass(frozen=True)
class _Lengths:
    """The names of the longest context."""

    max_position_embeddings: Size | None = None
    max_target_positions: Size | None = None
    n_positions: Size | None = None
    n_ctx: Size | None = None
    max_seq_len: Size | None = None
    context_length: Size | None = None


@dataclass(frozen=True)
class _Config(_Lengths):
    """The members of config.json that are read; those of a model that takes pictures, too, are in a part of it."""

    text_config: _Lengths = _Lengths()


def is_model_folder(path: Path) -> bool:
    """Return whether a folder holds one model with its configuration."""
    if not os.path.isdir(path) or not ((path / _GENAI).is_file() or (path / CONFIG).is_file()):  # noqa: PTH112
        return False
    return (path / _GENAI).is_file() or any(True for _ in _candidates(path))


def decoder_file(folder: Path) -> Path:
    """Return the file of a folder's decoder, or of its only model; raises InputError."""
    genai = folder / _GENAI
    if genai.is_file() and (name := read_configuration(_Genai, genai).model.decoder.filename):
        return _within(folder, name)
    candidate = next(_candidates(folder), None)
    if candidate is None:
        what = f"the folder has none of {', '.join(f'{name}.onnx' for name in _FILES)}"
        raise InputError(what, where=str(folder), hint="name the file of the model")
    return candidate


def embedding_file(decoder: Path) -> Path | None:
    """Return the file beside a decoder that computes embeddings of tokens; None without one; raises InputError."""
    genai = decoder.parent / _GENAI
    if genai.is_file() and (name := read_configuration(_Genai, genai).model.embedding.filename):
        return _within(decoder.parent, name)
    own = [ending for ending in _ENDINGS if decoder.stem.endswith(ending)]
    endings = sorted(own, key=len, reverse=True) + list(_ENDINGS)
    names = [f"{name}{ending}.onnx" for ending in endings for name in ("embed_tokens", "embedding")]
    return next((path for name in names if (path := decoder.with_name(name)).is_file()), None)


def _within(folder: Path, name: str) -> Path:
    """Return a file that the configuration of genai names; raises InputError if it is not in the folder."""
    file = folder / name
    if not file.resolve().is_relative_to(folder.resolve()) or not file.is_file():
        raise InputError(f"the file {name} is not in the folder", where=str(folder / _GENAI))
    return file


def tokenizer_of(model: Path) -> Path | None:
    """Return the tokenizer beside a model; None if there is none."""
    return next((path for folder in folders_of(model) if (path := folder / TOKENIZER).is_file()), None)


def folders_of(model: Path) -> Iterable[Path]:
    """Return the folders that configurations of a model may be in: its own, and that around a folder ``onnx``."""
    return (model.parent, model.parent.parent) if model.absolute().parent.name == "onnx" else (model.parent,)


def read_configuration(kind: type[_T], path: Path) -> _T:
    """Return the members of a configuration that a class has; raises InputError."""
    try:
        return read_as(kind, parse_json(read_regular(path)))
    except (OSError, ValueError) as error:
        what = f"the configuration cannot be read: {error}"
        raise InputError(what, where=str(path), hint="repair or remove it") from None


def _candidates(folder: Path) -> Iterator[Path]:
    names = (f"{name}{ending}.onnx" for ending in _ENDINGS for name in _FILES)
    return (path for name in names for path in (folder / name, folder / "onnx" / name) if path.is_file())


def contexts(model: Path) -> Iterator[int]:
    """Yield the lengths of the longest texts that a model knows, as the configurations beside it say."""
    for folder in folders_of(model):
        yield from _contexts(folder)


def _contexts(folder: Path) -> Iterator[int]:
    if (genai := folder / _GENAI).is_file():
        yield from filter(None, [read_configuration(_Genai, genai).model.context_length])
    if (config := folder / CONFIG).is_file():
        values = read_configuration(_Config, config)
        for lengths in (values, values.text_config):
            yield from filter(None, [getattr(lengths, field.name) for field in fields(_Lengths)])


def stop_tokens(model: Path) -> tuple[int, ...]:
    """Return the tokens that end a text, as the first configuration beside a model that names them says."""
    paths = (folder / name for folder in folders_of(model) for name in (_GENAI, _GENERATION, CONFIG))
    tokens = next((ends for path in paths if path.is_file() and (ends := _ends(path)) is not None), ())
    return tokens if isinstance(tokens, tuple) else (tokens,)


def _ends(path: Path) -> int | tuple[int, ...] | None:
    if path.name == _GENAI:
        return read_configuration(_Genai, path).model.eos_token_id
    values = read_configuration(_Ends, path)
    return values.text_config.eos_token_id if values.eos_token_id is None else values.eos_token_id
