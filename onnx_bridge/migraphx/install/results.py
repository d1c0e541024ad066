"""Results of the verbs of ``onnx-bridge runtime``, as JSON values and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_bridge.core.schema import JsonRecord, to_json
from onnx_bridge.migraphx.runtime import Choice, Runtime


@dataclass(frozen=True)
class RuntimeList:
    """Every runtime on this machine, with the reason why it is used or not.

    Attributes:
        providers: the environments with ONNX Runtime's MIGraphX provider; the first is used.
    """

    choices: list[Choice]
    providers: Sequence[JsonRecord] = ()

    @property
    def used(self) -> Runtime | None:
        """The runtime that is used; None if there is none, or not the requested one."""
        return next((choice.runtime for choice in self.choices if choice.used), None)

    def to_json(self) -> dict[str, Any]:
        entries = [{**choice.runtime.to_json(), "used": choice.used, "why": choice.why} for choice in self.choices]
        return {"used": to_json(self.used), "runtimes": entries, "providers": to_json(list(self.providers))}


@dataclass(frozen=True)
class Paths:
    """Files or folders, and what was done to them, as a past participle."""

    done: str
    paths: list[Path]

    def to_json(self) -> dict[str, Any]:
        return {self.done: [str(path) for path in self.paths]}
