"""Waiting for another process that compiles Quark's operators, which ends.

PyTorch builds extensions under a lock, a file that stays where the process is killed: everybody waits for it for ever.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnx_bridge.core.errors import InputError

BUILD_SECONDS = 600.0
"""The longest build; it takes some twenty seconds."""


@contextlib.contextmanager
def bounded_waits() -> Iterator[None]:
    """Within the block, PyTorch does not wait for locks that are older than any build.

    Raises:
        InputError: after the block, if there was such a lock; names the file.
    """
    from torch.utils.file_baton import FileBaton

    stale: list[Path] = []

    def wait(baton: Any) -> None:
        lock, started = Path(baton.lock_file_path), time.time()
        with contextlib.suppress(FileNotFoundError):
            while True:
                if time.time() - min(started, lock.stat().st_mtime) > BUILD_SECONDS:
                    stale.append(lock)
                    raise TimeoutError(f"{lock} is not removed")
                time.sleep(baton.wait_seconds)

    original, FileBaton.wait = FileBaton.wait, wait  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        FileBaton.wait = original  # type: ignore[method-assign]
        if stale:
            raise left_lock(stale[0]) from None


def left_lock(lock: Path) -> InputError:
    """The error for a lock that nobody removes."""
    what = "a process that compiled AMD Quark's operators was killed, and left its lock"
    return InputError(what, where=str(lock), hint="remove this file")
