"""Verdicts on disk: one file for a runtime, lines of JSON that are only ever appended.

Several processes may write at once: each appends whole lines with one call, which the system does not interleave. Lines
that cannot be parsed are skipped. If the file cannot be written, verdicts are kept in memory.
"""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx_bridge.core.schema import parse_json
from passes.rewriting.base import Obstacle, Proof, Status, Unproven, Verdict

_TAIL = 256
"""The bytes before the read position that identify the file: about one line."""


@dataclass(frozen=True)
class CachedVerdict:
    """A verdict, and how far it holds.

    Attributes:
        budget: the seconds that there were for runs at real size.
        by_constants: whether it holds for the constants of one probe alone.
    """

    verdict: Verdict
    budget: float
    by_constants: bool = False

    def holds(self, budget: float) -> bool:
        """Return whether a verdict with that budget would be the same: a larger one may pay for a run at real size."""
        by_numbers = self.verdict.status in (Status.OK, Status.WRONG)
        too_large = self.verdict.unproven is not None and self.verdict.unproven.obstacle is Obstacle.SIZE
        return budget <= self.budget or not (by_numbers and too_large)


def _parse(line: bytes) -> tuple[str, CachedVerdict] | None:
    """Return the signature and verdict of a line; None if it is damaged."""
    try:
        signature, status, message, error, proof, obstacle, detail, group, by, budget, by_constants = parse_json(line)
        error = None if error is None else float(error)
        unproven = None if obstacle is None else Unproven(Obstacle(obstacle), str(detail))
        verdict = Verdict(Status(status), str(message), error, Proof(proof), unproven, str(group), str(by))
        return str(signature), CachedVerdict(verdict, float(budget), by_constants is True)
    except (ValueError, TypeError):
        return None


def _line(signature: str, known: CachedVerdict) -> str:
    verdict = known.verdict
    why = (None, "") if verdict.unproven is None else (verdict.unproven.obstacle.value, verdict.unproven.detail)
    fields = verdict.status.value, verdict.message, verdict.error, verdict.proof.value, *why
    return json.dumps([signature, *fields, verdict.group, verdict.by, known.budget, known.by_constants])


class VerdictCache:
    """Verdicts by signature; with a file, also those of other processes. Safe to use from several threads.

    Lines are parsed when their signature is looked up: there may be thousands of them.

    Args:
        path: the file, created with the first verdict; None for a cache in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, CachedVerdict] = {}
        self._lines: dict[bytes, list[bytes]] = {}
        self._read_to, self._tail = 0, b""
        self._lock = threading.Lock()

    @property
    def is_empty(self) -> bool:
        """True if it had no verdict when it was read."""
        return not (self._known or self._lines)

    def get(self, signature: str, budget: float) -> CachedVerdict | None:
        """Return the verdict of a probe, if it holds with a budget of seconds."""
        with self._lock:
            for line in self._lines.pop(f'["{signature}"'.encode(), ()):
                if (parsed := _parse(line)) is not None:
                    self._store(*parsed)
            known = self._known.get(signature)
        return known if known is not None and known.holds(budget) else None

    def refresh(self) -> None:
        """Read what has been appended since; if the file has been replaced, all of it."""
        if self._path is None:
            return
        with self._lock:
            try:
                with self._path.open("rb") as file:
                    file.seek(self._read_to - len(self._tail))
                    if file.read(len(self._tail)) != self._tail:
                        self._reset()
                        file.seek(0)
                    data = file.read()
            except FileNotFoundError:
                if self._read_to:  # otherwise it may be impossible to write, and memory is the cache
                    self._reset()
                return
            except OSError:
                return
            whole = data.rfind(b"\n") + 1
            self._read_to += whole
            self._tail = (self._tail + data[:whole])[-_TAIL:]
            for line in data[:whole].split(b"\n"):
                if line:
                    self._lines.setdefault(line.partition(b",")[0], []).append(line)

    def add(self, verdicts: Mapping[str, CachedVerdict]) -> None:
        """Store verdicts by signature: in the file, which `refresh` reads, or else in memory."""
        if self._path is None or not self._write(self._path, verdicts):
            with self._lock:
                for signature, known in verdicts.items():
                    self._store(signature, known)

    @staticmethod
    def _write(path: Path, verdicts: Mapping[str, CachedVerdict]) -> bool:
        """Return whether all verdicts were written."""
        lines = [_line(signature, known) for signature, known in verdicts.items()]
        data = "\n".join(["", *lines, ""]).encode()  # ends a line that another process left unfinished
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                return os.write(descriptor, data) == len(data)
            finally:
                os.close(descriptor)
        except OSError:
            return False

    def _reset(self) -> None:
        self._known, self._lines, self._read_to, self._tail = {}, {}, 0, b""

    def _store(self, signature: str, known: CachedVerdict) -> None:
        before = self._known.get(signature)
        if before is None or not before.holds(known.budget):
            self._known[signature] = known


@functools.cache
def shared(path: Path) -> VerdictCache:
    """Return the cache of a file, shared within this process."""
    return VerdictCache(path)
