"""The entries of a manifest: tensors, files, partitions and programs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnx_bridge.bundle.manifest.axes import label, size_of
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.digest import file_digest
from onnx_bridge.core.schema import Count, JsonRecord, Size
from onnx_bridge.core.values import Kind, Value, dtype_name
from passes.graphs.limits import MAX_ELEMENTS


@dataclass(frozen=True)
class TensorInfo(JsonRecord):
    """An input or output.

    Attributes:
        name: its name in the model.
        dtype: the numpy or ml_dtypes name; ``string``, or ``unknown`` (on the host only).
        shape: sizes; symbols, or expressions of symbols, for sizes that differ between programs; None for a size that
            depends on the data. None if the rank is unknown.
        kind: a `Kind`; a sequence has the dtype and the shape of its arrays.
        classes: the classes whose scores the columns of an output are, in order; empty for other values.
        bounds: the least and the largest integer that an input may have, if it has indices or lengths, or of each
            element along its last axis; of sizes that differ between programs, those that what is real allows if it is
            padded: no indices from the end. None is a largest integer that is not known.
    """

    name: str
    dtype: str
    shape: tuple[Size | str | None, ...] | None
    kind: str = Kind.TENSOR.value
    classes: tuple[str | int, ...] = ()
    bounds: tuple[tuple[int, int | str | None], ...] = ()

    def __post_init__(self) -> None:
        Kind(self.kind)
        if self.dtype != "unknown":
            _ = self.numpy
        if math.prod(size or 1 for size in self.sizes or ()) > MAX_ELEMENTS:
            raise ValueError(f"the shape {list(self.shape or ())} of {self.name} is too large")

    @classmethod
    def of(cls, value: ir.Value) -> TensorInfo:
        """Return the type that a model declares for a value; raises InputError if no machine could hold it."""
        shape = None
        if value.shape is not None:
            shape = tuple(dim if isinstance(dim, int) else None for dim in value.shape)
        kind = Kind.of(value.type) or Kind.TENSOR
        if math.prod(size or 1 for size in shape or ()) > MAX_ELEMENTS:
            what = f"the shape {list(shape or ())} is more than fits into the memory of any machine"
            raise InputError(what, where=f"value {value.name!r}")
        dtype = dtype_name(value.dtype.numpy()) if value.dtype else "unknown"  # an undefined one is 0
        return cls(str(value.name), dtype, shape, kind.value)

    def to_json(self) -> dict[str, Any]:
        """Return its members, without the ``kind``, ``classes`` and ``bounds`` of a usual tensor."""
        usual: dict[str, Any] = {"kind": Kind.TENSOR.value, "classes": [], "bounds": []}
        return {name: value for name, value in super().to_json().items() if value != usual.get(name, ...)}

    def check(self, value: Value, dims: Mapping[str, int], padded: Mapping[str, int] | None = None) -> None:
        """Raise InputError if an index or a length is out of bounds for some sizes: MIGraphX may crash on it.

        Args:
            value: the input.
            dims: the sizes.
            padded: larger sizes that it is padded to; bounds that these do not move are left to the program.
        """
        for index, (low, end) in enumerate(self.bounds):
            high = size_of(end, dims)
            part = value[..., index : index + 1] if isinstance(value, np.ndarray) and len(self.bounds) > 1 else value
            moved = padded is not None and (high is None or size_of(end, padded) != high)
            if not isinstance(part, np.ndarray) or not part.size or (high is None if padded is None else not moved):
                continue
            for extreme in (int(part.min()), int(part.max())):
                if not low <= extreme <= (extreme if high is None else high):
                    known = f"{low} or more" if high is None else f"{max(low, 0)} to {high}"
                    known += f" (or, from the end, {low} to -1)" if low < 0 else ""
                    what = f"{extreme} is out of bounds: as indices or lengths, the model takes {known}"
                    raise InputError(what, where=f"input {self.name!r}")

    @property
    def sizes(self) -> tuple[int | None, ...] | None:
        """The shape, with None for symbols."""
        return self.sizes_for({})

    def sizes_for(self, dims: Mapping[str, int]) -> tuple[int | None, ...] | None:
        """Return the shape for some sizes of the symbols; None for what they do not determine."""
        return None if self.shape is None else tuple(size_of(axis, dims) for axis in self.shape)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The dtype; object for strings."""
        if self.dtype == "string":
            return np.dtype(object)
        return np.dtype(getattr(ml_dtypes, self.dtype)) if hasattr(ml_dtypes, self.dtype) else np.dtype(self.dtype)


@dataclass(frozen=True)
class FileInfo:
    """A file of the bundle.

    Attributes:
        file: its path from the manifest: a name, behind the folder of a program, or behind ``../`` for a model whose
            weights several programs share.
        bytes: its size.
        sha256: its digest.
    """

    file: str
    bytes: Count
    sha256: str

    @classmethod
    def of(cls, path: Path) -> FileInfo:
        return cls(path.name, path.stat().st_size, file_digest(path))

    def below(self, folder: str) -> FileInfo:
        """Return the same file, as the manifest beside ``folder`` names it."""
        return replace(self, file=os.path.normpath(f"{folder}/{self.file}"))

    def problem(self, folder: Path, digest: Callable[[Path], str] = file_digest) -> str | None:
        """Return what is wrong with the file in a folder (the manifest's); None if size and digest match."""
        path = folder / self.file
        try:
            return self.change(path.stat().st_size, lambda: digest(path))
        except FileNotFoundError:
            return "it is missing"
        except OSError as error:
            return f"it cannot be read: {error.strerror}"

    def change(self, size: int, digest: Callable[[], str]) -> str | None:
        """Return how a file of some size and digest, which is computed only if the size is right, was changed."""
        if size != self.bytes:
            return f"it has {size:,} bytes instead of {self.bytes:,}"
        return None if digest() == self.sha256 else "its content was changed (SHA-256)"


@dataclass(frozen=True)
class HostNode:
    """A node that runs on the host, and why."""

    node: str
    operator: str
    reason: str


@dataclass(frozen=True)
class SessionInfo:
    """A session of ONNX Runtime with its MIGraphX provider, in the words of the provider itself.

    Attributes:
        nodes: the number of nodes that it claims.
        rest: the number of nodes that the CPU provider runs, without those that hide others or shape scalars.
        programs: the number of programs that its cache has then.
        calls: the calls of MIGraphX by a second session, which finds the programs in the cache.
        by: what has answered: the version of the provider and of MIGraphX, and whether there was a GPU.
    """

    nodes: Count
    rest: Count
    programs: Count
    calls: dict[str, Count]
    by: str


@dataclass(frozen=True)
class GpuProgramInfo:
    """The program of a partition for a GPU that was not there when it was compiled.

    Attributes:
        file: the ``.mxr``.
        architecture: the GPU's ("gfx942").
        compiler: what compiled it, in words.
        stub: the version of what stood in for the GPU.
        complete: whether it has all its kernels; MIOpen's are chosen with a GPU, and a program that lacks them is kept
            for checking alone.
    """

    file: FileInfo
    architecture: str
    compiler: str
    stub: str
    complete: bool

    @property
    def note(self) -> str:
        """A sentence for the user."""
        note = f"{self.file.file}: compiled for {self.architecture} by {self.compiler}, not run on a GPU"
        return note if self.complete else f"{note}; for checking alone, as its convolutions lack MIOpen's kernels"


@dataclass(frozen=True)
class PartitionInfo(JsonRecord):
    """A partition: a part of the model that runs as a whole on one side.

    Attributes:
        inputs: its inputs, in the order of first use.
        outputs: its outputs, in order.
        nodes: the number of nodes.
        work: their estimated multiply-adds.
        program: the ``.mxr``; None for a host partition, which is extracted from the cleaned ONNX when it is loaded.
        host: the nodes of a host partition that MIGraphX cannot run.
        unknown: the number of nodes whose work may be larger than estimated, since sizes are not known.
        session: how ONNX Runtime's provider runs it; None if MIGraphX or the CPU does.
        gpu: the same for a GPU elsewhere, if the conversion named its architecture.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    nodes: Count
    work: Count
    program: FileInfo | None = None
    host: tuple[HostNode, ...] = ()
    unknown: Count = 0
    session: SessionInfo | None = None
    gpu: GpuProgramInfo | None = None

    in_json = ("runs_on",)

    def below(self, folder: str) -> PartitionInfo:
        """Return the same partition, as the manifest beside ``folder`` describes it."""
        gpu = None if self.gpu is None else replace(self.gpu, file=self.gpu.file.below(folder))
        return replace(self, program=None if self.program is None else self.program.below(folder), gpu=gpu)

    @property
    def on_migraphx(self) -> float:
        """The share of its nodes that MIGraphX runs."""
        if self.session is None:
            return float(self.program is not None)
        return self.session.nodes / max(1, self.session.nodes + self.session.rest)

    @property
    def runs_on(self) -> str:
        if self.session:
            return "ONNX Runtime's provider"
        return "MIGraphX" if self.program else "ONNX Runtime"


@dataclass(frozen=True)
class CalibrationInfo:
    """The calibration of an int8 or fp8 program.

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
    """The content key of the cleaned model, for a later conversion to reuse it, and the notes on it."""

    key: str
    notes: list[str]


@dataclass(frozen=True)
class ProgramInfo:
    """A program: the model for some sizes, cleaned and compiled, in one or more partitions.

    Attributes:
        dims: the sizes, and the values of selecting inputs, that it is chosen by; empty if there is no choice, and for
            what runs once before a decoder.
        inputs: its inputs, with fixed sizes.
        outputs: its outputs, with fixed sizes.
        partitions: its partitions, in execution order.
        model: the files of its cleaned ONNX, the model first; empty if only the program was kept.
        pipeline: the passes that ran, with their options.
        passes: the results of each pass.
        environment: variables that MIGraphX's process needed to compile it, and needs to run it.
        forecast: the kernels that a GPU will run the convolutions and matrix products of a quantized model with
            (`onnx_bridge.model.int8_forecast.Forecast`); empty for others.
        calibration: what an int8 or fp8 program was calibrated on.
        tuning: the archive of tuning results.
        cleaning: how the cleaned model was made; None if it cannot be reused.
        folder: the folder in which it is a bundle of its own; empty if it is in the folder of the manifest.
        manifest: the manifest of that bundle; None without a folder.
        widened: whether what the model computes in 16 bits is computed in float32.
    """

    dims: dict[str, Size]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    partitions: tuple[PartitionInfo, ...]
    model: tuple[FileInfo, ...]
    pipeline: str
    passes: list[dict[str, Any]]
    environment: dict[str, str] = field(default_factory=dict)
    forecast: dict[str, Any] = field(default_factory=dict)
    calibration: CalibrationInfo | None = None
    tuning: FileInfo | None = None
    cleaning: CleaningInfo | None = None
    folder: str = ""
    manifest: FileInfo | None = None
    widened: bool = False

    def __post_init__(self) -> None:
        tensors = [*self.inputs, *self.outputs]
        for partition in self.partitions:
            tensors += [*partition.inputs, *partition.outputs]
        if any(isinstance(size, str) for tensor in tensors for size in tensor.shape or ()):
            raise ValueError(f"the program {self.label or self.pipeline} has symbols as sizes")
        if not self.partitions or (not self.is_one_program and not self.model):
            what = "a program has neither an .mxr nor partitions with the model that they are extracted from"
            raise ValueError(what)
        if bool(self.folder) is not (self.manifest is not None):
            raise ValueError(f"the program in {self.folder!r} has no manifest")
        own, beside = (self.folder or ".", "." if self.folder else "..")  # programs share the weights of models
        for file in self.files:
            place = PurePosixPath(file.file)
            within = str(place.parent) in ((own, beside) if file in self.model else (own,))
            if not within or not is_file_name(place.name) or not is_file_name(self.folder or place.name):
                raise ValueError(f"{file.file!r} is not a file in the bundle")

    @property
    def label(self) -> str:
        """Its sizes as text."""
        return label(self.dims)

    @property
    def wholly_on_migraphx(self) -> bool:
        """True if nothing of it runs on ONNX Runtime."""
        return all(partition.program is not None for partition in self.partitions)

    @property
    def is_one_program(self) -> bool:
        """True if it is one partition, on MIGraphX."""
        return self.wholly_on_migraphx and len(self.partitions) == 1

    @property
    def programs(self) -> tuple[FileInfo, ...]:
        """The ``.mxr`` of all device partitions, in execution order."""
        return tuple(partition.program for partition in self.partitions if partition.program is not None)

    @property
    def gpu_programs(self) -> tuple[GpuProgramInfo, ...]:
        """The programs for a GPU elsewhere, in execution order."""
        return tuple(partition.gpu for partition in self.partitions if partition.gpu is not None)

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """The model, the ``.mxr`` files, calibration data, tuning results, and the manifest in its folder."""
        samples = self.calibration.file if self.calibration else None
        compiled = (*self.programs, *(program.file for program in self.gpu_programs))
        return (*self.model, *compiled, *filter(None, (samples, self.tuning, self.manifest)))

    def below(self, folder: str, dims: Mapping[str, int], manifest: FileInfo) -> ProgramInfo:
        """Return the only program of a bundle in ``folder``, as the manifest beside that folder describes it."""
        calibration = self.calibration
        if calibration is not None and calibration.file is not None:
            calibration = replace(calibration, file=calibration.file.below(folder))
        return replace(
            self,
            dims=dict(dims),
            partitions=tuple(partition.below(folder) for partition in self.partitions),
            model=tuple(file.below(folder) for file in self.model),
            calibration=calibration,
            tuning=None if self.tuning is None else self.tuning.below(folder),
            folder=folder,
            manifest=manifest.below(folder),
        )


def is_file_name(name: str) -> bool:
    """Return whether a text of a manifest names a file in a folder, and nothing else."""
    try:
        length = len(os.fsencode(name))  # names of files need not be text
    except UnicodeEncodeError:
        return False
    return 0 < length <= 255 and name != ".." and "\0" not in name and Path(name).name == name
