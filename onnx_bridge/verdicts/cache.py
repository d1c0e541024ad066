"""Verdicts on disk: one file for a runtime, lines of JSON that are only ever appended.

Several processes may write at once: whoever appends writes whole lines with one call, which the system does not mix.
A line that cannot be read is passed over, and a cache that cannot be written is done without.
"""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from passes.core.base import Status, Verdict

_TAIL = 256
"""How many bytes before the place that was read to tell whether it is still the same file: about a line."""


@dataclass(frozen=True)
class CachedVerdict:
    """A verdict, and whether the probe was also compiled and, where that is cheap, run."""

    verdict: Verdict
    ran: bool

    @property
    def final(self) -> bool:
        """Whether nothing more can be learned by running the probe."""
        return self.ran or self.verdict.status not in (Status.OK, Status.WRONG)


def read_line(line: bytes) -> tuple[str, CachedVerdict] | None:
    """The signature and verdict of a line; None for one that is damaged."""
    try:
        signature, status, message, error, ran = json.loads(line)
        verdict = Verdict(Status(status), str(message), None if error is None else float(error))
    except (ValueError, TypeError):
        return None
    return str(signature), CachedVerdict(verdict, ran is True)


class VerdictCache:
    """What is known, by signature; with a file, also of what other processes learn.

    Lines are taken apart when somebody asks for what they say: there may be thousands of them. Threads may share it.

    Args:
        path: the file, made when there is something to write; None to remember in this process alone.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, CachedVerdict] = {}
        self._lines: dict[bytes, list[bytes]] = {}
        self._read_to, self._tail = 0, b""
        self._lock = threading.Lock()

    def get(self, signature: str, *, run: bool) -> Verdict | None:
        """A verdict that is at least as thorough as asked for."""
        with self._lock:
            for line in self._lines.pop(f'["{signature}"'.encode(), ()):
                if (found := read_line(line)) is not None:
                    self._learn(*found)
            known = self._known.get(signature)
        return known.verdict if known is not None and (known.final or not run) else None

    def refresh(self) -> None:
        """Read what has been written since; of a file that is another one now, everything."""
        if self._path is None:
            return
        with self._lock:
            try:
                with self._path.open("rb") as file:
                    file.seek(self._read_to - len(self._tail))
                    if file.read(len(self._tail)) != self._tail:
                        self._forget()
                        file.seek(0)
                    data = file.read()
            except FileNotFoundError:
                if self._read_to:  # else it could never be written
                    self._forget()
                return
            except OSError:
                return
            whole = data.rfind(b"\n") + 1
            self._read_to += whole
            self._tail = (self._tail + data[:whole])[-_TAIL:]
            for line in data[:whole].split(b"\n"):
                if line:
                    self._lines.setdefault(line.partition(b",")[0], []).append(line)

    def add(self, found: Mapping[str, CachedVerdict]) -> None:
        """Remember verdicts by signature: in the file, which `refresh` reads, or where there is none, here."""
        if self._path is None or not self._write(self._path, found):
            with self._lock:
                for signature, known in found.items():
                    self._learn(signature, known)

    @staticmethod
    def _write(path: Path, found: Mapping[str, CachedVerdict]) -> bool:
        """Whether all of it could be written."""
        lines = [
            json.dumps([signature, known.verdict.status.value, known.verdict.message, known.verdict.error, known.ran])
            for signature, known in found.items()
        ]
        data = "\n".join(["", *lines, ""]).encode()  # a line that somebody left unfinished ends here
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                return os.write(descriptor, data) == len(data)
            finally:
                os.close(descriptor)
        except OSError:
            return False

    def _forget(self) -> None:
        self._known, self._lines, self._read_to, self._tail = {}, {}, 0, b""

    def _learn(self, signature: str, known: CachedVerdict) -> None:
        before = self._known.get(signature)
        if before is None or not before.final:
            self._known[signature] = known


@functools.cache
def shared(path: Path) -> VerdictCache:
    """The one cache of a file in this process."""
    return VerdictCache(path)
