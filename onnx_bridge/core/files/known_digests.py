"""Digests of files, which are read again only if they may have changed.

The cache folder has a record of each file: its state, and the digest that it had then. A file that was written in the
last two seconds may change once more without changing its state, so that nothing is recorded of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.atomic_write import write_bytes
from onnx_bridge.core.files.digest import file_digest
from onnx_bridge.core.files.regular_file import read_regular
from onnx_bridge.core.files.user_cache import cache_dir

_TIMESTAMP_NANOSECONDS = 2 * 10**9
"""The resolution of timestamps of file systems; a younger file can change without changing its timestamp."""

_HEXADECIMAL = 64
"""Characters of a SHA-256."""

State = tuple[str | int, ...]
"""The path or URL of a file, its size, and what changes when its content does."""


def file_state(path: str) -> State | None:
    """Return path, size, inode, and the times of the last changes in nanoseconds; None if there is no file."""
    try:
        status = os.stat(path)  # noqa: PTH116 — thousands of them
    except OSError:
        return None
    return path, status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def is_recent(state: State, now: int) -> bool:
    """Return whether a file may have changed after ``now``, in nanoseconds, without changing this `file_state`."""
    return now - max(map(int, state[3:])) < _TIMESTAMP_NANOSECONDS


def known_digest(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal, recorded or read; raises OSError."""
    now, state = time.time_ns(), file_state(str(path.absolute()))
    if state is None or is_recent(state, now):
        return file_digest(path)
    return recorded(state, lambda: file_digest(path))


def recorded(state: State, read: Callable[[], str]) -> str:
    """Return the recorded digest for a state of a file; otherwise call ``read``, and record its result."""
    record = cache_dir() / "digests" / hashlib.sha256(str(state[0]).encode()).hexdigest()
    claim = f"{json.dumps(state)} ".encode()
    with contextlib.suppress(OSError):
        text = read_regular(record)
        if text.startswith(claim) and len(text) == len(claim) + _HEXADECIMAL:
            return text[len(claim) :].decode(errors="replace")
    digest = read()
    with contextlib.suppress(InputError, OSError):
        record.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(record, claim + digest.encode())
    return digest
