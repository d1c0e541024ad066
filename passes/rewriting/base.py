"""The base classes of passes, and the records of what a pass did and did not do.

A pass is a frozen dataclass whose fields are its options. A class without options inherits all that it needs and is
not decorated: to make the dataclasses of all passes would take a tenth of the time of cleaning a small model.
`Pass.run` does whole-graph work; a `NodeRewrite` looks at one node at a time; its driver (`passes.rewriting.rewrite`)
walks the graph, keeps the records and commits.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import onnx_ir as ir

from passes.shapes.settled import Settled


class Exactness(enum.Enum):
    """The extent to which a pass may change the numbers that a model computes."""

    BITWISE = "bitwise"
    """Results are the same bit for bit."""
    ROUNDING = "rounding"
    """The same function of real numbers, rounded differently."""
    QUANTIZATION_STEP = "quantization-step"
    """Results may differ by one quantization step."""


@dataclass(frozen=True)
class Skip:
    """A reason why a pass did not apply at a node that it considered; ``passes explain`` prints it."""

    reason: str
    node: str = ""
    is_defect: bool = False
    """True if the rewrite failed on a node that is valid."""
    opset: int = 0
    """The least opset of the standard operators with which the rewrite applies; 0 if another reason is known."""


class NotApplicable(Exception):
    """Raised by what a rule asks, if its node cannot be rewritten; the driver reports the message as a `Skip`."""

    since = 0


class OpsetTooOld(NotApplicable):
    """Raised if a node cannot be rewritten in the model's opset.

    Attributes:
        since: the least opset with which it can.
    """

    def __init__(self, what: str, since: int, opset: int) -> None:
        super().__init__(f"{what} needs opset {since}, and the model has {opset}: convert-opset comes first")
        self.since = since


@dataclass(frozen=True)
class Rewrite:
    """One committed application of a pass.

    Attributes:
        before: the names of the nodes that were removed or changed.
        after: the names of the new ones.
        note: what else to say of it.
        rules: the rules of legalization that contributed, outermost first.
    """

    before: tuple[str, ...]
    after: tuple[str, ...] = ()
    note: str = ""
    rules: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The nodes before and after it, and its note."""
        if not self.before and not self.after:
            return self.note
        before, after = (", ".join(names) or "(nothing)" for names in (self.before, self.after))
        return f"{before} → {after}" + (f" ({self.note})" if self.note else "")


@dataclass
class Result:
    """The result of a pass. ``model`` is the one that was given, unless the pass makes another."""

    model: ir.Model
    rewrites: list[Rewrite] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)

    @property
    def modified(self) -> bool:
        """Return whether the pass changed the model."""
        return bool(self.rewrites)


class Status(enum.Enum):
    """The kind of a verdict."""

    OK = "ok"
    REJECTED = "rejected"
    CRASHES = "crashes"
    HANGS = "hangs"
    WRONG = "wrong"
    COSTLY = "costly"


class Proof(enum.Enum):
    """The proof of a verdict's numbers."""

    RUN = "real size"
    """Compared with the reference in a run at real size."""
    WITNESS = "witness"
    """Compared with the reference in a run of a smaller instance."""
    NONE = "none"
    """Not compared."""


class Obstacle(enum.Enum):
    """The kinds of reasons for which numbers are not compared at real size."""

    SIZE = "too large to run"
    DTYPE = "inputs of its dtype cannot be fed"
    ORDER = "the order of its results is undefined"
    CONDITION = "its results move as far when its inputs move by one unit in the last place"
    REFERENCE = "there is no reference for it"
    SHAPE = "a shape is not known"
    UNUSED = "nothing uses its results"


@dataclass(frozen=True)
class Unproven:
    """A reason not to compare numbers at real size; ``detail`` says more, for example why there is no witness."""

    obstacle: Obstacle
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.obstacle.value}: {self.detail}" if self.detail else self.obstacle.value


@dataclass(frozen=True)
class Verdict:
    """A runtime's verdict on one probe.

    Attributes:
        message: the runtime's message, cleaned; for a crash the signal and the last output; for wrong numbers how they
            differ.
        error: the largest absolute difference from the reference, if the probe was run and has one.
        unproven: why numbers were not compared at real size; None if they were, or if the probe has no numbers.
        group: the first group of GPU passes after which a rehearsed probe fails; empty for the runtime's answer.
        by: the judge, if that is not the runtime itself, in words.
    """

    status: Status
    message: str = ""
    error: float | None = None
    proof: Proof = Proof.NONE
    unproven: Unproven | None = None
    group: str = ""
    by: str = ""


class Target(Protocol):
    """The runtime that the model is meant for, as passes see it.

    If it ``rehearses``, its verdicts hold nodes to the fusions of another target as well.
    """

    name: str
    rehearses: bool

    def verdicts(self, probes: Sequence[Any]) -> list[Verdict]:
        """Return the verdict on each `passes.probing.probe.Probe` without a ``problem``, in order, in one call."""


class Budget:
    """The number of rewrites that may still be committed (``--max-rewrites``); unlimited by default."""

    def __init__(self, limit: int | None = None) -> None:
        self.left = limit

    def take(self) -> bool:
        """Take one from the budget; False if none is left."""
        if self.left is None:
            return True
        if self.left <= 0:
            return False
        self.left -= 1
        return True


@dataclass
class Context(Settled):
    """The surroundings that a pass is given besides the model.

    Attributes:
        target: the runtime that the model is meant for; None if none is available.
        budget: every pass takes from it before it commits a rewrite.
        progress: is notified of the steps of long work.
    """

    target: Target | None = None
    budget: Budget = field(default_factory=Budget)
    progress: Callable[[str], None] | None = None


@dataclass(frozen=True)
class Pass(ABC):
    """One graph rewrite; the fields of a subclass are its options.

    Attributes:
        name: a verb and its objects, in kebab case.
        exactness: how much it may change numbers.
        idempotent: whether a second run finds nothing; a pipeline skips a repeated run on an unchanged model.
        declares: whether it gives values types or shapes by itself, which are checked then, and not only those that
            inference finds, or that values with the same contents have.
    """

    name: ClassVar[str]
    exactness: ClassVar[Exactness] = Exactness.BITWISE
    idempotent: ClassVar[bool] = False
    declares: ClassVar[bool] = True

    @abstractmethod
    def run(self, model: ir.Model, context: Context) -> Result:
        """Rewrite ``model`` in place. Before each rewrite, ``context.budget.take()`` must return True."""
