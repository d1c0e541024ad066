"""The files of a model with an encoder and a decoder, as optimum lays them out.

    encoder_model.onnx  decoder_model_merged.onnx                           with an If on use_cache_branch
    encoder_model.onnx  decoder_model.onnx  decoder_with_past_model.onnx    without and with a cache
    config.json  generation_config.json                                     the token that a text begins with

The user names any of the decoder's files; the others are beside it, with the same ending (``_quantized``, ``_fp16``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onnx_bridge.conversion.decoders.layout import BRANCH
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.digest import json_digest
from onnx_bridge.core.schema import Size
from onnx_bridge.model import io as models
from onnx_bridge.model.folder import folders_of, read_configuration, stop_tokens

_ENCODER, _FIRST, _STEP, _MERGED = "encoder_model", "decoder_model", "decoder_with_past_model", "decoder_model_merged"
_CONFIGURATIONS = ("generation_config.json", "config.json")
"""The files with the token that a text begins with; the first that names one counts."""


@dataclass(frozen=True)
class Files:
    """The files of one model.

    Attributes:
        given: the one that the user named.
        first: the decoder without a cache.
        step: the decoder with a cache; the same file, if it is merged.
        start: the tokens that a text begins with; empty if they are not known.
        stop: the tokens that end a text; empty if they are not known.
    """

    given: Path
    encoder: Path
    first: Path
    step: Path
    start: tuple[int, ...]
    stop: tuple[int, ...]

    @classmethod
    def beside(cls, given: Path) -> Files:
        """Return the files beside a decoder, which are not read; raises InputError if one is missing."""
        part = next((name for name in (_MERGED, _STEP, _FIRST) if name in given.name), None)
        if part is None:
            hint = f"name it {_MERGED}.onnx, or {_FIRST}.onnx and {_STEP}.onnx, beside {_ENCODER}.onnx"
            raise InputError("the decoder of an encoder has another name", where=str(given), hint=hint)
        encoder, first, step = (given.with_name(given.name.replace(part, name)) for name in (_ENCODER, _FIRST, _STEP))
        if part == _MERGED:
            first = step = given
        for file in (encoder, first, step):
            if not file.is_file():
                what = "this file of the model is missing: the decoder takes what the encoder returns"
                raise InputError(what, where=str(file), hint=f"put it beside {given.name}")
        start = next(filter(None, map(_start, _configurations(given))), ())
        return cls(given, encoder, first, step, start, stop_tokens(given))

    @property
    def all(self) -> tuple[Path, ...]:
        """The files, each once."""
        return tuple(dict.fromkeys((self.encoder, self.first, self.step)))

    def digests(self) -> dict[str, str]:
        """Return the digests of the files, by name; raises InputError."""
        return {file.name: models.digest(file) for file in self.all}

    def branch(self, *, cached: bool) -> dict[str, str]:
        """Return the value of the input that chooses the branch of a merged decoder, as JSON text."""
        return {BRANCH: "[true]" if cached else "[false]"} if self.first == self.step else {}

    def digest(self) -> str:
        """Return the digest of all files, and of the tokens that a text begins and ends with."""
        return json_digest([*self.digests().values(), list(self.start), list(self.stop)])


def digest_with_encoder(decoder: Path) -> str | None:
    """Return the digest of a decoder with the files beside it; None without encoder; raises InputError."""
    try:
        files = Files.beside(decoder)
    except InputError:
        return None
    return files.digest()


@dataclass(frozen=True)
class _Configuration:
    """The members of a configuration that are read."""

    decoder_start_token_id: Size | tuple[Size, ...] | None = None


def _configurations(model: Path) -> Iterator[Path]:
    """Yield the configurations beside a model, or beside its folder ``onnx``."""
    for folder in folders_of(model):
        yield from (folder / name for name in _CONFIGURATIONS if (folder / name).exists())


def _start(path: Path) -> tuple[int, ...]:
    """Return the tokens that a text begins with, as a configuration says; raises InputError."""
    start = read_configuration(_Configuration, path).decoder_start_token_id
    if start is None:
        return ()
    return start if isinstance(start, tuple) else (start,)
