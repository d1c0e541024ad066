"""The journal of a search: what each trial found, one a line, so that a search goes on where another one ended."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx_bridge.benchmark.pareto import Candidate, Trial
from onnx_bridge.conversion.keys import key_of


class Journal:
    """Trials, one a line; those of another question are passed over.

    Args:
        path: the file; made with its folder.
        key: of the question.
        resume: whether to read what is there, or to begin anew.
    """

    def __init__(self, path: Path, key: str, resume: bool) -> None:
        self._path, self._key = path, key
        self._trials: dict[str, Trial] = {}
        self._kept: dict[str, tuple[str, ...]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if not resume:
            path.unlink(missing_ok=True)
        if not path.exists():
            return
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # the last line may be half written
                values = json.loads(line)
                if values["key"] != key:
                    continue
                if "kept" in values:
                    self._kept[key_of(values["candidate"])] = tuple(values["kept"])
                else:
                    trial = Trial.from_json(values["trial"])
                    self._trials[key_of(trial.candidate.to_json())] = trial

    def found(self, candidate: Candidate) -> Trial | None:
        """What was found before."""
        return self._trials.get(key_of(candidate.to_json()))

    def kept(self, candidate: Candidate) -> tuple[str, ...] | None:
        """What was found that a candidate must keep in float32."""
        return self._kept.get(key_of(candidate.to_json()))

    def add(self, trial: Trial) -> None:
        """Remember a trial."""
        self._write({"trial": trial.to_json()})

    def add_kept(self, candidate: Candidate, names: tuple[str, ...]) -> None:
        """Remember what a candidate must keep."""
        self._write({"candidate": candidate.to_json(), "kept": list(names)})

    def _write(self, values: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n" * self._torn() + json.dumps({"key": self._key, **values}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _torn(self) -> bool:
        """Whether the last line has no end."""
        content = self._path.read_bytes()
        return bool(content) and not content.endswith(b"\n")
