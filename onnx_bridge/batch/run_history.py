"""What a journal says of the runs before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from onnx_bridge.batch.journal import Record


class Past:
    """What was done, what failed, and what was compared, by content key.

    Args:
        records: of the journal, in order.
        resume: whether any of it counts.
        retry: whether failures do not count.
    """

    def __init__(self, records: Iterable[Record] = (), *, resume: bool = True, retry: bool = False) -> None:
        self._resume, self._retry = resume, retry
        self._seen: dict[str, Record] = {}
        self._done: dict[str, list[str]] = {}
        self._failed: dict[str, Record] = {}
        self._checked: dict[str, Record] = {}
        for each in records:
            match each["event"]:
                case "seen":
                    self._seen[each["source"]] = each
                case "done":
                    self.did(each["key"], each["job"])
                case "failed":
                    self.failed(each["key"], each["error"], each["limits"])
                case "checked":
                    self._checked[each["key"]] = each

    @property
    def names(self) -> dict[str, str]:
        """The names of jobs by source."""
        return {source: str(each["job"]) for source, each in self._seen.items()}

    def model(self, source: str) -> dict[str, Any] | None:
        """What was known of a source (`Examined.to_json`)."""
        return self._seen[source]["model"] if source in self._seen else None

    def did(self, key: str, name: str) -> None:
        """Remember that a bundle is there."""
        self._done.setdefault(key, []).append(name)

    def failed(self, key: str | None, error: Record, limits: Mapping[str, Any]) -> None:
        """Remember a failure, unless it was by chance."""
        if key and not error["chance"]:
            self._failed[key] = {"error": error, "limits": dict(limits)}

    def bundles(self, key: str) -> list[str]:
        """The names of the bundles that were made for a key, if they are still there."""
        return list(self._done.get(key, ())) if self._resume else []

    def failure(self, key: str | None, limits: Mapping[str, Any]) -> Record | None:
        """How something failed before, if it would again: by its own fault, and within the same limits."""
        found = self._failed.get(key or "")
        if found is None or self._retry or not self._resume or found["limits"] != limits:
            return None
        error: Record = found["error"]
        return error

    def check(self, key: str | None) -> Record | None:
        """What a comparison found, if it need not be done again."""
        found = self._checked.get(key or "") if self._resume else None
        return found if found is not None and (found["passed"] or not self._retry) else None
