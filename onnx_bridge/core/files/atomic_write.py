"""Atomic writes: a file or folder appears at its path complete, or not at all.

Everything is written under a temporary name in the same folder, so on the same file system, and then renamed.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from onnx_bridge.core.errors import InputError

_TRIED = 1 << 20
"""The bytes that `write_problem` writes."""
_WAITING = 16
"""The most threads that wait for the disk."""
_HERE, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of Linux."""

_T = TypeVar("_T")


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a path of the same file name; the file written to it replaces ``path`` when the block succeeds.

    Raises InputError if the file system refuses something, here or in the block.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".writing-", dir=path.parent) as folder:
            temporary = Path(folder) / path.name
            yield temporary
            temporary.replace(path)
    except OSError as error:
        raise InputError(f"the file cannot be written: {error.strerror or error}", where=str(path)) from error


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a folder beside ``path`` that takes its name when the block succeeds; ``path`` is absent or empty."""
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=path.parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
        os.rename(folder, path)  # noqa: PTH104  the name that TemporaryDirectory removes is gone then


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file; raises InputError if it cannot be written."""
    with atomic_file(Path(path)) as temporary:
        temporary.write_bytes(data)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file in UTF-8; raises InputError if it cannot be written."""
    write_bytes(path, text.encode())


class AtomicFiles:
    """Several files that take their places together when the block succeeds, and leave no trace when it fails.

    An existing file is replaced, not overwritten: processes that have it open keep the old content, and a symbolic link
    is itself replaced. If a file is replaced, all are synchronized to the disk before, so that a power cut leaves
    either the old content or the new. The file created last takes its place last.
    """

    def __init__(self) -> None:
        self._files: list[tuple[int, Path, Path]] = []

    def __enter__(self) -> AtomicFiles:
        return self

    def create(self, path: Path) -> int:
        """Return a descriptor, owned by this object, to write the future content of ``path`` to."""
        temporary = path.with_name(f".onnx-bridge-{os.urandom(8).hex()}.tmp")
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._files.append((file, temporary, path))
        return file

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is None:
                if any(os.path.lexists(path) for _, _, path in self._files):
                    # slower than the copy itself, so only if an old file could be lost
                    _at_once(os.fsync, [file for file, _, _ in self._files])
                self._rename()
        finally:
            for file, temporary, _ in self._files:
                os.close(file)
                temporary.unlink(missing_ok=True)

    def _rename(self) -> None:
        """Put all files into place; if one cannot be, those before it are restored."""
        with ExitStack() as cleanup, ExitStack() as undo:
            for _, temporary, path in self._files[:-1]:
                old = temporary.with_suffix(".old")
                try:
                    os.link(path, old, follow_symlinks=False)
                except FileNotFoundError:
                    undo.callback(path.unlink, missing_ok=True)
                else:
                    cleanup.callback(old.unlink, missing_ok=True)
                    undo.callback(old.replace, path)
                temporary.replace(path)
            for _, temporary, path in self._files[-1:]:
                temporary.replace(path)
            undo.pop_all()


def exchange(first: Path, second: Path) -> bool:
    """Exchange two folders of one file system by a single rename (Linux, renameat2).

    Returns:
        Whether they were exchanged; False if the system or the file system cannot do that.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(_HERE, os.fsencode(first), _HERE, os.fsencode(second), _EXCHANGE) == 0)


def write_problem(folder: Path) -> str | None:
    """Return why files cannot be written into a folder, found by writing one; None if they can.

    For libraries that only say that they could not.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_TRIED))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return None


def write_all(file: int, data: bytes | bytearray | memoryview) -> None:
    """Write all of ``data`` at a descriptor's position."""
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def synchronize(*paths: Path) -> None:
    """Wait until the content of files, and the names in folders, are on the disk."""
    _at_once(_synchronize, paths)


def _at_once(wait: Callable[[_T], None], items: Collection[_T]) -> None:
    """Wait for several items in threads: a file system writes once for those that wait together."""
    with ThreadPoolExecutor(min(len(items), _WAITING)) as threads:
        list(threads.map(wait, items))


def _synchronize(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
