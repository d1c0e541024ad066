"""How much memory there is to take."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def available() -> int:
    """Bytes that are free, for this machine and for the control group that this process is in."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    for limit, used in _groups():
        with contextlib.suppress(OSError, ValueError):
            found.append(int(limit.read_text()) - int(used.read_text()))
    return max(0, min(found))


def _groups() -> Iterator[tuple[Path, Path]]:
    root = Path("/sys/fs/cgroup")
    yield root / "memory.max", root / "memory.current"
    yield root / "memory/memory.limit_in_bytes", root / "memory/memory.usage_in_bytes"
