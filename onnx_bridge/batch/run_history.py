"""What a journal records of earlier runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from onnx_bridge.batch.failure import Failure
from onnx_bridge.batch.journal import Record

Limits = Mapping[str, float | str | None]


class RunHistory:
    """The results of earlier runs, and of this one, by content key.

    Args:
        records: of the journal, in order.
        resume: whether results of earlier runs are used.
        retry: whether failed jobs are tried again.
    """

    def __init__(self, records: Iterable[Record] = (), *, resume: bool = True, retry: bool = False) -> None:
        self._resume, self._retry = resume, retry
        self._seen: dict[str, Record] = {}
        self._done: dict[str, list[str]] = {}
        self._failed: dict[str, tuple[Failure, Limits]] = {}
        self._checked: dict[str, Record] = {}
        for each in records:
            match each["event"]:
                case "seen":
                    self._seen[each["source"]] = each
                case "done":
                    self.add_bundle(each["key"], each["job"])
                case "failed":
                    self.add_failure(each["key"], Failure.from_json(each["error"]), each["limits"])
                case "checked":
                    self._checked[each["key"]] = each

    @property
    def names(self) -> dict[str, str]:
        """The names of jobs by source."""
        return {source: str(each["job"]) for source, each in self._seen.items()}

    def model(self, source: str) -> dict[str, Any] | None:
        """What was recorded of a source (`ModelInfo.to_json`)."""
        return self._seen[source]["model"] if source in self._seen else None

    def add_bundle(self, key: str, name: str) -> None:
        """Record that there is a bundle of a key under a name."""
        self._done.setdefault(key, []).append(name)

    def add_failure(self, key: str | None, failure: Failure, limits: Limits) -> None:
        """Record a failure, unless it is transient."""
        if key and not failure.transient:
            self._failed[key] = failure, dict(limits)

    def bundles(self, key: str) -> list[str]:
        """The names under which bundles of a key were made; they may have been removed since."""
        return list(self._done.get(key, ())) if self._resume else []

    def failure(self, key: str | None, limits: Limits) -> Failure | None:
        """The earlier failure of a key within the same limits; None if the job should be tried."""
        failure, earlier = self._failed.get(key or "", (None, None))
        return None if self._retry or not self._resume or earlier != limits else failure

    def check(self, key: str | None) -> Record | None:
        """The result of an earlier comparison; None if it should be done."""
        found = self._checked.get(key or "") if self._resume else None
        return found if found is not None and (found["passed"] or not self._retry) else None
