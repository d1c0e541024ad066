"""The journal of a folder elsewhere: a file here, of which that folder has copies.

    OUT/.batch/journal/2026-01-31T12-00-00.000000-9a0b1c2d.jsonl     the lines of one run
    OUT/.batch/holder.json                                    who leads a batch there, and the beat of its heart

Nothing can be appended to elsewhere, so that the lines of this run are written anew, as a whole, whenever there are
more of them; each line is on the disk here before. Whoever comes next reads the lines of all runs, on whatever machine.
What the last moments of a machine that is lost would have told is in the bundles. A second program sees the heart of
the first one beat, whatever their clocks say, and refuses; one whose heart stands still has its place taken, and
notices before it replaces anything.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnx_bridge.batch import journal as journals
from onnx_bridge.batch.journal import STATE, Journal, Record, unsealed
from onnx_bridge.core.errors import BridgeError, InputError
from onnx_bridge.core.locations import RemotePath

_BEAT = 2.0
"""Seconds between two beats, and so between two copies."""
_PATIENCE = 12.0
"""Seconds without a beat after which a program is taken for dead."""
_SETTLE = 0.5
"""Seconds in which another program that came at the same moment would have written its name."""


class Copies:
    """The journal of a folder elsewhere.

    Args:
        there: the folder of its copies.
        here: the folder, for this OUT alone, that the journal is in.
    """

    def __init__(self, there: RemotePath, here: Path) -> None:
        self._there, self._here = there, here
        self._holder = there / "holder.json"
        self._token = secrets.token_hex(8)
        self._others: set[bytes] = set()
        self._sent = b""
        self._beats = 0
        self._lost = False
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H-%M-%S.%f")
        self._mine = there / "journal" / f"{stamp}-{self._token[:8]}.jsonl"

    def records(self) -> list[Record]:
        """What all runs told, without holding it."""
        here = _lines(journals.read_bytes(self._here / STATE))
        lines = dict.fromkeys([*here, *self._elsewhere()])
        return [record for line in lines if (record := unsealed(line)) is not None]

    @contextlib.contextmanager
    def held(self) -> Iterator[Journal]:
        """Hold the journal; raises InputError where another program does."""
        with journals.held(self._here) as journal:
            mine = self._name()
            self._take(mine)
            lines = self._elsewhere()
            self._others = set(lines)
            journal.absorb(lines)
            stop = threading.Event()
            beating = threading.Thread(target=self._beat, args=(mine, stop), daemon=True)
            beating.start()
            try:
                yield journal
            except BaseException:
                with contextlib.suppress(BridgeError):  # what went wrong before is what should be told
                    self._leave(beating, stop)
                raise
            self._leave(beating, stop)

    def _leave(self, beating: threading.Thread, stop: threading.Event) -> None:
        stop.set()
        beating.join()
        if not self._lost:
            self._copy()
            self._holder.remove()

    def check(self) -> None:
        """Make sure that nobody has taken this program's place; raises InputError."""
        if self._lost:
            what = "another batch into this folder has begun, since this one was not heard of for too long"
            raise InputError(what, where=str(self._there.parent))

    def _name(self) -> str:
        """This folder's own, on this machine: who holds it here need not wait for those before."""
        path = self._here / STATE / "name"
        if not path.exists():
            path.write_text(secrets.token_hex(8))
        return path.read_text()

    def _take(self, mine: str) -> None:
        before = self._read()
        if before is not None and before.get("name") != mine:
            deadline = time.monotonic() + _PATIENCE
            while (now := self._read()) is not None and time.monotonic() < deadline:
                if now != before:
                    raise self._taken(now)
                time.sleep(_PATIENCE / 20)
        self._write(mine)
        time.sleep(_SETTLE)
        after = self._read()
        if after is not None and after.get("token") != self._token:
            raise self._taken(after)

    def _taken(self, who: Record) -> InputError:
        what = "another batch into this folder is under way"
        hint = f"wait for it to end ({who.get('machine')}, process {who.get('process')}), or give another folder"
        return InputError(what, where=str(self._there.parent), hint=hint)

    def _read(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self._holder.read_bytes())
        except (InputError, ValueError):  # nobody, or somebody's first letters
            return None
        return found if isinstance(found, dict) else None

    def _write(self, mine: str) -> None:
        self._beats += 1
        who = {"machine": socket.gethostname(), "process": os.getpid()}
        values = {"name": mine, "token": self._token, "beat": self._beats, **who}
        self._holder.write_bytes(json.dumps(values).encode())

    def _beat(self, mine: str, stop: threading.Event) -> None:
        while not stop.wait(_BEAT):
            with contextlib.suppress(BridgeError):  # the next beat may get through
                holder = self._read()
                if holder is not None and holder.get("token") != self._token:
                    self._lost = True
                    return
                self._write(mine)
                self._copy()

    def _copy(self) -> None:
        """Have the lines that are only here there as well."""
        own = [line for line in _lines(journals.read_bytes(self._here / STATE)) if line not in self._others]
        data = b"".join(line + b"\n" for line in own)
        if data != self._sent:
            self._mine.write_bytes(data)
            self._sent = data

    def _elsewhere(self) -> list[bytes]:
        """The lines of all runs, in their order."""
        folder = self._there / "journal"
        found = folder.read_many(sorted(folder.files()))
        return [line for name in sorted(found) for line in _lines(found[name])]


def _lines(data: bytes) -> list[bytes]:
    """Those that are whole."""
    return [line for line in data.split(b"\n") if line and unsealed(line) is not None]
