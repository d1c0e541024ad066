"""The manifest of a bundle: what was converted, how, by what, and what came out."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx_bridge.errors import InputError

FORMAT = 1
"""Raised whenever an older reader would misunderstand what a newer writer wrote."""


def is_manifest(path: Path) -> bool:
    """Whether a file is a manifest of whatever format, rather than some other program's."""
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and {"format", "program"} <= values.keys()


@dataclass(frozen=True)
class TensorInfo:
    """Name, dtype (by its numpy or ml_dtypes name) and shape of an input or output."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class FileInfo:
    """A file of the bundle, by its name beside the manifest."""

    file: str
    bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> FileInfo:
        """Measure a file."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(path.name, path.stat().st_size, digest)


@dataclass(frozen=True)
class Manifest:
    """Everything that is known of a bundle.

    Attributes:
        name: the model's.
        created: date and time, UTC, ISO 8601.
        source: path and sha256 of the model that was converted (None for a model in memory).
        program: the ``.mxr``.
        model: the files of the cleaned ONNX, the model first; empty where only the program was kept.
        target: what the program was compiled for.
        architecture: the GPU's ("gfx942"); None for ``ref``.
        options: of the conversion, as they were used.
        versions: of everything that had a hand in it.
        passes: what each pass did.
        inputs: in the model's order.
        outputs: in the model's order.
        timings: seconds by stage.
        notes: what the user should know, in sentences.
    """

    name: str
    created: str
    source: dict[str, str | None]
    program: FileInfo
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
    format: int = FORMAT

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return dataclasses.asdict(self)

    def write(self, path: Path) -> None:
        """Write it; without waiting for the disk, which would first have to take the weights written before."""
        path.write_text(json.dumps(self.to_json(), indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read one.

        Raises:
            InputError: it is damaged, or of a format that this version does not know.
        """
        try:
            values = json.loads(path.read_text())
            found = values["format"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"the manifest cannot be read: {error}", where=str(path), hint="convert again") from None
        if found != FORMAT:
            raise InputError(
                f"the bundle has format {found}, and this version of onnx-bridge reads format {FORMAT}",
                where=str(path),
                hint="convert again" if found < FORMAT else "upgrade onnx-bridge, or convert again",
            )
        try:
            return cls._of(values)
        except (KeyError, TypeError) as error:
            raise InputError(f"the manifest is damaged: {error}", where=str(path), hint="convert again") from None

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> Manifest:
        def tensors(items: list[dict[str, Any]]) -> tuple[TensorInfo, ...]:
            return tuple(TensorInfo(each["name"], each["dtype"], tuple(each["shape"])) for each in items)

        program, *model = (FileInfo(**each) for each in (values["program"], *values["model"]))
        for name in (program.file, *(each.file for each in model)):
            if not name or name == ".." or Path(name).name != name:  # the next conversion would remove it
                raise TypeError(f"{name!r} is no file in the bundle")
        return cls(
            **{
                **values,
                "program": program,
                "model": tuple(model),
                "inputs": tensors(values["inputs"]),
                "outputs": tensors(values["outputs"]),
            }
        )
