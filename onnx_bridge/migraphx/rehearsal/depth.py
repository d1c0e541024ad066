"""A rehearsal of the gpu target on a machine without a GPU: what it does to a program, whatever its depth."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from onnx_bridge.migraphx.remote_program import RemoteProgram
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.migraphx.worker import Worker


@dataclass(frozen=True)
class Rehearsal(ABC):
    """A part of what the gpu target does: its passes alone, or its passes and kernels.

    Attributes:
        runtime: the runtime that does it, by its C library.
        groups: the names of the steps that can be told apart, in order.
    """

    runtime: Runtime
    groups: tuple[str, ...]

    slower: ClassVar[float] = 3.0
    """The factor by which a probe may take longer than on ``ref``."""

    @property
    def target(self) -> str:
        """The target that programs are compiled for."""
        return "ref"

    @property
    def computes(self) -> bool:
        """True if a compiled program can be run."""
        return True

    @property
    @abstractmethod
    def leg(self) -> str:
        """What computes, as the name of a leg of a comparison."""

    @property
    @abstractmethod
    def option(self) -> str:
        """The option that asks for it."""

    @property
    @abstractmethod
    def note(self) -> str:
        """A sentence for the user that says what was rehearsed, and what was not."""

    @property
    @abstractmethod
    def key(self) -> str:
        """A text that changes with what is rehearsed."""

    @abstractmethod
    def first(self, count: int) -> Rehearsal:
        """Return the rehearsal of the first groups alone."""

    @abstractmethod
    def worker(self, environment: Mapping[str, str] | None = None, *, checks_heap: bool = False) -> Worker:
        """Return the shared worker for programs of this rehearsal, whose heap checks itself if wanted and possible."""

    @abstractmethod
    def prepare(self, program: RemoteProgram) -> list[dict[str, Any]]:
        """Do to a parsed program what comes before compiling it for `target`; returns operators of quantization."""

    @abstractmethod
    def to_json(self, count: int) -> dict[str, Any]:
        """Return the first groups as a request to probe names them."""
