"""The manifest of a bundle: what was converted, how, by what, and what came out."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnx_bridge.conversion.keys import key_of
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Kind

ONE_PROGRAM, PARTITIONS, BUCKETS = 1, 2, 3
"""The formats: one program that is the whole model; partitions, of which readers of the first know nothing; or buckets,
each a bundle of its own (`onnx_bridge.bundle.buckets`)."""
SHARED = "../"
"""Before the name of a model that lies beside the folder of its bucket (`onnx_bridge.conversion.weight_sharing`)."""
_CHECKSUM = "checksum"
"""The member of a manifest that is the digest of all others."""


def sealed(values: Mapping[str, Any]) -> str:
    """The text of a manifest, with its checksum."""
    return json.dumps({**values, _CHECKSUM: key_of(values)}, indent=2) + "\n"


def unsealed(text: str | bytes) -> str | None:
    """What is wrong with the text of a manifest as a text, in words; None where it is as it was written."""
    try:
        values = json.loads(text)
        claimed = values.pop(_CHECKSUM, None)
        if claimed is None:
            return "it has no checksum: an earlier version made it"
        return None if claimed == key_of(values) else "its content is another one (checksum)"
    except (ValueError, TypeError, AttributeError):
        return "it is no manifest"


def is_manifest(path: Path) -> bool:
    """Whether a file is a manifest of whatever format, rather than some other program's."""
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and {"format", "program"} <= values.keys()


@dataclass(frozen=True)
class TensorInfo:
    """An input or output.

    Attributes:
        name: the model's.
        dtype: its numpy or ml_dtypes name; ``string``, or ``unknown`` (only where it is on the host).
        shape: sizes, None for one that depends on the data; None where not even their number is known.
        kind: what it is (`Kind`); of a sequence, dtype and shape are those of its arrays.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None
    kind: str = Kind.TENSOR.value

    @classmethod
    def of(cls, value: ir.Value) -> TensorInfo:
        """What a model declares of a value."""
        shape = None
        if value.shape is not None:
            shape = tuple(dim if isinstance(dim, int) else None for dim in value.shape)
        kind = Kind.of(value.type) or Kind.TENSOR
        return cls(str(value.name), _dtype_name(value.dtype), shape, kind.value)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The dtype; object for strings."""
        if self.dtype == "string":
            return np.dtype(object)
        return np.dtype(getattr(ml_dtypes, self.dtype)) if hasattr(ml_dtypes, self.dtype) else np.dtype(self.dtype)

    def to_json(self) -> dict[str, Any]:
        """As JSON values; ``kind`` only for what is no tensor."""
        values = dataclasses.asdict(self)
        if self.kind == Kind.TENSOR.value:
            del values["kind"]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TensorInfo:
        """What `to_json` gave."""
        shape = values["shape"]
        return cls(**{**values, "shape": None if shape is None else tuple(shape)})


def _dtype_name(dtype: ir.DataType | None) -> str:
    if dtype is None or dtype == ir.DataType.UNDEFINED:
        return "unknown"
    return "string" if dtype == ir.DataType.STRING else dtype.numpy().name


@dataclass(frozen=True)
class FileInfo:
    """A file of the bundle.

    Attributes:
        file: its name beside the manifest; of a model that buckets share weights in, ``../`` and its name.
        bytes: its size.
        sha256: its digest.
    """

    file: str
    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> FileInfo:
        """Measure a file."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(path.name, path.stat().st_size, digest)

    def problem(self, folder: Path) -> str | None:
        """What is wrong with the file, in words; None where it is as it was.

        Args:
            folder: that of the manifest.
        """
        path = folder / self.file
        try:
            size = path.stat().st_size
            if size != self.bytes:
                return f"it has {size:,} bytes instead of {self.bytes:,}"
            same = FileInfo.of(path).sha256 == self.sha256
        except FileNotFoundError:
            return "it is missing"
        except OSError as error:
            return f"it cannot be read: {error.strerror}"
        return None if same else "its content is another one (SHA-256)"


@dataclass(frozen=True)
class HostNode:
    """A node that runs on the host, and why."""

    node: str
    operator: str
    reason: str


@dataclass(frozen=True)
class PartitionInfo:
    """A part of the model that runs as a whole: what computes the outputs from the inputs.

    Attributes:
        inputs: in the order of first use.
        outputs: in order.
        nodes: how many it has.
        work: what they do, estimated, in multiply-adds.
        program: the ``.mxr``; None for a partition on the host, which is cut out of the cleaned ONNX when it is loaded.
        host: the nodes of a partition on the host.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    nodes: int
    work: int
    program: FileInfo | None = None
    host: tuple[HostNode, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "runs_on": "MIGraphX" if self.program else "ONNX Runtime",
            **dataclasses.asdict(self),
            **{name: [each.to_json() for each in getattr(self, name)] for name in ("inputs", "outputs")},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> PartitionInfo:
        """What `to_json` gave."""
        return cls(
            inputs=_tensors(values["inputs"]),
            outputs=_tensors(values["outputs"]),
            nodes=values["nodes"],
            work=values["work"],
            program=None if values["program"] is None else FileInfo(**values["program"]),
            host=tuple(HostNode(**each) for each in values["host"]),
        )


def _tensors(items: Sequence[Mapping[str, Any]]) -> tuple[TensorInfo, ...]:
    return tuple(map(TensorInfo.from_json, items))


@dataclass(frozen=True)
class Manifest:
    """Everything that is known of a bundle.

    Attributes:
        name: the model's.
        created: date and time, UTC, ISO 8601.
        source: path and sha256 of the model that was converted (None for a model in memory).
        program: the ``.mxr`` of a model that runs wholly on MIGraphX; None for one in partitions.
        model: the files of the cleaned ONNX, the model first; empty where only the program was kept.
        target: what programs were compiled for.
        architecture: the GPU's ("gfx942"); None for ``ref``.
        options: of the conversion, as they were used: ``environment`` has what MIGraphX had to be given to compile, and
            ``key`` is the content key (see `onnx_bridge.conversion.keys`).
        versions: of everything that had a hand in it.
        passes: what each pass did.
        inputs: in the model's order.
        outputs: in the model's order.
        timings: seconds by stage.
        notes: what the user should know, in sentences.
        partitions: in the order in which they run; empty for a model that runs wholly on MIGraphX.
        forecast: of a quantized model, what its convolutions and matrix products will run as on a GPU
            (`onnx_bridge.model.int8_forecast.Forecast`); empty for others.
    """

    name: str
    created: str
    source: dict[str, str | None]
    program: FileInfo | None
    model: tuple[FileInfo, ...]
    target: str
    architecture: str | None
    options: dict[str, Any]
    versions: dict[str, str]
    passes: list[dict[str, Any]]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    timings: dict[str, float]
    notes: list[str] = field(default_factory=list)
    partitions: tuple[PartitionInfo, ...] = ()
    forecast: dict[str, Any] = field(default_factory=dict)

    @property
    def format(self) -> int:
        """Another where an older reader would misunderstand it."""
        return PARTITIONS if self.partitions else ONE_PROGRAM

    @property
    def key(self) -> str | None:
        """The content key; None for a model in memory."""
        key = self.options.get("key")
        return key if isinstance(key, str) else None

    @property
    def programs(self) -> tuple[FileInfo, ...]:
        """All of them."""
        return tuple(
            each for each in (self.program, *(partition.program for partition in self.partitions)) if each is not None
        )

    @property
    def kept(self) -> FileInfo | None:
        """The data that programs are quantized on again, where there is any."""
        said = self.options.get("calibration", {})
        found = {name: said[name] for name in ("file", "bytes", "sha256") if name in said}
        return FileInfo(**found) if found else None

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """Everything beside the manifest, the programs behind the model."""
        tuned = self.options.get("tuning")  # the archive of tuning results
        others = (self.kept, FileInfo(**tuned) if tuned else None)
        return (*self.model, *self.programs, *filter(None, others))

    @property
    def node_share(self) -> float:
        """Of the nodes, how many run on MIGraphX."""
        total = sum(partition.nodes for partition in self.partitions)
        if not total:
            return float(bool(self.programs))
        return sum(partition.nodes for partition in self.partitions if partition.program) / total

    @property
    def work_share(self) -> float:
        """Of the estimated work, how much is done on MIGraphX; of the nodes, where nothing is estimated to be work."""
        total = sum(partition.work for partition in self.partitions)
        return (
            sum(partition.work for partition in self.partitions if partition.program) / total
            if total
            else self.node_share
        )

    @property
    def partition_line(self) -> str:
        """The partitions in a line, with the shares; empty for a model that runs wholly on MIGraphX."""
        if not self.partitions:
            return ""
        parts = " → ".join(
            f"{'MIGraphX' if part.program else 'ONNX Runtime'} ({part.nodes} node{'s' * (part.nodes != 1)})"
            for part in self.partitions
        )
        return f"{parts}; on MIGraphX {self.node_share:.1%} of the nodes, {self.work_share:.1%} of the work"

    def host_reasons(self) -> str:
        """Why nodes run on the host, each reason once with the nodes that it goes for."""
        nodes: dict[str, list[str]] = {}
        for each in (node for partition in self.partitions for node in partition.host):
            nodes.setdefault(each.reason, []).append(f"{each.operator} {each.node}")
        return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in nodes.items())

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        values = {
            **dataclasses.asdict(self),
            "inputs": [each.to_json() for each in self.inputs],
            "outputs": [each.to_json() for each in self.outputs],
            "partitions": [each.to_json() for each in self.partitions],
            "format": self.format,
        }
        if not self.forecast:
            del values["forecast"]
        if not self.partitions:
            del values["partitions"]
            return values
        return {**values, "share": {"nodes": round(self.node_share, 6), "work": round(self.work_share, 6)}}

    def write(self, path: Path) -> None:
        """Write it; without waiting for the disk, which would first have to take the weights written before."""
        path.write_text(sealed(self.to_json()))

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read one.

        Raises:
            InputError: it is damaged, or of a format that this version does not know.
        """
        try:
            return cls.parse(path.read_text(), str(path))
        except OSError as error:
            raise InputError(f"the manifest cannot be read: {error}", where=str(path), hint="convert again") from None

    @classmethod
    def parse(cls, text: str | bytes, where: str) -> Manifest:
        """Read the text of one; raises as `read`."""
        try:
            values = json.loads(text)
            found = values["format"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"the manifest cannot be read: {error}", where=where, hint="convert again") from None
        if found == BUCKETS:
            what = "the bundle has buckets, each of which is a bundle in a folder of its own"
            raise InputError(what, where=where, hint="open it with onnx_bridge.load, or name one of those folders")
        if found not in (ONE_PROGRAM, PARTITIONS):
            raise InputError(
                f"the bundle has format {found}, and this version of onnx-bridge reads formats up to {BUCKETS}",
                where=where,
                hint="upgrade onnx-bridge, or convert again",
            )
        try:
            return cls._of(values)
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"the manifest is damaged: {error}", where=where, hint="convert again") from None

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> Manifest:
        fields = {each.name for each in dataclasses.fields(cls)}
        if unknown := values.keys() - fields - {"format", "share", _CHECKSUM}:
            raise TypeError(f"{', '.join(sorted(unknown))} are no fields of it")
        manifest = cls(
            **{
                **{name: value for name, value in values.items() if name in fields},
                "program": None if values["program"] is None else FileInfo(**values["program"]),
                "model": tuple(FileInfo(**each) for each in values["model"]),
                "inputs": _tensors(values["inputs"]),
                "outputs": _tensors(values["outputs"]),
                "partitions": tuple(map(PartitionInfo.from_json, values.get("partitions", ()))),
            }
        )
        shared = {each.file.removeprefix(SHARED) for each in manifest.model}
        for name in {*(each.file for each in manifest.files if each not in manifest.model), *shared}:
            if not name or name == ".." or Path(name).name != name:  # the next conversion would remove it
                raise TypeError(f"{name!r} is no file in the bundle")
        if (manifest.program is None) != bool(manifest.partitions) or (manifest.partitions and not manifest.model):
            raise TypeError("it has neither a program nor partitions and the model that they are cut from")
        return manifest
