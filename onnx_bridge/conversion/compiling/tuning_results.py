"""Tuning results that are kept in a bundle.

Compiling for a GPU measures kernels. MIGraphX keeps the results in its problem cache (``MIGRAPHX_PROBLEM_CACHE``, a
JSON file), MIOpen in its user databases (``MIOPEN_USER_DB_PATH``, a folder). With the option ``tuning=keep`` both are
in a folder of the conversion, and are added to the bundle as one archive. ``tuning=BUNDLE`` starts with the results of
an earlier bundle, so that a model that has changed a little, or is compiled again, is not tuned from scratch.

Results are valid for a GPU's architecture and a minor release of MIGraphX; others are not used. The ``ref`` target
tunes nothing. Either is a note of the bundle.
"""

from __future__ import annotations

import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from onnx_bridge.bundle.manifest.compatibility import minor_release
from onnx_bridge.bundle.manifest.entries import FileInfo
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.bundle.manifest.text import manifest_path
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.regular_file import open_regular
from passes.core.text import counted
from passes.isolation.numpy_files import BROKEN_ARCHIVE

ENDING = ".tuning.zip"
"""The ending of the archive's name."""
_CACHE, _DATABASES = "problem_cache.json", "miopen"
_MOST = 1 << 30
"""The largest size of an unpacked archive, in bytes."""


@dataclass(frozen=True)
class Origin:
    """The target, the GPU's architecture ("gfx942") and the MIGraphX that tuning results are valid for."""

    target: str
    architecture: str | None
    migraphx: str

    @property
    def release(self) -> str:
        """The minor release of MIGraphX."""
        return minor_release(self.migraphx)

    def __str__(self) -> str:
        return f"{self.architecture or self.target} with MIGraphX {self.release}"


class TuningResults:
    """The tuning results of one conversion; a context manager, which removes the temporary folder.

    Args:
        option: ``keep``, the path of an earlier bundle, or empty for none.
        here: the hardware and the release that the conversion compiles for.

    Attributes:
        environment: the variables of MIGraphX's process; empty if nothing is tuned.

    Raises:
        InputError: there is no earlier bundle, or it is damaged.
    """

    def __init__(self, option: str, here: Origin) -> None:
        self.environment: dict[str, str] = {}
        self.notes: list[str] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        earlier = None if option in ("", "keep") else _Earlier.of(Path(option))
        if option and here.target != "gpu":
            self.notes.append(f"no tuning results are kept: the target {here.target} tunes nothing")
        elif option:
            self._folder = tempfile.TemporaryDirectory(prefix="onnx-bridge-tuning-")
            folder = Path(self._folder.name)
            (folder / _DATABASES).mkdir()
            if earlier is not None:
                self.notes.append(earlier.unpack(folder, here))
            self.environment = {
                "MIGRAPHX_PROBLEM_CACHE": str(folder / _CACHE),
                "MIOPEN_USER_DB_PATH": str(folder / _DATABASES),
            }

    def __enter__(self) -> TuningResults:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def keep(self, path: Path) -> FileInfo | None:
        """Write the results into an archive and return it; None if there are no results."""
        if self._folder is None:
            return None
        room = Path(self._folder.name)
        files = sorted(path for path in room.rglob("*") if path.is_file() and path.stat().st_size)
        if not files:
            self.notes.append("no tuning results are kept: compiling tuned nothing")
            return None
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in files:
                archive.write(file, file.relative_to(room).as_posix())
        return FileInfo.of(path)


@dataclass(frozen=True)
class _Earlier:
    """An earlier bundle: its path, what it was compiled for, and its archive, if it has one."""

    path: Path
    origin: Origin
    archive: Path | None

    @classmethod
    def of(cls, path: Path) -> _Earlier:
        try:
            manifest = Manifest.read(manifest_path(path))
            tuning = manifest.program.tuning
        except InputError as error:
            what = f"there is no bundle to take tuning results from at {path}: {error.what}"
            hint = "give keep, or an earlier bundle"
            raise InputError(what, where="option 'tuning'", hint=hint) from None
        origin = Origin(manifest.target, manifest.architecture, manifest.versions["migraphx"])
        archive = manifest_path(path).parent / tuning.file if tuning else None
        return cls(path, origin, archive)

    def unpack(self, folder: Path, here: Origin) -> str:
        """Unpack its results into a folder if they are valid here, and return a note; raises InputError."""
        if self.archive is None:
            return f"{self.path} keeps no tuning results: tuned from scratch"
        if (self.origin.architecture, self.origin.release) != (here.architecture, here.release):
            return f"the tuning results of {self.path} are for {self.origin}, and this is {here}: tuned from scratch"
        try:
            with open_regular(self.archive) as file, zipfile.ZipFile(file) as archive:
                infos = [info for info in archive.infolist() if not info.is_dir()]
                places = ((folder / info.filename).resolve() for info in infos)
                inside = all(place.is_relative_to(folder.resolve()) for place in places)
                if not inside or sum(info.file_size for info in infos) > _MOST:
                    raise zipfile.BadZipFile("the archive has files that no conversion wrote")
                archive.extractall(folder, infos)
        except BROKEN_ARCHIVE as error:
            raise InputError(f"the tuning results cannot be read: {error}", where=str(self.archive)) from None
        return f"tuning started from the results of {self.path} ({counted(len(infos), 'file')})"
