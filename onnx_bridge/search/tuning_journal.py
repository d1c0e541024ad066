"""The journal of a search: a line of JSON for each trial, from which an interrupted search continues."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx_bridge.core.files.digest import json_digest
from onnx_bridge.core.files.regular_file import read_regular
from onnx_bridge.core.schema import parse_json, read_as
from onnx_bridge.search.pareto import Candidate, Trial


class Journal:
    """The results of a search.

    Args:
        path: the file; created with its folder.
        key: the key of the search; lines with another key are ignored.
        resume: whether to read the file, or to replace it.
    """

    def __init__(self, path: Path, key: str, resume: bool) -> None:
        self._path, self._key = path, key
        self._trials: dict[str, Trial] = {}
        self._float32_nodes: dict[str, tuple[str, ...]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if not resume:
            path.unlink(missing_ok=True)
        if not path.exists():
            return
        for line in read_regular(path).decode(errors="replace").splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # the last line may be incomplete
                values = parse_json(line)
                if values["key"] != key:
                    continue
                if "float32_nodes" in values:
                    self._float32_nodes[json_digest(values["candidate"])] = tuple(values["float32_nodes"])
                else:
                    trial = read_as(Trial, values["trial"])
                    self._trials[json_digest(trial.candidate.to_json())] = trial

    def trial(self, candidate: Candidate) -> Trial | None:
        """Return the earlier trial of a candidate."""
        return self._trials.get(json_digest(candidate.to_json()))

    def float32_nodes(self, candidate: Candidate) -> tuple[str, ...] | None:
        """Return the nodes that must stay in float32 for a candidate, of an earlier search."""
        return self._float32_nodes.get(json_digest(candidate.to_json()))

    def add(self, trial: Trial) -> None:
        self._write({"trial": trial.to_json()})

    def add_float32_nodes(self, candidate: Candidate, names: tuple[str, ...]) -> None:
        """Add the nodes that must stay in float32 for a candidate."""
        self._write({"candidate": candidate.to_json(), "float32_nodes": list(names)})

    def _write(self, values: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            torn = self._path.read_bytes()[-1:] not in (b"", b"\n")  # the last line is incomplete
            file.write("\n" * torn + json.dumps({"key": self._key, **values}) + "\n")
            file.flush()
            os.fsync(file.fileno())
