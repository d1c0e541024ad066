"""A dataset: samples that are read one at a time, with their labels.

The formats are those of `onnx_bridge.samples.files`. Arrays that are a multiple of the model's batch are read in
batches. Labels are a member ``label`` of an ``.npz``; a script yields ``(sample, label)``; images have those of their
folders (`onnx_bridge.samples.images`). They are integers: one for each row of the batch, or for each pixel of a mask.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array
from onnx_bridge.samples import files
from onnx_bridge.samples.inputs import Sample, TensorSpec

DataSource = str | os.PathLike[str] | Iterable[Any] | Callable[[], Iterable[Any]]
"""A path to read samples from; or samples, or a function that returns them, each alone or with its label."""


@dataclass(frozen=True)
class Dataset:
    """Samples of a model.

    Attributes:
        source: the origin of the samples.
        limit: the most that are read; None is all.
        most_rows: the largest batch if the model takes smaller ones as well; None if it takes its own alone.
    """

    source: DataSource
    specs: Sequence[TensorSpec]
    limit: int | None = None
    most_rows: int | None = None

    @property
    def count(self) -> int | None:
        """The number of samples, if it is known without reading them; for a folder, the number of files."""
        count = None
        if isinstance(self.source, (str, os.PathLike)):
            path = Path(self.source)
            count = sum(1 for file in path.iterdir() if not file.name.startswith(".")) if path.is_dir() else None
        elif isinstance(self.source, Sequence):
            count = len(self.source)
        return self.limit if count is None else min(count, self.limit or count)

    def __iter__(self) -> Iterator[tuple[Sample, Array | None]]:
        """Yield each sample with its labels; raises InputError without any, or if they are broken, or do not fit."""
        empty = True
        for origin, sample, label in islice(self._batches(), self.limit):
            empty = False
            yield files.validated(sample, self.specs, origin), label
        if empty:
            raise InputError("there are no samples", where=self._where)

    def _batches(self) -> Iterator[tuple[str, Any, Array | None]]:
        """Yield samples of the model's batch, with their origin and labels."""
        for origin, item in self._unvalidated():
            sample, given = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
            sample, own = files.unlabelled(sample, self.specs)
            label = _labels(given if own is None else own, origin)
            rows = files.rows(sample, self.specs)
            apart = label is not None and label.ndim > 0 and len(label) == rows
            for where, part, piece in files.in_batches(origin, sample, self.specs, self.most_rows):
                yield where, part, label[piece] if apart and label is not None else label

    @property
    def _where(self) -> str:
        return str(self.source) if isinstance(self.source, (str, os.PathLike)) else "the dataset"

    def _unvalidated(self) -> Iterable[tuple[str, Any]]:
        if not isinstance(self.source, (str, os.PathLike)):
            return files.from_function(self.source if callable(self.source) else lambda: self.source, self._where)
        return files.unvalidated(Path(self.source), self.specs)


def _labels(label: Any, origin: str) -> Array | None:
    if label is None:
        return None
    array = np.asarray(label)
    if array.dtype.kind not in "iu":
        what = f"the labels are {array.dtype.name}, and they are numbers of classes"
        raise InputError(what, where=origin, hint="give integers, one a row")
    return array
