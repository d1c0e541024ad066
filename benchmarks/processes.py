"""Whole processes, measured: their duration, and the peak of anonymous memory (RssAnon) of each one that they start.

The system can reclaim the pages of a file mapping, so that these do not count. Python may write bytecode, whatever the
environment says: an installed package has it, too.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_ROLES = {"onnx_bridge.migraphx.server": "MIGraphX", "passes.isolation.server": "ONNX Runtime"}
"""Child processes of this project, by the module that they run."""


@dataclass(frozen=True)
class Usage:
    """What a command took.

    Attributes:
        seconds: its duration.
        peaks: the peak of anonymous memory in MB, by role: ``main`` is the command itself; processes of the same role
            count together.
        together: the peak of all together.
        error: the last line that it printed to standard error, if it failed; else None.
    """

    seconds: float
    peaks: Mapping[str, float]
    together: float
    error: str | None = None


def measure(command: Sequence[str], environment: Mapping[str, str] | None = None, limit: float = 600.0) -> Usage:
    """Run a command once.

    Args:
        command: its arguments.
        environment: variables beside those of this process.
        limit: seconds, after which it is killed.
    """
    os.sync()  # or this run would wait for the disk to take what another wrote
    peaks: defaultdict[str, int] = defaultdict(int)
    together = 0
    started = time.perf_counter()
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", **(environment or {})}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=variables)
    while process.poll() is None:
        found = _anonymous(process.pid, "main", b"")
        together = max(together, sum(found.values()))
        for role, size in found.items():
            peaks[role] = max(peaks[role], size)
        if time.perf_counter() - started > limit:
            process.kill()
            process.wait()
            return Usage(limit, {}, 0, f"over {limit:g} s")
        time.sleep(0.005)
    seconds = time.perf_counter() - started
    assert process.stderr is not None
    with process.stderr as stream:
        lines = stream.read().decode(errors="replace").strip().splitlines()
    error = (lines or [f"exit code {process.returncode}"])[-1][:100] if process.returncode else None
    return Usage(seconds, {role: size / 1e6 for role, size in peaks.items()}, together / 1e6, error)


def _anonymous(pid: int, role: str, parent: bytes) -> dict[str, int]:
    """RssAnon of a process and its children in bytes, by role; of a child that still is its parent's copy, nothing."""
    found: defaultdict[str, int] = defaultdict(int)
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if command == parent:
            return found
        role = next((each for module, each in _ROLES.items() if module.encode() in command), role)
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                found[role] += int(line.split()[1]) * 1024
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            for name, size in _anonymous(int(child), role, command).items():
                found[name] += size
    return found
