"""The manifest of a bundle: what was converted, how, with which versions, and the result."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx_bridge.bundle.manifest.entries import FileInfo, PartitionInfo, ProgramInfo, TensorInfo, is_file_name
from onnx_bridge.bundle.manifest.layout import WIDTH, Layout
from onnx_bridge.bundle.manifest.proof import BundleProof
from onnx_bridge.bundle.manifest.text import CHECKSUM, read_text, sealed
from onnx_bridge.bundle.manifest.work_share import WorkShare
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.schema import Count, JsonRecord, parse_json, read_as
from onnx_bridge.core.values import Kind
from onnx_bridge.migraphx.compile_options import unknown_variable
from onnx_bridge.requests.conversion import ConvertRequest
from passes.core.text import counted

FORMAT = 4
"""The format that this version writes, and the only one that it reads."""
SHARED = "../"
"""Prefix of a model file that lies beside the folder of its program
(`onnx_bridge.conversion.programs.weight_sharing`)."""


class OtherFormat(InputError):
    """A manifest of a format that this version does not read."""


@dataclass(frozen=True)
class _Skip:
    """The members of a reason for which a pass left nodes alone that are read."""

    nodes: list[str]


@dataclass(frozen=True)
class _PassResult:
    """The members of the result of a pass that are read."""

    name: str
    rewrites: Count
    nodes_before: Count
    nodes_after: Count
    seconds: float
    skips: list[_Skip]


@dataclass(frozen=True)
class _Product:
    """The members of a product in a forecast that are read."""

    node: str
    kernel: str
    condition: str
    quantized: bool
    wrong: str


@dataclass(frozen=True)
class _Forecast:
    """The members of a forecast that are read."""

    summary: str
    products: list[_Product]


@dataclass(frozen=True)
class Manifest(JsonRecord):
    """Everything that is known of a bundle.

    Attributes:
        name: the model's name.
        created: date and time, UTC, ISO 8601.
        source: path and sha256 of the converted model (None for a model in memory).
        key: the content key of the conversion (`onnx_bridge.conversion.keys`); None for a model in memory, and for
            calibration samples in memory.
        request: how the model was converted.
        model: the files of the cleaned ONNX, the model first, whose sizes are symbols if programs are chosen by them;
            empty if only the program was kept.
        target: the compilation target.
        architecture: the GPU's ("gfx942"); None for ``ref``.
        versions: versions of the libraries involved.
        inputs: the inputs of the model, in its order.
        outputs: the outputs of the model, in its order.
        programs: one or several, the smallest first.
        timings: seconds by stage of the conversion, all programs together.
        notes: sentences for the user.
        proof: the extent to which the numbers of all programs are known.
        decoder: the layout of a decoder (`onnx_bridge.bundle.decoding`); None for other models.
        chosen: the sizes that nobody chose, by input and dimension.
    """

    name: str
    created: str
    source: dict[str, str | None]
    key: str | None
    request: ConvertRequest
    model: tuple[FileInfo, ...]
    target: str
    architecture: str | None
    versions: dict[str, str]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    programs: tuple[ProgramInfo, ...]
    timings: dict[str, float]
    notes: list[str] = field(default_factory=list)
    proof: BundleProof = field(default_factory=BundleProof)
    decoder: Layout | None = None
    chosen: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def program(self) -> ProgramInfo:
        """The program of a bundle that does not choose one; raises InputError if it chooses by sizes."""
        if self.dims:
            folders = ", ".join(program.folder for program in self.programs)
            raise InputError("the bundle has a program for each size", hint=f"name the folder of one: {folders}")
        return self.programs[0]

    @property
    def dims(self) -> tuple[str, ...]:
        """The dimensions and selecting inputs that programs are chosen by; empty if there is no choice."""
        return tuple(self.programs[0].dims)

    @property
    def exact(self) -> tuple[str, ...]:
        """The `dims` that are not padded: selecting inputs, which programs do not take, and a decoder's width."""
        symbols = {axis for tensor in self.inputs for axis in tensor.shape or ()}
        names = {tensor.name for tensor in self.inputs} - symbols
        return tuple(name for name in self.dims if name in names or (self.decoder is not None and name == WIDTH))

    @property
    def pads(self) -> bool:
        """Return whether inputs are padded; applications, which open the sessions of a file, have to give its sizes."""
        return self.request.application is None or self.decoder is not None or self.source["path"] is None

    def is_proven_for(self, wanted: str) -> bool:
        """Return whether the proof suffices for a conversion that asks for another `Prove`."""
        return self.proof.satisfies(self.request.prove, wanted)

    @property
    def files(self) -> tuple[FileInfo, ...]:
        """Everything beside the manifest, and in the folders of programs."""
        files = (*self.model, *(file for program in self.programs for file in program.files))
        return tuple({file.file: file for file in files}.values())

    @property
    def partitions(self) -> tuple[PartitionInfo, ...]:
        """The partitions of all programs."""
        return tuple(partition for program in self.programs for partition in program.partitions)

    @property
    def on_migraphx(self) -> bool:
        """True if anything runs on MIGraphX."""
        return any(program.programs for program in self.programs)

    @property
    def quantized_in_model(self) -> bool:
        """True if int8 or fp8 are nodes of the cleaned model (`ConvertRequest.quantizes_model`)."""
        return self.request.quantizes_model(self.architecture)

    @property
    def wholly_on_migraphx(self) -> bool:
        """True if nothing runs on ONNX Runtime."""
        return all(program.wholly_on_migraphx for program in self.programs)

    @property
    def node_share(self) -> float:
        """The share of the nodes that run on MIGraphX."""
        total = sum(partition.nodes for partition in self.partitions)
        if not total:
            return float(self.on_migraphx)
        return sum(partition.on_migraphx * partition.nodes for partition in self.partitions) / total

    @property
    def work_share(self) -> WorkShare:
        """The share of the estimated work on MIGraphX."""
        return WorkShare.of(
            (partition.on_migraphx > 0, partition.nodes, partition.work, partition.unknown)
            for partition in self.partitions
        )

    @property
    def partition_line(self) -> str:
        """The programs, or the partitions and shares of a single one, in one line; empty if it is one on MIGraphX."""
        if self.dims:
            return f"buckets: {'; '.join(program.folder or program.label for program in self.programs)}"
        if self.program.is_one_program:
            return ""
        parts = " → ".join(f"{part.runs_on} ({counted(part.nodes, 'node')})" for part in self.partitions)
        return f"{parts}; on MIGraphX {self.node_share:.1%} of the nodes, {self.work_share:.1%} of the work"

    def host_reasons(self) -> str:
        """Return why nodes run on the host: each reason once, with its nodes."""
        nodes: dict[str, list[str]] = {}
        for node in (node for partition in self.partitions for node in partition.host):
            nodes.setdefault(node.reason, []).append(f"{node.operator} {node.node}")
        return "; ".join(f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in nodes.items())

    def to_json(self) -> dict[str, Any]:
        values = super().to_json() | {"format": FORMAT}
        if self.wholly_on_migraphx:
            return values
        return {**values, "share": {"nodes": round(self.node_share, 6), "work": self.work_share.to_json()}}

    def write(self, path: Path) -> None:
        """Write it, without synchronizing the disk, which would wait for the weights as well."""
        path.write_text(sealed(self.to_json()))

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read a manifest; raises InputError if it is damaged, or of a format that this version does not read."""
        try:
            return cls.parse(read_text(path), str(path))
        except OSError as error:
            raise InputError(f"the manifest cannot be read: {error}", where=str(path), hint="convert again") from None

    @classmethod
    def parse(cls, text: str | bytes, where: str) -> Manifest:
        """Parse the text of a manifest; raises like `read`."""
        try:
            values = parse_json(text)
            format_ = values["format"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"the manifest cannot be read: {error}", where=where, hint="convert again") from None
        if format_ != FORMAT:
            what = f"the bundle has format {format_}, and this version of onnx-bridge reads format {FORMAT} alone"
            place = Path(where)
            out = place.parent if place.name == "manifest.json" else where.replace(".manifest.json", ".mxr")
            source = values.get("source")
            path = source.get("path") if isinstance(source, dict) else None
            raise OtherFormat(what, where=where, hint=made_again(path, f" -o {shlex.quote(str(out))}"))
        try:
            known = {field.name for field in dataclasses.fields(cls)}
            if unknown := values.keys() - known - {"format", "share", CHECKSUM}:
                raise ValueError(f"unknown fields: {', '.join(sorted(unknown))}")
            manifest = read_as(cls, values)
            manifest._check()
        except ValueError as error:
            raise InputError(f"the manifest is damaged: {error}", where=where, hint="convert again") from None
        return manifest

    def _check(self) -> None:
        """Raise ValueError for what the loader relies on and the types do not say."""
        for file in self.model:
            own = file.file.removeprefix("" if self.programs and self.programs[0].folder else SHARED)
            if not is_file_name(own):
                raise ValueError(f"{file.file!r} is not a file in the bundle")
        if not self.programs:
            raise ValueError("the bundle has no programs")
        self._check_programs()
        if missing := {"path"} - self.source.keys() | {"migraphx", "onnx_bridge"} - self.versions.keys():
            raise ValueError(f"its source or its versions miss {', '.join(sorted(missing))}")

    def _check_programs(self) -> None:
        chosen = [program for program in self.programs if program.dims or not self.dims]
        for program in self.programs:
            if (variable := unknown_variable(program.environment)) is not None:
                raise ValueError(f"{variable!r} is not a setting of MIGraphX")
            for result in program.passes:
                read_as(_PassResult, result)
            if program.forecast:
                read_as(_Forecast, program.forecast)
        if self.dims and any(tensor.kind != Kind.TENSOR.value or tensor.shape is None for tensor in self.inputs):
            raise ValueError("programs are chosen by the sizes of tensors alone")
        known = {axis for tensor in self.inputs for axis in tensor.shape or ()} | _names(self.inputs)
        known |= {WIDTH} if self.decoder is not None else set()
        inputs, outputs = _names(self.inputs) - {*self.exact}, _names(self.outputs)
        for program in chosen:
            if tuple(program.dims) != self.dims or not program.dims.keys() <= known:
                raise ValueError(f"the program {program.label or program.pipeline} is chosen by other sizes")
            if (_names(program.inputs), _names(program.outputs)) != (inputs, outputs):
                raise ValueError(f"the program {program.label or program.pipeline} has other inputs or outputs")


def _names(tensors: Iterable[TensorInfo]) -> set[str]:
    return {tensor.name for tensor in tensors}


def made_again(source: object, options: str = "") -> str:
    """Return how to make a bundle again, if the path of its model is known."""
    if not isinstance(source, str):
        return "convert the model again"
    return f"make it again: onnx-bridge convert {shlex.quote(source)}{options}"
