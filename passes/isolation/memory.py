"""The memory that is free."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

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
