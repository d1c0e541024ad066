"""The user's cache folder, and the verb ``cache``.

    runtimes/     private installations of MIGraphX          batches/    journals of batches whose output is elsewhere
    verdicts/     verdicts of each runtime                   torch/      programs of lowered PyTorch modules
    bundles/      packed bundles, unpacked                   rehearsal/  libraries with the passes of the gpu target
    digests/      of files of bundles                        quark-*     where AMD Quark's compiled operators are
    runs/         outputs of the reference and of bundles    kernels/    what MIGraphX compiled for a GPU
    placements/   searches for what ONNX Runtime's provider gets wrong in a model
    gpu-stub/, emulation/, provider/   libraries that stand in for a GPU, and watch the provider

`clear` removes what is made again when it is needed; installations and journals stay. `keep_recent` limits folders that
grow with every model.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import platformdirs

from onnx_bridge.core.schema import JsonRecord

_CACHED = ("verdicts", "placements", "runs", "torch", "bundles", "digests", "quark-*")
_MOST_BYTES = 256 << 20
BuiltKind = Literal["rehearsal", "gpu-stub", "kernels", "provider", "emulation"]
BUILT: tuple[BuiltKind, ...] = get_args(BuiltKind)
"""The folders of what is compiled, which takes long."""


def cache_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of everything that ONNX Bridge keeps: ``ONNX_BRIDGE_CACHE``, else the user's cache folder."""
    chosen = environment.get("ONNX_BRIDGE_CACHE")
    return Path(chosen or platformdirs.user_cache_dir("onnx-bridge")).expanduser().absolute()


def keep_recent(files: Iterable[Path], most_bytes: int = _MOST_BYTES, *, at_least: int = 0) -> None:
    """Remove the files that were used least recently, until the others have no more bytes than a limit.

    A file counts as ``at_least`` bytes. The time of its last use is that of its modification, which its users renew.
    """
    states = []
    for path in files:
        with contextlib.suppress(OSError):  # another process removed it
            state = path.stat()
            states.append((state.st_mtime_ns, max(state.st_blocks * 512, at_least), path))
    total = sum(size for _, size, _ in states)
    for _, size, path in sorted(states):
        if total <= most_bytes:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size


@dataclass(frozen=True)
class CacheFolder(JsonRecord):
    """The folder of the cache."""

    folder: Path


@dataclass(frozen=True)
class Cleared(JsonRecord):
    """The entries that `clear` removed, or would remove (``dry_run``), with their bytes on the disk."""

    in_json = ("bytes",)

    folder: Path
    sizes: Mapping[str, int]
    dry_run: bool

    @property
    def bytes(self) -> int:
        """The sum of the sizes."""
        return sum(self.sizes.values())


def clear(*, dry_run: bool = False) -> Cleared:
    """Remove what is cached; processes that use it make it again.

    Args:
        dry_run: only measure it.

    Raises:
        OSError: something cannot be removed.
    """
    folder = cache_dir()
    cached = sorted(path for name in (*_CACHED, *BUILT) for path in folder.glob(name))
    sizes = {path.name: _bytes(path) for path in cached}
    if cached and not dry_run:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".cleared-") as aside:
            for path in cached:
                path.rename(Path(aside) / path.name)  # at once: no process finds half of it
    return Cleared(folder, sizes, dry_run)


def _bytes(path: Path) -> int:
    """Return the bytes on the disk; a file with several names counts once."""
    states = (inner.lstat() for inner in (path, *path.rglob("*")) if not inner.is_dir())
    return sum({(state.st_dev, state.st_ino): state.st_blocks * 512 for state in states}.values())
