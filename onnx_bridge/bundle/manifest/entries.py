"""What a manifest says of tensors, files and partitions."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.digest import file_digest
from onnx_bridge.core.schema import Count, Size
from onnx_bridge.core.values import Kind
from passes.graphs.limits import MAX_ELEMENTS


@dataclass(frozen=True)
class TensorInfo:
    """An input or output.

    Attributes:
        name: the model's.
        dtype: the numpy or ml_dtypes name; ``string``, or ``unknown`` (on the host only).
        shape: sizes, None for one that depends on the data; None if the rank is unknown.
        kind: a `Kind`; of a sequence, dtype and shape are those of its arrays.
        classes: those whose scores the columns of an output are, in order; none for other values.
    """

    name: str
    dtype: str
    shape: tuple[Size | None, ...] | None
    kind: str = Kind.TENSOR.value
    classes: tuple[str | int, ...] = ()

    def __post_init__(self) -> None:
        Kind(self.kind)
        if self.dtype != "unknown":
            _ = self.numpy
        if math.prod(size or 1 for size in self.shape or ()) > MAX_ELEMENTS:
            raise ValueError(f"the shape {list(self.shape or ())} of {self.name} is too large")

    @classmethod
    def of(cls, value: ir.Value) -> TensorInfo:
        """The type that a model declares for a value; raises InputError where no machine holds it."""
        shape = None
        if value.shape is not None:
            shape = tuple(dim if isinstance(dim, int) else None for dim in value.shape)
        kind = Kind.of(value.type) or Kind.TENSOR
        if math.prod(size or 1 for size in shape or ()) > MAX_ELEMENTS:
            what = f"it has the shape {list(shape or ())}, more than fits into the memory of any machine"
            raise InputError(what, where=f"value {value.name!r}")
        return cls(str(value.name), _dtype_name(value.dtype), shape, kind.value)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The dtype; object for strings."""
        if self.dtype == "string":
            return np.dtype(object)
        return np.dtype(getattr(ml_dtypes, self.dtype)) if hasattr(ml_dtypes, self.dtype) else np.dtype(self.dtype)

    def to_json(self) -> dict[str, Any]:
        """As JSON values; ``kind`` only if it is not a tensor, ``classes`` only if there are any."""
        values = dataclasses.asdict(self)
        if self.kind == Kind.TENSOR.value:
            del values["kind"]
        if not self.classes:
            del values["classes"]
        return values


def _dtype_name(dtype: ir.DataType | None) -> str:
    if dtype is None or dtype == ir.DataType.UNDEFINED:
        return "unknown"
    return "string" if dtype == ir.DataType.STRING else dtype.numpy().name


@dataclass(frozen=True)
class FileInfo:
    """A file of the bundle.

    Attributes:
        file: its name beside the manifest; with the prefix ``../`` for a model whose weights buckets share.
        bytes: its size.
        sha256: its digest.
    """

    file: str
    bytes: Count
    sha256: str

    @classmethod
    def of(cls, path: Path) -> FileInfo:
        return cls(path.name, path.stat().st_size, file_digest(path))

    def problem(self, folder: Path, digest: Callable[[Path], str] = file_digest) -> str | None:
        """What is wrong with the file in a folder (the manifest's); None if it has the size and the digest."""
        path = folder / self.file
        try:
            size = path.stat().st_size
            if size != self.bytes:
                return f"it has {size:,} bytes instead of {self.bytes:,}"
            unchanged = digest(path) == self.sha256
        except FileNotFoundError:
            return "it is missing"
        except OSError as error:
            return f"it cannot be read: {error.strerror}"
        return None if unchanged else "its content was changed (SHA-256)"


@dataclass(frozen=True)
class HostNode:
    """A node that runs on the host, and why."""

    node: str
    operator: str
    reason: str


@dataclass(frozen=True)
class PartitionInfo:
    """A partition: a part of the model that runs as a whole on one side.

    Attributes:
        inputs: in the order of first use.
        outputs: in order.
        nodes: the number of nodes.
        work: their estimated multiply-adds.
        program: the ``.mxr``; None for a host partition, which is extracted from the cleaned ONNX when it is loaded.
        host: the nodes of a host partition that MIGraphX cannot run.
        unknown: the number of nodes whose work may be larger than estimated, since sizes are not known.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    nodes: Count
    work: Count
    program: FileInfo | None = None
    host: tuple[HostNode, ...] = ()
    unknown: Count = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "runs_on": "MIGraphX" if self.program else "ONNX Runtime",
            **dataclasses.asdict(self),
            **{name: [each.to_json() for each in getattr(self, name)] for name in ("inputs", "outputs")},
        }


@dataclass(frozen=True)
class CalibrationInfo:
    """What an int8 or fp8 program was calibrated on.

    Attributes:
        data: the source of the samples, in words.
        samples: their number.
        file: the samples themselves, kept for programs that have to be quantized again when they are loaded.
    """

    data: str
    samples: Count
    file: FileInfo | None = None


@dataclass(frozen=True)
class CleaningInfo:
    """How the cleaned model was made, for a later conversion to reuse it: its content key, and the notes on it."""

    key: str
    notes: list[str]


def is_file_name(name: str) -> bool:
    """Whether a text of a manifest names a file in a folder, and nothing else."""
    try:
        length = len(os.fsencode(name))  # names of files need not be text
    except UnicodeEncodeError:
        return False
    return 0 < length <= 255 and name != ".." and "\0" not in name and Path(name).name == name
