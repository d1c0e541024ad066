"""The records of the journal of a batch, by content key.

A record is one of the classes below; in the journal it has its kind as ``event`` beside its fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from onnx_bridge.batch.failure import Failure
from onnx_bridge.batch.journal import Journal, Record

Limits = dict[str, float | str | None]


class _Entry(msgspec.Struct, frozen=True, tag_field="event", omit_defaults=True):
    """A record of the journal."""


class RunBegun(_Entry, frozen=True, tag="run"):
    """A program has begun to run the batch."""

    jobs: int
    process: int


class ModelSeen(_Entry, frozen=True, tag="seen"):
    """A model was read; ``model`` is the value of `ModelInfo.to_json`."""

    job: str
    source: str
    model: dict[str, Any]


class AttemptBegun(_Entry, frozen=True, tag="start"):
    """A job was given to the engine."""

    job: str
    key: str
    attempt: int
    convert: bool
    request: dict[str, Any]


class AttemptFailed(_Entry, frozen=True, tag="again"):
    """An attempt failed, and the job is tried again."""

    job: str
    key: str
    error: Failure


class BundleDone(_Entry, frozen=True, tag="done"):
    """There is a bundle of a key: ``converted``, ``reused`` (a copy of another) or ``found``."""

    job: str
    key: str
    how: str
    seconds: float | None = None
    timings: dict[str, Any] | None = None


class BundleChecked(_Entry, frozen=True, tag="checked"):
    """A bundle was compared with the reference."""

    job: str
    key: str
    passed: bool
    summary: str


class JobFailed(_Entry, frozen=True, tag="failed"):
    """A job failed, under limits that are no part of its key."""

    job: str
    key: str | None
    error: Failure
    limits: Limits


class RunEnded(_Entry, frozen=True, tag="end"):
    """All jobs have ended."""

    failed: int
    jobs: int


_Any = RunBegun | ModelSeen | AttemptBegun | AttemptFailed | BundleDone | BundleChecked | JobFailed | RunEnded


class RunHistory:
    """The results of earlier runs, and of this one.

    Args:
        records: the records of the journal, in order; those of no known kind are ignored.
        journal: the journal for results of this run; None records them nowhere.
        resume: whether results of earlier runs are used.
        retry: whether failed jobs are tried again.
    """

    def __init__(
        self,
        records: Iterable[Record] = (),
        journal: Journal | None = None,
        *,
        resume: bool = True,
        retry: bool = False,
    ) -> None:
        self._journal, self._resume, self._retry = journal, resume, retry
        self._seen: dict[str, ModelSeen] = {}
        self._done: dict[str, list[str]] = {}
        self._failed: dict[str, JobFailed] = {}
        self._checked: dict[str, BundleChecked] = {}
        for record in records:
            try:
                self._note(msgspec.convert(record, _Any))
            except msgspec.ValidationError:
                continue

    def add(self, entry: _Entry, *, durable: bool = True) -> None:
        """Record something in the journal, and remember it; raises like `onnx_bridge.batch.journal.Journal.add`."""
        if self._journal is not None:
            self._journal.add(durable=durable, **msgspec.to_builtins(entry))
        self._note(entry)

    def _note(self, entry: _Entry) -> None:
        match entry:
            case ModelSeen():
                self._seen[entry.source] = entry
            case BundleDone():
                self._done.setdefault(entry.key, []).append(entry.job)
            case JobFailed() if entry.key and not entry.error.transient:
                self._failed[entry.key] = entry
            case BundleChecked() if entry.key:
                self._checked[entry.key] = entry

    def names(self) -> dict[str, str]:
        return {source: entry.job for source, entry in self._seen.items()}

    def model(self, source: str) -> dict[str, Any] | None:
        """Return what was recorded of a model (`ModelInfo.to_json`)."""
        return self._seen[source].model if source in self._seen else None

    def has_seen(self, name: str, source: str, model: Mapping[str, Any]) -> bool:
        """Return whether a model was last seen as it is now, under the same name."""
        entry = self._seen.get(source)
        return entry is not None and (entry.job, entry.model) == (name, model)

    def bundles(self, key: str) -> list[str]:
        """Return the names under which bundles of a key were made; they may have been removed since."""
        return list(self._done.get(key, ())) if self._resume else []

    def failure(self, key: str | None, limits: Limits) -> Failure | None:
        """Return the earlier failure of a key within the same limits; None if the job should be tried."""
        entry = self._failed.get(key or "")
        if entry is None or self._retry or not self._resume or entry.limits != limits:
            return None
        return entry.error

    def check(self, key: str | None) -> BundleChecked | None:
        """Return the earlier comparison of a key; None if it should be made."""
        entry = self._checked.get(key or "") if self._resume else None
        return entry if entry is not None and (entry.passed or not self._retry) else None
