"""The journal of a batch whose OUT is remote: a local file, with a copy of each run's records in OUT.

    OUT/.batch/journal/2026-01-31T12-00-00.000000-9a0b1c2d.jsonl     the records of one run

Object storage has no append, so the copy of this run is rewritten as a whole every few seconds while there are new
records; each record is on the local disk before. The next run, on whatever machine, reads the copies of all runs.
Records that a lost machine had not yet copied are recovered from the manifests of the bundles.

One program at a time may write to an OUT. On one machine the lock of the local journal ensures this; across machines
the user must, since object storage offers no lock that fsspec can take.
"""

from __future__ import annotations

import contextlib
import datetime
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path

from onnx_bridge.batch import journal as journals
from onnx_bridge.batch.journal import STATE_FOLDER, Journal, Record, decode_record
from onnx_bridge.core.errors import BridgeError
from onnx_bridge.core.files.locations import RemotePath

_COPY_SECONDS = 2.0


class RemoteJournal:
    """A journal in a local folder, for this OUT alone, and its copies in a remote folder."""

    def __init__(self, remote: RemotePath, local: Path) -> None:
        self._remote, self._local = remote, local
        self._others: set[bytes] = set()
        self._copied = b""
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H-%M-%S.%f")
        self._own = remote / f"{stamp}-{secrets.token_hex(4)}.jsonl"

    def records(self) -> list[Record]:
        """Return the records of all runs, without locking the journal."""
        local = _complete_lines(journals.read_bytes(self._local / STATE_FOLDER))
        lines = dict.fromkeys([*local, *self._remote_lines()])
        return [record for line in lines if (record := decode_record(line)) is not None]

    @contextlib.contextmanager
    def locked(self) -> Iterator[Journal]:
        """Lock the local journal and copy its records meanwhile; raises InputError if another program has locked it."""
        with journals.locked(self._local) as journal:
            lines = self._remote_lines()
            self._others = set(lines)
            journal.merge(lines)
            stop = threading.Event()
            copying = threading.Thread(target=self._copy_repeatedly, args=(stop,), daemon=True)
            copying.start()
            try:
                yield journal
            except BaseException:
                with contextlib.suppress(BridgeError):  # the first error is the one to report
                    self._finish(copying, stop)
                raise
            self._finish(copying, stop)

    def _finish(self, copying: threading.Thread, stop: threading.Event) -> None:
        stop.set()
        copying.join()
        self._copy()

    def _copy_repeatedly(self, stop: threading.Event) -> None:
        while not stop.wait(_COPY_SECONDS):
            with contextlib.suppress(BridgeError):  # the next attempt may succeed
                self._copy()

    def _copy(self) -> None:
        """Write the records that are only in the local journal, if there are new ones."""
        lines = _complete_lines(journals.read_bytes(self._local / STATE_FOLDER))
        data = b"".join(line + b"\n" for line in lines if line not in self._others)
        if data != self._copied:
            self._own.write_bytes(data)
            self._copied = data

    def _remote_lines(self) -> list[bytes]:
        """Return the lines of all copies, in the order of the runs."""
        contents = self._remote.read_many(sorted(self._remote.files()))
        return [line for name in sorted(contents) for line in _complete_lines(contents[name])]


def _complete_lines(data: bytes) -> list[bytes]:
    return [line for line in data.split(b"\n") if line and decode_record(line) is not None]
