"""The journal of a batch: what was begun, done and failed, one line of JSON each, only ever appended.

    {"at": "2026-01-31T12:00:00+00:00", "event": "done", "job": "resnet", "key": "…", …, "sum": "9a0b1c2d"}

A line is on the disk before anything goes on from it, and carries its checksum: a line that a kill or a full disk left
unfinished, or that was damaged since, is passed over. One program at a time holds a journal; its job processes hold it
with it, so that it is free only when the last of them is gone.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import json
import os
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from onnx_bridge.conversion.keys import canonical
from onnx_bridge.core.atomic_write import synchronize
from onnx_bridge.core.errors import InputError

STATE = ".batch"
"""The folder in OUT of everything that is no bundle."""
_FILE = "journal.jsonl"
_PATIENCE = 10.0
"""Seconds that the processes of a program that was killed may take to end."""
_PAUSE = 0.05

Record = dict[str, Any]


def sealed(record: Record) -> str:
    """A record as a line, with its checksum."""
    return json.dumps({**record, "sum": _sum(record)}, ensure_ascii=True, allow_nan=False)


def unsealed(line: str | bytes) -> Record | None:
    """The record of a line; None where it is not whole."""
    try:
        record = json.loads(line)
        claimed = record.pop("sum")
        return record if claimed == _sum(record) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _sum(record: Record) -> str:
    return f"{zlib.crc32(canonical(record).encode()):08x}"


def read(folder: Path) -> tuple[list[Record], int, bool]:
    """The records of a journal, how many lines could not be read, and whether the last one is unfinished.

    Args:
        folder: where it is; without one it is empty.
    """
    data = read_bytes(folder)
    lines = [line for line in data.split(b"\n") if line]
    records = [record for line in lines if (record := unsealed(line)) is not None]
    return records, len(lines) - len(records), bool(data) and not data.endswith(b"\n")


def read_bytes(folder: Path) -> bytes:
    """All of a journal as it is; without one, nothing."""
    path = folder / _FILE
    return path.read_bytes() if path.exists() else b""


class Journal:
    """The journal in a folder, held by this program alone.

    Attributes:
        folder: where it is, with logs and temporary files beside it.
        records: what was in it, in order.
        damaged: how many lines of it could not be read.
        lock: the descriptor that holds it; to be inherited by processes that work on its behalf.
    """

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        self.lock = lock
        path = folder / _FILE
        self.records, self.damaged, self._torn = read(folder)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        synchronize(folder)

    def add(self, event: str, *, wait: bool = True, **fields: Any) -> None:
        """Append a record and wait until it is on the disk, unless it is one whose loss costs nothing.

        Raises:
            InputError: it cannot be written; what was in it before is as it was.
        """
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        record = {"at": now, "event": event, **fields}
        self._append(sealed(record).encode() + b"\n", wait)
        self.records.append(record)

    def absorb(self, lines: Iterable[bytes]) -> None:
        """Append those lines of other journals that are whole, and not in this one; raises as `add`."""
        known = set(map(sealed, self.records))
        new = dict.fromkeys(line for line in lines if unsealed(line) is not None and line.decode() not in known)
        if new:
            self._append(b"".join(line + b"\n" for line in new), wait=True)
            self.records += [record for line in new if (record := unsealed(line)) is not None]

    def _append(self, line: bytes, wait: bool) -> None:
        data = b"\n" + line if self._torn else line  # an unfinished line ends here
        self._torn = True
        try:
            if os.write(self._file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if wait:
                os.fsync(self._file)
        except OSError as error:
            what = f"the journal cannot be written: {error.strerror}"
            where = str(self.folder / _FILE)
            raise InputError(what, where=where, hint="make room; the same command goes on from here") from error
        self._torn = False

    def close(self) -> None:
        """Let go of it, as far as this process holds it."""
        os.close(self._file)


@contextlib.contextmanager
def held(out: Path) -> Iterator[Journal]:
    """Hold the journal of a folder, which is made where there is none.

    Raises:
        InputError: another program holds it, or the folder cannot be written.
    """
    folder = out / STATE
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"the folder cannot be written: {error.strerror}", where=str(out)) from error
    journal = None
    try:
        _acquire(lock, out)
        try:
            journal = Journal(folder, lock)
        except OSError as error:
            raise InputError(f"the journal cannot be opened: {error.strerror}", where=str(folder)) from error
        yield journal
    finally:
        if journal is not None:
            journal.close()
        os.close(lock)
        if journal is None or not journal.records:  # leave nothing where there was nothing
            with contextlib.suppress(OSError):
                (folder / _FILE).unlink(missing_ok=True) if journal is not None else None
                for each in made:
                    each.rmdir()


def _acquire(lock: int, out: Path) -> None:
    """Lock a folder; processes that outlived their program by moments are waited for."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                what = "another batch into this folder is under way"
                raise InputError(what, where=str(out), hint="wait for it to end, or give another folder") from None
            time.sleep(_PAUSE)
        except OSError as error:
            if error.errno in (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP):
                return  # the file system (NFS) has no such locks: better none than no conversion
            raise
