"""How much memory is free."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def available_bytes() -> int:
    """Free memory in bytes: the least of what the machine and this process's control group allow."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    for limit, used in _control_groups():
        with contextlib.suppress(OSError, ValueError):
            found.append(int(limit.read_text()) - int(used.read_text()))
    return max(0, min(found))


def _control_groups() -> Iterator[tuple[Path, Path]]:
    """The files with limit and use, of version 2 and version 1."""
    root = Path("/sys/fs/cgroup")
    yield root / "memory.max", root / "memory.current"
    yield root / "memory/memory.limit_in_bytes", root / "memory/memory.usage_in_bytes"
