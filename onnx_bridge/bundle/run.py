"""Running a bundle on arrays from a file, or on generated ones: the verb ``run``."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnx_bridge.bundle.bundle import load
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.atomic_write import atomic_file
from onnx_bridge.core.progress import Progress, silent
from onnx_bridge.core.values import Array, dtype_name, flat
from onnx_bridge.samples import files
from passes.isolation.numpy_files import write_npz


@dataclass(frozen=True)
class RunResult:
    """The result of `run_files`.

    Attributes:
        path: the file that the outputs were written to; None if they were not.
        outputs: the arrays.
        seconds: the duration, without loading the bundle.
        partitions: the partitions, and MIGraphX's share of the work; empty for a model wholly on MIGraphX.
        notes: sentences for the user.
    """

    path: Path | None
    outputs: dict[str, Array]
    seconds: float
    partitions: str = ""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        outputs = {
            name: {"dtype": dtype_name(array.dtype), "shape": list(array.shape)} for name, array in self.outputs.items()
        }
        path = None if self.path is None else str(self.path)
        values = {"path": path, "outputs": outputs, "seconds": round(self.seconds, 6), "notes": list(self.notes)}
        return {**values, "partitions": self.partitions} if self.partitions else values


def run_files(
    bundle: str | os.PathLike[str],
    sample: Path | None,
    out: Path | None,
    *,
    timeout: float | None = None,
    memory: float | None = None,
    progress: Progress | None = None,
) -> RunResult:
    """Run a bundle on the arrays of a file, by default on seeded ones, and write the outputs to an ``.npz``.

    If the arrays hold several samples (`onnx_bridge.samples.files.load`), so do the outputs, along a first axis. The
    arrays of a sequence ``s`` are ``s[0]``, ``s[1]``, …; an optional without a value is left out.

    Raises:
        InputError: the bundle or the arrays are wrong, an output has another shape in each sample, or the file cannot
            be written.
        RuntimeFailure: MIGraphX failed.
    """
    tell = progress or silent
    tell("load")
    loaded = load(bundle, timeout=timeout, memory=memory)
    samples = files.load(sample, loaded.specs) if sample is not None else [loaded.sample()]
    tell("run")
    started = time.perf_counter()
    runs = [flat(loaded(arrays)) for arrays in samples]
    seconds = time.perf_counter() - started
    results = runs[0] if len(runs) == 1 else _stacked(runs)
    if out is not None:
        with atomic_file(out) as temporary, temporary.open("wb") as file:
            write_npz(file, results)
    notes = () if sample is not None else ("run on generated inputs (seed 0)",)
    return RunResult(out, results, seconds, loaded.manifest.partition_line, notes)


def _stacked(samples: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the outputs of several samples, along a first axis."""
    for name in dict.fromkeys(name for sample in samples for name in sample):
        shapes = {sample[name].shape if name in sample else None for sample in samples}
        if len(shapes) > 1:
            what = "the shape differs from sample to sample, so that the outputs cannot be stacked"
            raise InputError(what, where=f"output {name!r}", hint="run the samples one by one")
    return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}
