"""Outputs of runs, kept in ``runs/`` of the cache by all that they depend on: what ran, where, by what code, on what.

A file has a digest of the rest, a line of JSON, and the arrays. When there are more than 1 GiB, those go that have not
been read for the longest time: a run looks for them if its key says so, which is one in 64 in whatever process, since
to look at all takes longer than many a run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.atomic_write import write_bytes
from onnx_bridge.core.files.digest import json_digest
from onnx_bridge.core.files.regular_file import read_regular
from onnx_bridge.core.files.user_cache import cache_dir, keep_recent
from onnx_bridge.core.values import Array, Value, flat
from passes.isolation import value_messages
from passes.isolation.reused_memory import placed

_OF_A_RUN, _OF_ALL = 1 << 26, 1 << 30
"""The most bytes of the outputs of a run, and of all runs."""
_AT_LEAST = 1 << 16
"""The bytes that any run counts as: a limit of their number, since all are looked at."""
_EVERY = 64
_ALIGNMENT = 64
_HEXADECIMAL = 64
"""Characters of a SHA-256."""


class KeptRuns:
    """The runs of one thing.

    Args:
        of: what determines its outputs besides the inputs, as JSON values; None keeps nothing.
        fresh: run again what is kept.

    Attributes:
        used: the number of runs whose outputs were kept.
    """

    def __init__(self, of: Mapping[str, Any] | None, *, fresh: bool = False) -> None:
        self._of, self._fresh = of, fresh
        self.used = 0

    @property
    def note(self) -> str:
        """A sentence for the user, if kept outputs were used."""
        return f"runs of the bundle that were made before, on the same inputs: {self.used} (--fresh runs them again)"

    def outputs(self, sample: Mapping[str, Value], run: Callable[[], Mapping[str, Value]]) -> dict[str, Value]:
        """Return the outputs for a sample: kept ones, or those of ``run``, which are kept."""
        if self._of is None:
            return dict(run())
        digest = hashlib.sha256(_packed(sample))
        path = cache_dir() / "runs" / json_digest({**self._of, "sample": digest.hexdigest()})
        if not self._fresh:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                outputs = _unpacked(read_regular(path, 2 * _OF_A_RUN))
                os.utime(path)
                self.used += 1
                return outputs
        outputs = dict(run())
        if sum(array.nbytes for array in flat(outputs).values()) <= _OF_A_RUN:
            with contextlib.suppress(InputError, OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                data = _packed(outputs)
                write_bytes(path, hashlib.sha256(data).hexdigest().encode() + data)
                if int(path.name, 16) % _EVERY == 0:
                    keep_recent(path.parent.iterdir(), _OF_ALL, at_least=_AT_LEAST)
        return outputs


def _packed(values: Mapping[str, Value]) -> bytes:
    (entries,), arrays = value_messages.pack([values])
    described, parts, offset = [], [], 0
    for name, array in arrays.items():
        described.append({"name": name, "dtype": array.dtype.name, "shape": array.shape, "offset": offset})
        parts.append(array.tobytes().ljust(-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT, b"\0"))
        offset += len(parts[-1])
    return json.dumps({"values": entries, "arrays": described}).encode() + b"\n" + b"".join(parts)


def _unpacked(data: bytes) -> dict[str, Value]:
    """Return the values of a file; raises ValueError, KeyError or TypeError if it is damaged."""
    rest = data[_HEXADECIMAL:]
    if hashlib.sha256(rest).hexdigest().encode() != data[:_HEXADECIMAL]:
        raise ValueError("the digest differs")
    head, _, body = rest.partition(b"\n")
    described, memory = json.loads(head), np.frombuffer(body, np.uint8)
    arrays: dict[str, Array] = {entry["name"]: placed(entry, memory) for entry in described["arrays"]}
    return value_messages.unpack([described["values"]], arrays)[0]
