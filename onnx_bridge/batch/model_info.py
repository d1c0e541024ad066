"""The properties of a model file that a batch needs before its conversion: digest, size and names, read at once."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onnx_bridge.batch import transfer
from onnx_bridge.conversion.decoders.encoder_decoder.files import digest_with_encoder
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.known_digests import State, file_state, is_recent
from onnx_bridge.core.files.locations import Location, RemotePath, parse_location
from onnx_bridge.core.schema import JsonRecord, read_as
from onnx_bridge.model.file import ModelFile
from passes.shapes.declarations import names_a_size

_MEMORY_PER_BYTE, _BASE_MEMORY = 4.1, 150 << 20
"""Measured memory of a conversion: bytes for each byte of the model, and for the process itself."""


@dataclass(frozen=True)
class ModelInfo(JsonRecord):
    """A model file; as JSON, what a later run takes from this one.

    Attributes:
        digest: the digest of its content, weights included; None if the file cannot be read.
        bytes: the size, weights included.
        symbols: the symbolic dimensions of its inputs.
        files: the states of the files that it was read from (`_state`), by which a change is detected; empty if they
            are too recent for that.
        problem: why it is not a valid model.
        whole: the digest of a decoder with the files of its encoder; None if it has none. Later runs compute it again.
    """

    digest: str | None
    bytes: int = 0
    symbols: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    files: tuple[State, ...] = ()
    problem: InputError | None = field(default=None, repr=False)
    whole: str | None = field(default=None, repr=False)

    @property
    def memory(self) -> int:
        """The predicted memory of its conversion in bytes."""
        return int(self.bytes * _MEMORY_PER_BYTE) + _BASE_MEMORY


def read_model_info(
    source: Location, before: Mapping[str, Any] | None = None, *, has_encoder: bool = False
) -> ModelInfo:
    """Read a model file, unless it is unchanged.

    Args:
        before: the value of `ModelInfo.to_json` in an earlier run, if any.
        has_encoder: whether it may be a decoder with the files of an encoder beside it, which are then read, too.
    """
    info = _read(source, before)
    if not has_encoder or not isinstance(source, Path) or info.problem is not None:
        return info
    try:
        return replace(info, whole=digest_with_encoder(source))
    except InputError as error:
        return ModelInfo(None, problem=error)


def _read(source: Location, before: Mapping[str, Any] | None) -> ModelInfo:
    if before and before["files"] and all(state == list(_state(state[0]) or ()) for state in before["files"]):
        return read_as(ModelInfo, before)
    if isinstance(source, RemotePath):
        return _read_remote(source)
    now = time.time_ns()
    try:
        file = ModelFile(source)
        digest = file.digest()
    except InputError as error:
        return ModelInfo(_raw_digest(source), problem=_without_traceback(error))
    states = [_state(str(path)) for path in file.sources]
    known = [state for state in states if state is not None]
    fresh = len(known) < len(states) or any(is_recent(state, now) for state in known)
    return _describe(file, digest, known, fresh)


def _read_remote(source: RemotePath) -> ModelInfo:
    try:
        with transfer.sparse_copy(source) as (path, digest, states):
            try:
                return _describe(ModelFile(path), digest, [tuple(state) for state in states], fresh=False)
            except InputError as error:
                problem = InputError(error.what.replace(str(path), source.url), where=source.url, hint=error.hint)
                return ModelInfo(f"unreadable {digest}", problem=problem)
    except InputError as error:
        return ModelInfo(None, problem=_without_traceback(error))


def _describe(file: ModelFile, digest: str, states: Sequence[State], fresh: bool) -> ModelInfo:
    graph = file.proto.graph
    inner = {value.name for value in graph.initializer}
    required = [value for value in graph.input if value.name not in inner]
    dims = [dim.dim_param for value in required for dim in value.type.tensor_type.shape.dim]
    return ModelInfo(
        digest,
        sum(int(state[1]) for state in states),
        tuple(dict.fromkeys(filter(names_a_size, dims))),
        tuple(value.name for value in required),
        () if fresh else tuple(states),
    )


def _without_traceback(error: InputError) -> InputError:
    """Copy an error without its traceback, whose frames would keep the file open."""
    return InputError(error.what, where=error.where, hint=error.hint)


def _state(place: str) -> State | None:
    """Return the state of a local or remote file; None if there is no file."""
    where = parse_location(place)
    if isinstance(where, RemotePath):
        fingerprint = where.fingerprint()
        return None if fingerprint is None else tuple(fingerprint)
    return file_state(place)


def _raw_digest(path: Path) -> str | None:
    """Return the digest of a file that is no valid model: its failure is remembered until the file changes."""
    try:
        with path.open("rb") as file:
            return f"unreadable {hashlib.file_digest(file, 'sha256').hexdigest()}"
    except OSError:
        return None
