"""Running a bundle on arrays from a file: the verb ``run``."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnx_bridge import inputs
from onnx_bridge.conversion.bundle import load
from onnx_bridge.errors import InputError


@dataclass(frozen=True)
class RunResult:
    """What ``run`` did: the outputs' shapes and dtypes, where they were written, and how long it took."""

    path: Path
    outputs: dict[str, tuple[str, tuple[int, ...]]]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        outputs = {name: {"dtype": dtype, "shape": list(shape)} for name, (dtype, shape) in self.outputs.items()}
        return {"path": str(self.path), "outputs": outputs, "seconds": round(self.seconds, 6)}

    def render(self) -> str:
        """One line an output."""
        lines = [f"{name}: {dtype} {list(shape)}" for name, (dtype, shape) in self.outputs.items()]
        return "\n".join([*lines, f"written to {self.path} ({self.seconds:.3g} s)"])


def run_files(
    bundle: str | os.PathLike[str],
    sample: Path,
    out: Path,
    *,
    timeout: float | None = None,
    memory: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> RunResult:
    """Run a bundle on the arrays of one ``.npz`` file and write the outputs to another, by a rename once complete.

    Where the arrays hold several samples (`inputs.read`), so do the outputs, along a first axis.

    Raises:
        InputError: the bundle or the arrays are wrong, or the file cannot be written.
        RuntimeFailure: MIGraphX failed.
    """
    tell = progress or (lambda _stage: None)
    tell("load")
    loaded = load(bundle, timeout=timeout, memory=memory)
    samples = inputs.read(sample, loaded.specs)
    tell("run")
    started = time.perf_counter()
    found = [loaded(arrays) for arrays in samples]
    seconds = time.perf_counter() - started
    results = found[0]
    if len(found) > 1:
        results = {name: np.stack([each[name] for each in found]) for name in results}
    try:
        with tempfile.TemporaryDirectory(prefix=".writing-", dir=out.parent) as folder:
            written = Path(folder) / "outputs.npz"
            np.savez(written, allow_pickle=False, **results)
            written.replace(out)
    except OSError as error:
        raise InputError(f"the outputs cannot be written: {error.strerror}", where=str(out)) from error
    return RunResult(out, {name: (each.dtype.name, each.shape) for name, each in results.items()}, seconds)
