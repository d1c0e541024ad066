"""Running the system's tools (apt, dpkg, tar), and reading their error messages."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from onnx_bridge.core.errors import RuntimeFailure, RuntimeNotFound

_INSTEAD = (
    "install it; or install from a folder of .deb files with --from, which needs dpkg and tar but not apt; "
    "or install AMD's official ROCm packages"
)
_FULL = re.compile(r"no space left on device|disk quota exceeded|not enough free space", re.IGNORECASE)


def tool(name: str) -> str:
    """Return the path of a program; raises RuntimeNotFound if it is not on the PATH."""
    path = shutil.which(name)
    if path is None:
        raise RuntimeNotFound(f"this machine has no {name}", hint=_INSTEAD)
    return path


def environment() -> dict[str, str]:
    """Return this process's environment, with English messages of every tool."""
    return {**os.environ, "LC_ALL": "C.UTF-8", "LANGUAGE": "C"}


def run(command: Sequence[str | Path], folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a tool in a folder and wait for it; the caller checks its status.

    Raises OSError if it could not be started, or the disk was full (ENOSPC).
    """
    done = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=environment(),
        cwd=folder,
        check=False,
    )
    raise_if_full(done.stderr)
    return done


def raise_if_full(output: str) -> None:
    """Raise OSError (ENOSPC) if a tool has printed that no space is left."""
    if _FULL.search(output):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def last_error(output: str) -> str:
    """Return the last error message of a tool, without its prefix and without passwords in addresses."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    complaints = [line for line in lines if re.match(r"[EW]: |\S*(error|tar|dpkg\S*): ", line)] or lines
    # apt's last warning only says that something failed; the one before says why
    telling = [line for line in complaints if "Some index files failed" not in line] or complaints
    text = telling[-1] if telling else "it printed no message"
    return re.sub(r"//[^/@\s]+@", "//", re.sub(r"^[EW]: ", "", text))


def space_needed(folder: Path, size: int) -> None:
    """Check that there are ``size`` bytes free for ``folder``; raises RuntimeFailure if there are not."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise RuntimeFailure(
            f"the disk has {free / 1e6:,.0f} MB free, and up to {size / 1e6:,.0f} MB are needed",
            where=str(folder),
            hint="free some space, or choose another disk with the environment variable ONNX_BRIDGE_CACHE",
        )
