"""What became of a batch, for people and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from onnx_bridge.core.locations import Location

if TYPE_CHECKING:
    from rich.console import RenderableType

Status = Literal["converted", "reused", "kept", "checked", "failed", "told", "planned"]
"""``reused``: there was a bundle of the same content under another name. ``kept``: it was done before. ``checked``: it
was, and only compared anew. ``told``: it failed before in the same way, and was not tried again. ``planned``: what a
dry run says instead of converting."""


@dataclass(frozen=True)
class Result:
    """What became of one job.

    Attributes:
        name: of the bundle, under OUT.
        source: the model.
        status: see `Status`.
        seconds: that it took, in this run.
        error: why it failed, with its ``kind``, ``what``, ``where``, ``hint``, ``stage``.
        log: the file with all that was printed.
        notes: what the user should know of the bundle.
        check: the comparison with the reference in a sentence.
    """

    name: str
    source: Location
    status: Status
    seconds: float = 0.0
    error: dict[str, Any] | None = None
    log: Location | None = None
    notes: tuple[str, ...] = ()
    check: str | None = None

    @property
    def failed(self) -> bool:
        """Whether there is no good bundle."""
        return self.error is not None

    @property
    def reason(self) -> str:
        """Why it failed, in a sentence."""
        if self.error is None:
            return ""
        where = self.error["where"]
        known = {str(self.source), self.source.name, None, ""}
        text = self.error["what"] if where in known else f"{where}: {self.error['what']}"
        return f"{text} ({self.error['hint']})" if self.error["hint"] else str(text)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "name": self.name,
            "source": str(self.source),
            "status": self.status,
            "seconds": round(self.seconds, 4),
            "error": self.error,
            "log": str(self.log) if self.log else None,
            "notes": list(self.notes),
            "check": self.check,
        }


@dataclass(frozen=True)
class Outcome:
    """What became of a batch.

    Attributes:
        out: the folder of the bundles.
        results: one a job, in the order of the sources.
        seconds: all of it.
        notes: what the user should know of the whole.
    """

    out: Location
    results: tuple[Result, ...]
    seconds: float
    notes: tuple[str, ...] = field(default=())

    @property
    def passed(self) -> bool:
        """Whether every job has a good bundle."""
        return not any(each.failed for each in self.results)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "out": str(self.out),
            "passed": self.passed,
            "counts": dict(Counter(each.status for each in self.results)),
            "seconds": round(self.seconds, 4),
            "jobs": [each.to_json() for each in self.results],
            "notes": list(self.notes),
        }

    def render(self, *, verbose: bool = False) -> RenderableType:
        """The failures as a table, with reason and log, and a sentence.

        Args:
            verbose: every job, not the failures alone.
        """
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        parts: list[RenderableType] = []
        listed = [each for each in self.results if verbose or each.failed or each.status == "planned"]
        if listed:
            table = Table("job", "what", "why", "log", box=None, pad_edge=False, padding=(0, 2, 0, 0))
            for each in listed:
                stage = f" in {each.error['stage']}" if each.error else ""
                why = each.reason or each.check or "; ".join(each.notes)
                table.add_row(*map(Text, (each.name, f"{each.status}{stage}", why, str(each.log or "–"))))
            parts.append(table)
        counts = Counter(each.status for each in self.results)
        counted = ", ".join(f"{count} {status}" for status, count in counts.items())
        if counts["told"]:
            counted += " (failed before in the same way, and not tried again: --retry does)"
        parts += [Text(f"note: {note}") for note in self.notes]
        many = f"{len(self.results)} job{'s' * (len(self.results) != 1)}"
        parts.append(Text(f"{many} in {self.seconds:.3g} s: {counted}; bundles in {self.out}"))
        return Group(*parts)
