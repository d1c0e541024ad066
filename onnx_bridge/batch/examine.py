"""What is to be known of a model file before it is converted: its content, its size, its names; in one reading."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_bridge.batch import transfer
from onnx_bridge.bundle.buckets import Buckets, BucketsManifest, has_buckets
from onnx_bridge.bundle.bundle import manifest_path
from onnx_bridge.bundle.manifest import Manifest
from onnx_bridge.core.errors import BridgeError, InputError
from onnx_bridge.core.locations import Location, RemotePath, parse_location
from onnx_bridge.model import io as models
from onnx_bridge.model.file import ModelFile

_SETTLED = 2 * 10**9
"""Nanoseconds after which a file that is written to has another time: clocks of file systems are coarse."""
_PER_BYTE, _EACH = 4.1, 150 << 20
"""Memory of a conversion: measured, in bytes for each byte of the model, and for what is always there."""


@dataclass(frozen=True)
class Examined:
    """A model file.

    Attributes:
        digest: of its content, weights included; None where the file cannot be read at all.
        bytes: its size, weights included.
        symbols: the symbolic dimensions of its inputs.
        inputs: their names.
        files: path, size, and what else tells whether they have changed, of the files that it was read from; none where
            they are too fresh to tell.
        problem: why it is no model.
    """

    digest: str | None
    bytes: int = 0
    symbols: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    files: tuple[tuple[str | int, ...], ...] = ()
    problem: InputError | None = None

    @property
    def memory(self) -> int:
        """Bytes that its conversion is foreseen to take."""
        return int(self.bytes * _PER_BYTE) + _EACH

    def to_json(self) -> dict[str, Any]:
        """As JSON values, for `examine` to go by another time."""
        return {
            "digest": self.digest,
            "bytes": self.bytes,
            "symbols": list(self.symbols),
            "inputs": list(self.inputs),
            "files": [list(each) for each in self.files],
        }


def examine(source: Location, before: Mapping[str, Any] | None = None) -> Examined:
    """Read a model file, unless it is as it was before.

    Args:
        source: the file.
        before: what `Examined.to_json` gave, if anything.
    """
    if before and before["files"] and all(each == list(_state(each[0]) or ()) for each in before["files"]):
        files = tuple(tuple(each) for each in before["files"])
        return Examined(before["digest"], before["bytes"], tuple(before["symbols"]), tuple(before["inputs"]), files)
    if isinstance(source, RemotePath):
        return _examine_remote(source)
    now = time.time_ns()
    try:
        file = ModelFile(source)
        digest = models.digest(source)
    except InputError as error:
        return Examined(_raw_digest(source), problem=_bare(error))
    states = [_state(str(each)) for each in file.sources]
    known = [each for each in states if each is not None]
    fresh = len(known) < len(states) or any(now - max(map(int, each[3:])) < _SETTLED for each in known)
    return _examined(file, digest, known, fresh)


def _examine_remote(source: RemotePath) -> Examined:
    try:
        with transfer.stand_in(source) as (path, digest, states):
            try:
                return _examined(ModelFile(path), digest, [tuple(each) for each in states], fresh=False)
            except InputError as error:
                problem = InputError(error.what.replace(str(path), source.url), where=source.url, hint=error.hint)
                return Examined(f"unreadable {digest}", problem=problem)
    except InputError as error:
        return Examined(None, problem=_bare(error))


def _examined(file: ModelFile, digest: str, states: Sequence[tuple[str | int, ...]], fresh: bool) -> Examined:
    graph = file.proto.graph
    inner = {each.name for each in graph.initializer}
    required = [each for each in graph.input if each.name not in inner]
    dims = [dim.dim_param for each in required for dim in each.type.tensor_type.shape.dim]
    return Examined(
        digest,
        sum(int(each[1]) for each in states),
        tuple(dict.fromkeys(filter(None, dims))),
        tuple(each.name for each in required),
        () if fresh else tuple(states),
    )


def _bare(error: InputError) -> InputError:
    """Without the frames, which would hold the file open."""
    return InputError(error.what, where=error.where, hint=error.hint)


def whole(bundle: Path, key: str) -> Manifest | BucketsManifest | None:
    """The manifest of a bundle with a content key, all of whose files are there; None where there is no such bundle."""
    try:
        if has_buckets(bundle):
            found = Buckets(bundle)
            inner = all(whole(each.path, each.manifest.key or "") for each in found.bundles)
            there = all((bundle / each.file).stat().st_size == each.bytes for each in found.manifest.files)
            return found.manifest if found.manifest.key == key and inner and there else None
        manifest = Manifest.read(manifest_path(bundle))
        sizes = [(bundle / each.file).stat().st_size for each in manifest.files]
    except (BridgeError, OSError):
        return None
    expected = [each.bytes for each in manifest.files]
    return manifest if manifest.key == key and sizes == expected else None


def _state(path: str) -> tuple[str | int, ...] | None:
    where = parse_location(path)
    if isinstance(where, RemotePath):
        state = where.fingerprint()
        return None if state is None else tuple(state)
    try:
        found = os.stat(path)  # noqa: PTH116 — thousands of them
    except OSError:
        return None
    return path, found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def _raw_digest(path: Path) -> str | None:
    """Of the bytes of what is no model, which fails again for as long as they are the same."""
    try:
        with path.open("rb") as file:
            return f"unreadable {hashlib.file_digest(file, 'sha256').hexdigest()}"
    except OSError:
        return None
