"""How PyTorch compiles Quark's operators: by the ninja beside it, under a lock that a killed process may have left.

The lock is a file, which the process that compiles keeps open. PyTorch waits for ever if such a process was killed,
and takes for compiled what another process was compiling. It takes the first ninja of the ``PATH``, which has that of
a virtual environment only if this is activated; one of another version compiles everything again.
"""

from __future__ import annotations

import contextlib
import os
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnx_bridge.core.errors import InputError

INSTALL = "pip install 'onnx-bridge[quark]' && pip install --no-deps amd-quark"
NEEDS = "Quark needs a C++ compiler and ninja"
BUILD_SECONDS = 600.0
"""The longest build; it takes some twenty seconds."""
LEFT_SECONDS = 60.0
"""A younger lock may be another machine's that shares the folder: its processes are not seen here."""


@contextlib.contextmanager
def compilation() -> Iterator[None]:
    """Let PyTorch find ninja within the block, and the lock: it removes what was left, and does not wait for ever.

    Raises:
        InputError: after the block, if another process held a lock for longer than any build takes; names the file.
    """
    from torch.utils.file_baton import FileBaton

    acquire, held = FileBaton.try_acquire, list[Path]()

    def wait(baton: Any) -> bool:
        lock, end = Path(baton.lock_file_path), time.monotonic() + BUILD_SECONDS
        while not acquire(baton):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - lock.stat().st_mtime > LEFT_SECONDS and not _is_open(lock):
                    lock.unlink()
                elif time.monotonic() > end:
                    held.append(lock)
                    raise TimeoutError(f"{lock} is not removed")
                else:
                    time.sleep(baton.wait_seconds)
        return True

    FileBaton.try_acquire = wait  # type: ignore[method-assign,assignment]
    try:
        with _ninja_on_the_path():
            yield
    finally:
        FileBaton.try_acquire = acquire  # type: ignore[method-assign]
        if held:
            raise held_lock(held[0]) from None


@contextlib.contextmanager
def _ninja_on_the_path() -> Iterator[None]:
    """Put the folder first that pip installs this environment's commands into."""
    path = os.environ.get("PATH")
    os.environ["PATH"] = os.pathsep.join((sysconfig.get_path("scripts"), os.defpath if path is None else path))
    try:
        yield
    finally:
        if path is None:
            del os.environ["PATH"]
        else:
            os.environ["PATH"] = path


def held_lock(lock: Path) -> InputError:
    """Return the error for a lock that a process does not release."""
    what = f"a process has been compiling AMD Quark's operators for {BUILD_SECONDS / 60:.0f} minutes"
    return InputError(what, where=str(lock), hint="end the process that has this file open, or remove it")


def _is_open(lock: Path) -> bool:
    """Return whether a process has it open, among those that this user can see."""
    for opened in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if opened.samefile(lock):
                return True
    return False
