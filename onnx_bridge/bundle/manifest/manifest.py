"""The manifest of a bundle: what was converted, how, with which versions, and the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx_bridge.bundle.manifest.entries import (
    CalibrationInfo,
    CleaningInfo,
    FileInfo,
    PartitionInfo,
    TensorInfo,
    is_file_name,
)
from onnx_bridge.bundle.manifest.proof import BundleProof
from onnx_bridge.bundle.manifest.text import CHECKSUM, read_text, sealed
from onnx_bridge.bundle.manifest.work_share import WorkShare
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.schema import Count, parse_json, read_as
from onnx_bridge.migraphx.compile_options import unknown_variable
from onnx_bridge.requests.conversion import ConvertRequest

ONE_PROGRAM, PARTITIONS, BUCKETS = 1, 2, 3
"""The formats: one program that is the whole model; several partitions; or buckets, each a bundle of its own
(`onnx_bridge.bundle.manifest.buckets_manifest`)."""
SHARED = "../"
"""Prefix of a model file that lies beside the folder of its bucket
(`onnx_bridge.conversion.programs.weight_sharing`)."""


@dataclass(frozen=True)
class _Source:
    """What is read of the record of a source."""

    path: str | None


@dataclass(frozen=True)
class _Versions:
    """The versions that are always read."""

    migraphx: str
    onnx_bridge: str


@dataclass(frozen=True)
class _Skip:
    """What is read of a reason for which a pass left nodes alone."""

    nodes: list[str]


@dataclass(frozen=True)
class _PassResult:
    """What is read of the result of a pass."""

    name: str
    rewrites: Count
    nodes_before: Count
    nodes_after: Count
    seconds: float
    skips: list[_Skip]


@dataclass(frozen=True)
class _Product:
    """What is read of a product in a forecast."""

    node: str
    kernel: str
    condition: str
    quantized: bool
    wrong: str


@dataclass(frozen=True)
class _Forecast:
    """What is read of a forecast."""

    summary: str
    products: list[_Product]


@dataclass(frozen=True)
class Manifest:
    """Everything that is known of a bundle.

    Attributes:
        name: the model's.
        created: date and time, UTC, ISO 8601.
        source: path and sha256 of the converted model (None for a model in memory).
        key: the content key of the conversion (`onnx_bridge.conversion.keys`); None for a model in memory.
        request: how the model was converted.
        pipeline: the passes that ran, with their options.
        program: the ``.mxr`` of a model that runs wholly on MIGraphX; None for one in partitions.
        model: the files of the cleaned ONNX, the model first; empty if only the program was kept.
        target: the compilation target.
        architecture: the GPU's ("gfx942"); None for ``ref``.
        environment: variables that MIGraphX's process needed to compile the programs, and needs to run them.
        versions: of the libraries involved.
        passes: the results of each pass.
        inputs: in the model's order.
        outputs: in the model's order.
        timings: seconds by stage of the conversion.
        notes: sentences for the user.
        partitions: in execution order; empty for a model that runs wholly on MIGraphX.
        forecast: of a quantized model, the kernels that a GPU will run its convolutions and matrix products with
            (`onnx_bridge.model.int8_forecast.Forecast`); empty for others.
        calibration: what int8 and fp8 programs were calibrated on.
        tuning: the archive of tuning results.
        cleaning: how the cleaned model was made; None if it cannot be reused.
        proof: how far its numbers are known.
    """

    name: str
    created: str
    source: dict[str, str | None]
    key: str | None
    request: ConvertRequest
    pipeline: str
    program: FileInfo | None
    model: tuple[FileInfo, ...]
    target: str
    architecture: str | None
    environment: dict[str, str]
    versions: dict[str, str]
    passes: list[dict[str, Any]]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    timings: dict[str, float]
    notes: list[str] = field(default_factory=list)
    partitions: tuple[PartitionInfo, ...] = ()
    forecast: dict[str, Any] = field(default_factory=dict)
    calibration: CalibrationInfo | None = None
    tuning: FileInfo | None = None
    cleaning: CleaningInfo | None = None
    proof: BundleProof = field(default_factory=BundleProof)

    @property
    def format(self) -> int:
        """The number of the format."""
        return PARTITIONS if self.partitions else ONE_PROGRAM

    @property
    def precision(self) -> str:
        """What it computes in: fp32, fp16, bf16, int8 or fp8."""
        return self.request.precision

    @property
    def keep_fp32(self) -> tuple[str, ...]:
        """The operators and nodes that were kept in float32."""
        return self.request.keep_fp32

    def is_proven_for(self, wanted: str) -> bool:
        """Whether its proof suffices where a conversion is wanted to prove
        (`onnx_bridge.requests.conversion.Prove`)."""
        return self.proof.satisfies(self.request.prove, wanted)

    @property
    def programs(self) -> tuple[FileInfo, ...]:
        """All of them, in execution order."""
        return tuple(each for each in (self.program, *(each.program for each in self.partitions)) if each is not None)

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """Everything beside the manifest: the model, the programs, calibration data and tuning results."""
        others = (self.calibration.file if self.calibration else None, self.tuning)
        return (*self.model, *self.programs, *filter(None, others))

    @property
    def node_share(self) -> float:
        """The share of the nodes that run on MIGraphX."""
        total = sum(each.nodes for each in self.partitions)
        if not total:
            return float(bool(self.programs))
        return sum(each.nodes for each in self.partitions if each.program) / total

    @property
    def work_share(self) -> WorkShare:
        """The share of the estimated work on MIGraphX."""
        return WorkShare.of((bool(each.program), each.nodes, each.work, each.unknown) for each in self.partitions)

    @property
    def partition_line(self) -> str:
        """The partitions and shares in one line; empty for a model that runs wholly on MIGraphX."""
        if not self.partitions:
            return ""
        parts = " → ".join(
            f"{'MIGraphX' if each.program else 'ONNX Runtime'} ({each.nodes} node{'s' * (each.nodes != 1)})"
            for each in self.partitions
        )
        return f"{parts}; on MIGraphX {self.node_share:.1%} of the nodes, {self.work_share:.1%} of the work"

    def host_reasons(self) -> str:
        """Why nodes run on the host: each reason once, with its nodes."""
        nodes: dict[str, list[str]] = {}
        for each in (node for partition in self.partitions for node in partition.host):
            nodes.setdefault(each.reason, []).append(f"{each.operator} {each.node}")
        return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in nodes.items())

    def to_json(self) -> dict[str, Any]:
        values = {
            **dataclasses.asdict(self),
            "request": self.request.to_json(),
            "inputs": [each.to_json() for each in self.inputs],
            "outputs": [each.to_json() for each in self.outputs],
            "partitions": [each.to_json() for each in self.partitions],
            "proof": self.proof.to_json(),
            "format": self.format,
        }
        if not self.forecast:
            del values["forecast"]
        if not self.partitions:
            del values["partitions"]
            return values
        return {**values, "share": {"nodes": round(self.node_share, 6), "work": self.work_share.to_json()}}

    def write(self, path: Path) -> None:
        """Write it, without synchronizing the disk, which would wait for the weights as well."""
        path.write_text(sealed(self.to_json()))

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read one.

        Raises:
            InputError: it is damaged, or of a format that this version does not know.
        """
        try:
            return cls.parse(read_text(path), str(path))
        except OSError as error:
            raise InputError(f"the manifest cannot be read: {error}", where=str(path), hint="convert again") from None

    @classmethod
    def parse(cls, text: str | bytes, where: str) -> Manifest:
        """Parse the text of one; raises like `read`."""
        try:
            values = parse_json(text)
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
        except ValueError as error:
            raise InputError(f"the manifest is damaged: {error}", where=where, hint="convert again") from None

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> Manifest:
        if unknown := values.keys() - {each.name for each in dataclasses.fields(cls)} - {"format", "share", CHECKSUM}:
            raise ValueError(f"unknown fields: {', '.join(sorted(unknown))}")
        manifest = read_as(cls, values)
        manifest._check()
        return manifest

    def _check(self) -> None:
        """ValueError for a file outside of the bundle, which the next conversion would remove; or without programs."""
        shared = {each.file.removeprefix(SHARED) for each in self.model}
        for name in {*(each.file for each in self.files if each not in self.model), *shared}:
            if not is_file_name(name):
                raise ValueError(f"{name!r} is not a file in the bundle")
        if (self.program is None) != bool(self.partitions) or (self.partitions and not self.model):
            raise ValueError("it has neither a program nor partitions with the model that they are extracted from")
        if (variable := unknown_variable(self.environment)) is not None:
            raise ValueError(f"{variable!r} is not a setting of MIGraphX")
        read_as(_Source, self.source)
        read_as(_Versions, self.versions)
        for each in self.passes:
            read_as(_PassResult, each)
        if self.forecast:
            read_as(_Forecast, self.forecast)
