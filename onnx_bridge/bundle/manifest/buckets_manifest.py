"""The manifest of a bundle with buckets: one program for each of several sizes of some symbolic dimensions.

An input that selects between branches has buckets as well, by its name: 0 and 1, which are false and true.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from onnx_bridge.bundle.manifest.entries import FileInfo, is_file_name
from onnx_bridge.bundle.manifest.layout import Layout
from onnx_bridge.bundle.manifest.manifest import BUCKETS
from onnx_bridge.bundle.manifest.proof import BundleProof
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.digest import file_digest
from onnx_bridge.core.files.regular_file import read_regular
from onnx_bridge.core.schema import Size, parse_json, read_as
from onnx_bridge.requests.conversion import ConvertRequest
from passes.shapes.size_expressions import evaluate

Axis = int | str | None
EDGE = "edge"
"""The padding rule that repeats the last element; any other rule is a number."""


@dataclass(frozen=True)
class BucketTensor:
    """An input or output of all buckets.

    Attributes:
        name: the model's.
        dtype: as in `onnx_bridge.bundle.manifest.manifest.TensorInfo`.
        axes: sizes, symbols or expressions of symbols; None for an axis that depends on the data.
    """

    name: str
    dtype: str
    axes: tuple[Axis, ...]

    def sizes(self, dims: Mapping[str, int]) -> tuple[int | None, ...]:
        """The shape for some sizes of the symbols; None for an axis that they do not determine."""
        return tuple(size_of(axis, dims) for axis in self.axes)


@dataclass(frozen=True)
class BucketInfo:
    """One bucket.

    Attributes:
        dims: its sizes, and the values of selecting inputs; none for what runs once before a decoder.
        folder: that of its bundle, beside the manifest.
        manifest: the digest of that bundle's manifest.
    """

    dims: dict[str, Size]
    folder: str
    manifest: str


@dataclass(frozen=True)
class BucketsManifest:
    """What is known of a bundle with buckets.

    Attributes:
        name: the model's.
        source: path and sha256 of the model.
        key: the content key; None for calibration samples in memory.
        request: how the model was converted.
        model: the cleaned model, whose dimensions are still symbolic.
        buckets: the smallest first.
        inputs: of the model, in order.
        outputs: likewise.
        target: the compilation target.
        versions: of the libraries involved.
        timings: seconds by stage of the conversion, all buckets together.
        notes: sentences for the user.
        proof: of all buckets together.
        files: those beside the manifest: the cleaned model and, if there are any, the weights that all models share.
        decoder: the layout of a decoder (`onnx_bridge.bundle.decoding`); None for other models.
    """

    name: str
    source: dict[str, str | None]
    key: str | None
    request: ConvertRequest
    model: str
    buckets: tuple[BucketInfo, ...]
    inputs: tuple[BucketTensor, ...]
    outputs: tuple[BucketTensor, ...]
    target: str
    versions: dict[str, str]
    timings: dict[str, float]
    notes: list[str] = field(default_factory=list)
    files: tuple[FileInfo, ...] = ()
    proof: BundleProof = field(default_factory=BundleProof)
    decoder: Layout | None = None

    def is_proven_for(self, wanted: str) -> bool:
        """Whether its proof suffices where a conversion is wanted to prove
        (`onnx_bridge.requests.conversion.Prove`)."""
        return self.proof.satisfies(self.request.prove, wanted)

    @property
    def selecting(self) -> tuple[str, ...]:
        """The inputs that select a bucket by their value; the programs do not take them."""
        symbols = {axis for each in self.inputs for axis in each.axes}
        names = {each.name for each in self.inputs} - symbols
        return tuple(name for name in self.buckets[0].dims if name in names)

    @property
    def pad(self) -> dict[str, str]:
        """The padding rule of each input that has one; the others are padded with 0."""
        return dict(self.request.pad)

    @property
    def pad_before(self) -> tuple[str, ...]:
        """The dimensions that are padded at their start."""
        return self.request.pad_before

    @property
    def freeze(self) -> dict[str, str]:
        """The values, as JSON text, of inputs that are constants."""
        return dict(self.request.freeze)

    @property
    def precision(self) -> str:
        """What it computes in: fp32, fp16, bf16, int8 or fp8."""
        return self.request.precision

    @property
    def keep_fp32(self) -> tuple[str, ...]:
        """The operators and nodes that were kept in float32."""
        return self.request.keep_fp32

    @property
    def partition_line(self) -> str:
        """The buckets in one line."""
        return f"buckets: {'; '.join(each.folder for each in self.buckets)}"

    def to_json(self) -> dict[str, Any]:
        return {"format": BUCKETS, **asdict(self), "request": self.request.to_json(), "proof": self.proof.to_json()}

    @classmethod
    def read(cls, path: Path) -> BucketsManifest:
        """Read one.

        Raises:
            InputError: it is damaged, or describes a bundle without buckets.
        """
        try:
            return cls.parse(read_regular(path), str(path))
        except OSError as error:
            raise InputError(f"the manifest cannot be read: {error}", where=str(path), hint="convert again") from None

    @classmethod
    def parse(cls, text: str | bytes, where: str) -> BucketsManifest:
        """Parse the text of one; raises like `read`."""
        try:
            values = parse_json(text)
            if values["format"] != BUCKETS:
                raise InputError(f"the bundle has format {values['format']}, without buckets", where=where)
            found = read_as(cls, values)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"the manifest cannot be read: {error}", where=where, hint="convert again") from None
        for inner in (found.model, *(each.file for each in found.files), *(each.folder for each in found.buckets)):
            if not is_file_name(inner):
                raise InputError(f"the manifest is damaged: {inner!r} is not in the bundle", where=where)
        return found


def label(dims: Mapping[str, int]) -> str:
    """The sizes of a bucket as text; also the name of its folder."""
    return ",".join(f"{name}={size}" for name, size in dims.items())


def size_of(axis: Axis, dims: Mapping[str, int]) -> int | None:
    """The size of an axis for some sizes of the symbols; None if they do not determine it."""
    return evaluate(axis, dims) if isinstance(axis, str) else axis


def inside(dims: Mapping[str, int], buckets: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The smallest sizes that fall into a bucket, one more than the bucket before; of the smallest, half of it."""
    found = {}
    for name, size in dims.items():
        below = [each[name] for each in buckets if each[name] < size]
        found[name] = min(size, max(below) + 1) if below else min(size, max(1, size // 2))
    return found


def fitted(points: Sequence[Mapping[str, int]], sizes: Sequence[int]) -> Axis:
    """What a size is at several points: a number, a symbol, or a sum of symbols and a number; None if it is neither.

    Args:
        points: sizes by symbol, all different.
        sizes: at each point.
    """
    if len(set(sizes)) == 1 and len(points) > 1:
        return sizes[0]
    for count in range(1, len(points[0]) + 1):
        found = {}
        for names in itertools.combinations(points[0], count):
            rests = {size - sum(point[name] for name in names) for size, point in zip(sizes, points, strict=True)}
            if len(rests) == 1 and (len(points) > 1 or rests == {0}):
                found[names] = rests.pop()
        exact = [names for names, rest in found.items() if rest == 0] or list(found)
        if len(exact) == 1:
            (names,) = exact
            rest = found[names]
            return " + ".join(names) + (f" {'+' if rest > 0 else '-'} {abs(rest)}" if rest else "")
        if exact:
            return None
    return None


def manifest_digest(path: Path) -> str:
    """The digest of a bucket's manifest; raises InputError if there is none."""
    try:
        return file_digest(path)
    except OSError as error:
        raise InputError(f"the bucket is missing: {error.strerror}", where=str(path), hint="convert again") from error
