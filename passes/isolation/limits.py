"""Limits of time and memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from passes.core.errors import InputError

_SHARE = 0.8
"""The share of the free memory that a child process may take if no limit is given."""
MAX_SECONDS = 1e9
"""The longest limit of time: systems wait for a number of nanoseconds of 64 bits."""
MAX_GIBIBYTES = 2.0**30


@dataclass(frozen=True)
class Limits:
    """The limits of one request; None is no limit.

    Attributes:
        timeout: seconds.
        memory: bytes of anonymous memory of the whole process.
        growth: bytes of it on top of those that the process has when the request comes.
    """

    timeout: float | None = None
    memory: int | None = None
    growth: int | None = None

    def memory_of(self, held: int) -> int | None:
        """Return the limit in bytes for a process that has some already; None is no limit."""
        grown = None if self.growth is None else held + self.growth
        return min((size for size in (self.memory, grown) if size is not None), default=None)

    def growing_at_most(self, growth: int) -> Limits:
        """Return these limits with a growth of at most so many bytes."""
        return replace(self, growth=growth if self.growth is None else min(growth, self.growth))

    @classmethod
    def of(cls, timeout: float | None, gibibytes: float | None) -> Limits:
        """Return limits from the units of the API, seconds and GiB; raise InputError for numbers out of range."""
        for name, value, most in (("timeout", timeout, MAX_SECONDS), ("memory", gibibytes, MAX_GIBIBYTES)):
            if value is not None and not 0 < value <= most:
                what = f"the limit must be a number above 0 and up to {most:g}, and is {value}"
                raise InputError(what, where=name, hint="leave it out for no limit")
        return cls(timeout, None if gibibytes is None else int(gibibytes * 2**30))


_ALLOWED, _LEAST = 90.0, 10.0
"""The seconds that the nodes of a model may use up beyond their limits before each later request has the least.

A node that never ends, like an endless Loop, is met by several steps of a verb, each with a limit of its own."""
_current: ContextVar[Limits] = ContextVar("limits", default=Limits())
_lost: ContextVar[list[float] | None] = ContextVar("lost", default=None)
"""The seconds of each request that exceeded its limit, of the outermost block of `limited`."""


@contextlib.contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """Set the limits of `current` within the block: those that the user gave to a verb, before those around it."""
    given = {name: value for name, value in asdict(limits).items() if value is not None}
    token, lost = _current.set(replace(_current.get(), **given)), _lost.get()
    _lost.set([] if lost is None else lost)
    try:
        yield
    finally:
        _current.reset(token)
        _lost.set(lost)


def lose(seconds: float) -> None:
    """Shorten the default limits of later requests of the verb that runs: a request has exceeded its own."""
    if (lost := _lost.get()) is not None:
        lost.append(seconds)


def current(timeout: float) -> Limits:
    """Return the limits of a request of the verb that runs.

    Args:
        timeout: seconds, if the user gave no limit, and less if nodes have used up theirs; the limit of memory is then
            80 % of what is free.
    """
    given = _current.get()
    if lost := _lost.get():
        timeout = min(timeout, max(_LEAST, _ALLOWED - sum(lost)))
    seconds = timeout if given.timeout is None else given.timeout
    if given.memory is not None or given.growth is not None:
        return Limits(seconds, given.memory, given.growth)
    return Limits(seconds, growth=int(available_bytes() * _SHARE))


def at_most(timeout: float, growth: int) -> Limits:
    """Return the limits of a small request, which the user's only make tighter."""
    limits = current(timeout).growing_at_most(growth)
    assert limits.timeout is not None
    return replace(limits, timeout=min(limits.timeout, timeout))


_CONTROL = Path("/sys/fs/cgroup")
_CONTROL_GROUPS = (
    ("", "memory.max", "memory.current", ("active_file", "inactive_file")),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
)
"""Of version 2 and version 1: the folder, its files with the limit and what is used, and what of this is given back as
soon as it is needed: copies of files, by their names in ``memory.stat``."""


def available_bytes() -> int:
    """Free memory in bytes: the least of what the machine and this process's control group allow."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    for folder, limit, used, cached in _CONTROL_GROUPS:
        with contextlib.suppress(OSError, KeyError, ValueError):
            group = _CONTROL / folder
            most, taken = (int((group / name).read_text()) for name in (limit, used))
            counts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            sizes.append(most - taken + sum(int(counts[name]) for name in cached))
    return max(0, min(sizes))
