"""The journal of a batch: an append-only file of records, one JSON object a line.

    {"at": "2026-01-31T12:00:00+00:00", "event": "done", "job": "resnet", "key": "…", …, "sum": "9a0b1c2d"}

A record is on the disk before the batch continues, and carries a checksum: a line that a kill or a full disk truncated,
or that was damaged later, is ignored. One program at a time locks a journal; its job processes inherit the lock, so
that it is released only when the last of them has exited.
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

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.atomic_write import synchronize
from onnx_bridge.core.files.digest import canonical_json
from onnx_bridge.core.files.regular_file import LARGE, read_regular
from onnx_bridge.core.schema import parse_json

STATE_FOLDER = ".batch"
"""The folder in OUT of everything that is not a bundle."""
_FILE = "journal.jsonl"
_LOCK_SECONDS = 10.0
"""Seconds that the processes of a killed program may take to exit."""
_RETRY_SECONDS = 0.05

Record = dict[str, Any]


def encode_record(record: Record) -> str:
    """Return a record as a line, with its checksum."""
    return json.dumps({**record, "sum": _checksum(record)}, ensure_ascii=True, allow_nan=False)


def decode_record(line: str | bytes) -> Record | None:
    """Return the record of a line; None if the line is incomplete or damaged."""
    try:
        record = parse_json(line)
        checksum = record.pop("sum")
        return record if checksum == _checksum(record) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _checksum(record: Record) -> str:
    return f"{zlib.crc32(canonical_json(record).encode()):08x}"


def read(folder: Path) -> tuple[list[Record], int, bool]:
    """Return the records in a state folder, the number of unreadable lines, and whether the last line is incomplete."""
    data = read_bytes(folder)
    lines = [line for line in data.split(b"\n") if line]
    records = [record for line in lines if (record := decode_record(line)) is not None]
    return records, len(lines) - len(records), bool(data) and not data.endswith(b"\n")


def read_bytes(folder: Path) -> bytes:
    """Return the content of the journal in a state folder; empty if there is none."""
    path = folder / _FILE
    return read_regular(path, LARGE) if path.exists() else b""


class Journal:
    """A journal that this program has locked.

    Attributes:
        folder: the state folder, with logs and temporary files beside the journal.
        damaged: the number of unreadable lines.
        lock: the descriptor of the lock, to be inherited by processes that work for this program.
    """

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        self.lock = lock
        path = folder / _FILE
        self.records, self.damaged, self._incomplete = read(folder)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        synchronize(folder)

    def add(self, event: str, *, durable: bool = True, **fields: Any) -> None:
        """Append a record, and wait until it is on the disk if ``durable``.

        Raises InputError if it cannot be written; earlier records are intact.
        """
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        record = {"at": now, "event": event, **fields}
        self._append(encode_record(record).encode() + b"\n", durable)
        self.records.append(record)

    def merge(self, lines: Iterable[bytes]) -> None:
        """Append those lines of other journals that are complete and not in this one; raises as `add`."""
        known = set(map(encode_record, self.records))
        new = dict.fromkeys(line for line in lines if decode_record(line) is not None and line.decode() not in known)
        if new:
            self._append(b"".join(line + b"\n" for line in new), durable=True)
            self.records += [record for line in new if (record := decode_record(line)) is not None]

    def _append(self, line: bytes, durable: bool) -> None:
        data = b"\n" + line if self._incomplete else line  # ends the incomplete line
        self._incomplete = True
        try:
            if os.write(self._file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if durable:
                os.fsync(self._file)
        except OSError as error:
            what = f"the journal cannot be written: {error.strerror}"
            where = str(self.folder / _FILE)
            raise InputError(what, where=where, hint="free disk space, then repeat the command: it resumes") from error
        self._incomplete = False

    def close(self) -> None:
        """Close this process's descriptor of the journal."""
        os.close(self._file)


@contextlib.contextmanager
def locked(out: Path) -> Iterator[Journal]:
    """Lock the journal of a folder, creating both as needed; raises InputError if it is locked or cannot be written."""
    folder = out / STATE_FOLDER
    created = [parent for parent in (folder, *folder.parents) if not parent.exists()]
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
        if journal is None or not journal.records:  # remove what was created for nothing
            with contextlib.suppress(OSError):
                if journal is not None:
                    (folder / _FILE).unlink(missing_ok=True)
                for parent in created:
                    parent.rmdir()


def _acquire(lock: int, out: Path) -> None:
    """Lock a folder; waits for processes that outlive their killed program by moments."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                what = "another batch is writing to this folder"
                raise InputError(what, where=str(out), hint="wait for it to end, or give another folder") from None
            time.sleep(_RETRY_SECONDS)
        except OSError as error:
            if error.errno in (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP):
                return  # the file system (NFS) has no such locks: better none than no conversion
            raise
