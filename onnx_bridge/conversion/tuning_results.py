"""Tuning results that travel with a bundle.

Compiling for a GPU measures kernels: MIGraphX keeps what it found in its problem cache (``MIGRAPHX_PROBLEM_CACHE``, a
JSON file), MIOpen in its user databases (``MIOPEN_USER_DB_PATH``, a folder). With the option ``tuning=keep`` both lie
in a folder of the conversion's own, and go into the bundle as one archive; ``tuning=BUNDLE`` begins with the results of
an earlier bundle, so that a model that has changed a little, or needs to be compiled again, is not tuned from scratch.

Results belong to a GPU's architecture and a minor release of MIGraphX: those of another are not taken. The ``ref``
target tunes nothing, so there is nothing to keep. Either is said in a note of the bundle, which is right without them.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from onnx_bridge.bundle.manifest import FileInfo
from onnx_bridge.core.errors import InputError

ENDING = ".tuning.zip"
"""What the name of the archive ends in."""
_CACHE, _DATABASES = "problem_cache.json", "miopen"
_MOST = 1 << 30
"""Bytes that an archive may unpack to."""


@dataclass(frozen=True)
class Origin:
    """What results are for.

    Attributes:
        target: ``ref`` or ``gpu``.
        architecture: the GPU's ("gfx942").
        migraphx: the version.
    """

    target: str
    architecture: str | None
    migraphx: str

    @property
    def release(self) -> str:
        """The minor release of MIGraphX."""
        return ".".join(self.migraphx.split(".")[:2])

    def __str__(self) -> str:
        return f"{self.architecture or self.target} with MIGraphX {self.release}"


class TuningResults:
    """The results of one conversion, which has them as a context.

    Args:
        option: ``keep``, the path of an earlier bundle, or empty for none.
        here: what is compiled for.

    Attributes:
        environment: the variables for MIGraphX's process; empty where nothing is tuned.
        notes: what the user should know, in sentences.

    Raises:
        InputError: the earlier bundle is none, or damaged.
    """

    def __init__(self, option: str, here: Origin) -> None:
        self.environment: dict[str, str] = {}
        self.notes: list[str] = []
        self._room: tempfile.TemporaryDirectory[str] | None = None
        earlier = None if option in ("", "keep") else _Earlier.of(Path(option))
        if option and here.target != "gpu":
            self.notes.append(f"no tuning results are kept: the target {here.target} tunes nothing")
        elif option:
            self._room = tempfile.TemporaryDirectory(prefix="onnx-bridge-tuning-")
            folder = Path(self._room.name)
            (folder / _DATABASES).mkdir()
            if earlier is not None:
                self.notes.append(earlier.unpack(folder, here))
            self.environment = {
                "MIGRAPHX_PROBLEM_CACHE": str(folder / _CACHE),
                "MIOPEN_USER_DB_PATH": str(folder / _DATABASES),
            }

    def __enter__(self) -> TuningResults:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._room is not None:
            self._room.cleanup()

    def keep(self, path: Path) -> dict[str, Any]:
        """Put what was found into an archive.

        Returns:
            The archive as a `FileInfo`, as JSON values; empty where there is nothing.
        """
        if self._room is None:
            return {}
        room = Path(self._room.name)
        files = sorted(each for each in room.rglob("*") if each.is_file() and each.stat().st_size)
        if not files:
            self.notes.append("no tuning results are kept: compiling tuned nothing")
            return {}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for each in files:
                archive.write(each, each.relative_to(room).as_posix())
        return asdict(FileInfo.of(path))


@dataclass(frozen=True)
class _Earlier:
    """An earlier bundle: its path, what it was compiled for, and its archive (None: it keeps no results)."""

    path: Path
    origin: Origin
    archive: Path | None

    @classmethod
    def of(cls, path: Path) -> _Earlier:
        manifest = path.with_suffix(".manifest.json") if path.suffix == ".mxr" else path / "manifest.json"
        try:
            values = json.loads(manifest.read_text())
            origin = Origin(values["target"], values["architecture"], values["versions"]["migraphx"])
            kept = values["options"].get("tuning")
            archive = manifest.parent / Path(kept["file"]).name if kept else None
        except (OSError, ValueError, KeyError, TypeError) as error:
            what = f"there is no bundle to take tuning results from at {path}: {type(error).__name__}: {error}"
            hint = "keep, or what an earlier conversion wrote"
            raise InputError(what, where="option 'tuning'", hint=hint) from None
        return cls(path, origin, archive)

    def unpack(self, folder: Path, here: Origin) -> str:
        """Lay its results ready; returns what was done, in a sentence.

        Raises:
            InputError: the archive is gone or damaged.
        """
        if self.archive is None:
            return f"{self.path} keeps no tuning results: tuned from scratch"
        if (self.origin.architecture, self.origin.release) != (here.architecture, here.release):
            return f"the tuning results of {self.path} are for {self.origin}, and this is {here}: tuned from scratch"
        try:
            with zipfile.ZipFile(self.archive) as archive:
                infos = [each for each in archive.infolist() if not each.is_dir()]
                inside = (folder / each.filename for each in infos)
                if sum(each.file_size for each in infos) > _MOST or not all(
                    each.resolve().is_relative_to(folder.resolve()) for each in inside
                ):
                    raise zipfile.BadZipFile("it holds what no conversion put there")
                archive.extractall(folder, infos)
        except (OSError, zipfile.BadZipFile) as error:
            raise InputError(f"its tuning results cannot be read: {error}", where=str(self.archive)) from None
        return f"tuning went on from the results of {self.path} ({len(infos)} files)"
