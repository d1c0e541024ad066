"""What a pass is: the base classes, and the words for what it did and did not do.

A pass is a frozen dataclass whose fields are its options. `Pass.run` does whole-graph work; a `NodeRewrite` looks at
one node at a time and leaves the walking, the bookkeeping and the committing to its driver
(``passes/core/rewrite.py``).
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import onnx_ir as ir


class Exactness(enum.Enum):
    """How far numbers may move under a pass."""

    BITWISE = "bitwise"
    """Not a bit changes."""
    ROUNDING = "rounding"
    """The same real-number function, computed in another order."""
    QUANTIZATION_STEP = "quantization-step"
    """Results may move by one step of a quantization grid."""


@dataclass(frozen=True)
class Skip:
    """Why a pass left something alone: what ``passes explain`` prints."""

    reason: str
    node: str = ""


@dataclass(frozen=True)
class Rewrite:
    """One committed application of a pass: the nodes that went (or were changed), and those that came."""

    before: tuple[str, ...]
    after: tuple[str, ...] = ()
    note: str = ""


@dataclass
class Result:
    """What a pass did. ``model`` is the one it was given unless a pass had to make another."""

    model: ir.Model
    rewrites: list[Rewrite] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)

    @property
    def modified(self) -> bool:
        """Whether the model is another than before."""
        return bool(self.rewrites)


class Status(enum.Enum):
    """What a runtime makes of a probe."""

    OK = "ok"
    REJECTED = "rejected"
    CRASHES = "crashes"
    HANGS = "hangs"
    WRONG = "wrong"


@dataclass(frozen=True)
class Verdict:
    """What a runtime really says of one probe.

    Attributes:
        status: its kind.
        message: the runtime's own words, cleaned; for a crash the signal and the last output; for wrong numbers how
            they differ.
        error: largest absolute difference from the reference where the probe was run and such a number exists.
    """

    status: Status
    message: str = ""
    error: float | None = None


class Target(Protocol):
    """What passes may ask of the runtime that the model is meant for."""

    name: str

    def verdicts(self, probes: Sequence[Any], *, run: bool = True) -> list[Verdict]:
        """The verdict on each probe, in their order, in one call.

        Args:
            probes: each a `passes.target.probe.Probe` without a ``problem``.
            run: also compile them and, where that is cheap, compare what they compute with the reference.
        """


class Budget:
    """How many more rewrites may be committed (``--max-rewrites``); unlimited by default."""

    def __init__(self, limit: int | None = None) -> None:
        self.left = limit

    def take(self) -> bool:
        """Take one; False when none is left."""
        if self.left is None:
            return True
        if self.left <= 0:
            return False
        self.left -= 1
        return True


@dataclass
class Context:
    """What a pass may know besides the model.

    Attributes:
        target: the runtime that the model is meant for; None where there is none at hand.
        budget: asked before each rewrite is committed, by every pass.
        progress: told what is being done, for long work.
    """

    target: Target | None = None
    budget: Budget = field(default_factory=Budget)
    progress: Callable[[str], None] | None = None


@dataclass(frozen=True)
class Pass(ABC):
    """One graph rewrite; the fields of a subclass are its options.

    Attributes:
        name: kebab-case verb and objects.
        exactness: how far numbers may move.
        settles: whether one run leaves nothing for another; a pipeline leaves out what could find nothing new.
    """

    name: ClassVar[str]
    exactness: ClassVar[Exactness] = Exactness.BITWISE
    settles: ClassVar[bool] = False

    @abstractmethod
    def run(self, model: ir.Model, context: Context) -> Result:
        """Rewrite ``model`` in place and say what was done.

        Each rewrite is asked for with ``context.budget.take()`` before it touches the model.
        """
