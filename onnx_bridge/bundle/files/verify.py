"""The verb ``verify``: is a bundle intact, and can it run here?

Every file is read once, as a stream, and compared with the SHA-256 in the manifest, which has a checksum of itself. The
manifests in the folders of programs are files like others. A packed bundle is read without unpacking it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx_bridge.bundle.files.archive import FIRST, is_packed, members, opened
from onnx_bridge.bundle.files.sessions import check_sessions, is_for_sessions
from onnx_bridge.bundle.manifest.compatibility import require_compatible
from onnx_bridge.bundle.manifest.entries import FileInfo
from onnx_bridge.bundle.manifest.manifest import Manifest, OtherFormat
from onnx_bridge.bundle.manifest.text import manifest_path, read_text, unsealed
from onnx_bridge.core.countdown import ByteCountdown
from onnx_bridge.core.errors import BridgeError, InputError
from onnx_bridge.core.files.digest import file_digest
from onnx_bridge.core.files.known_digests import known_digest
from onnx_bridge.core.progress import Progress
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.targets import gpu_architecture
from passes.core.text import counted

_CHUNK = 1 << 20


@dataclass
class Verification(JsonRecord):
    """The result of `verify`.

    Attributes:
        path: the path of the bundle.
        files: its files by name, the manifest first, with their paths (of a packed bundle, the archive's).
        bytes: the total size.
        problems: what is wrong, by file; empty for an intact bundle.
        unfit: why it cannot run here; None if it can, or if that was not checked.
        notes: sentences for the user.
        made: the versions and the target that it was made with, in words.
    """

    path: Path
    files: dict[str, Path] = field(default_factory=dict)
    bytes: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    unfit: str | None = None
    notes: list[str] = field(default_factory=list)
    made: str = ""

    in_json = ("passed", "summary")

    @property
    def passed(self) -> bool:
        """True if the bundle is intact, and can run here."""
        return not self.problems and self.unfit is None

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        count = f"{counted(len(self.files), 'file')}, {self.bytes / 2**20:.3g} MiB"
        if self.problems:
            return f"damaged: {len(self.problems)} of {count} were changed"
        if self.unfit:
            return f"intact ({count}), but it cannot run here: {self.unfit}"
        return f"intact: {count}"

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"files": list(self.files), "intact": not self.problems}


def verify(
    path: str | os.PathLike[str], *, runtime: str | None = None, here: bool = True, progress: Progress | None = None
) -> Verification:
    """Check whether a bundle is intact, and whether the MIGraphX and the GPU here can run it.

    Args:
        path: its folder, its program (``.mxr``), or the file that it was packed into.
        runtime: which MIGraphX (see `onnx_bridge.migraphx.runtime.find`).
        here: whether to check that it can run here, too.
        progress: is called with a line now and then.

    Raises:
        InputError: there is no bundle, or it is of another format.
    """
    path = Path(path)
    countdown = ByteCountdown(progress, "reading every file", bytes_on_disk(path))
    files = _Packed(path, countdown) if is_packed(path) else _Folder(manifest_path(path).parent, countdown.digest)
    verification, manifest = _examine(path, files)
    if manifest is not None:
        target = f"{manifest.target} ({manifest.architecture})" if manifest.architecture else manifest.target
        made_by = f"onnx-bridge {manifest.versions['onnx_bridge']} with MIGraphX {manifest.versions['migraphx']}"
        verification.made = f"by {made_by}, for {target}"
        if here:
            _fits(verification, manifest, runtime)
    return verification


def bytes_on_disk(bundle: Path) -> int:
    """Return the bytes of a bundle on disk, in its file or in all files of its folder; 0 if there is none."""
    with contextlib.suppress(OSError):
        return sum(path.stat().st_size for path in (bundle.rglob("*") if bundle.is_dir() else [bundle]))
    return 0


def _is_intact(bundle: Path, digest: Callable[[Path], str]) -> bool:
    """Return whether `verify` finds nothing wrong with the files of a bundle that is not packed."""
    with contextlib.suppress(InputError):
        return not _examine(bundle, _Folder(manifest_path(bundle).parent, digest))[0].problems
    return False


def intact_manifest(
    bundle: Path, key: str, prove: str, digest: Callable[[Path], str] = known_digest
) -> Manifest | None:
    """Return the manifest of a bundle of a content key that is intact and proven as asked; otherwise None.

    Args:
        prove: the `onnx_bridge.requests.conversion.Prove` that it has to suffice for.
        digest: returns the SHA-256 of a file.
    """
    try:
        manifest = Manifest.read(manifest_path(bundle))
    except BridgeError:
        return None
    current = manifest.key == key and manifest.is_proven_for(prove)
    return manifest if current and _is_intact(bundle, digest) else None


def _examine(path: Path, files: _Folder | _Packed) -> tuple[Verification, Manifest | None]:
    """Return what is wrong with a bundle, and its manifest if it can be read; raises InputError if there is none."""
    first = FIRST if isinstance(files, _Packed) else manifest_path(path).name
    verification = Verification(path)
    text = files.read(first)
    if isinstance(files, _Packed) and files.damage:
        verification.problems[path.name] = files.damage
        if text is None:
            return verification, None
    if text is None:
        what = "this is not a bundle: it has no manifest" if path.exists() else "the bundle does not exist"
        raise InputError(what, where=str(path), hint="`onnx-bridge convert` makes one")
    verification.files[first] = files.place(first)
    if problem := unsealed(text):
        verification.problems[first] = problem
    manifest = None
    try:
        manifest = Manifest.parse(text, str(verification.files[first]))
    except OtherFormat:  # it is not damaged, and what it has is not known
        raise
    except BridgeError as error:
        verification.problems[first] = error.what
    for info in manifest.files if manifest is not None else ():
        name = os.path.normpath(info.file)
        verification.files[name] = files.place(name)
        if problem := files.problem(name, info):
            verification.problems[name] = problem
    verification.bytes = sum(files.size(name) for name in verification.files)
    names = set() if path.suffix == ".mxr" else files.names() - verification.files.keys()
    if extra := sorted(itertools.filterfalse(is_for_sessions, names)):
        more = " and more" * (len(extra) > 5)
        verification.notes.append(f"files that do not belong to the bundle: {', '.join(extra[:5])}{more}")
    return verification, manifest


def _fits(verification: Verification, manifest: Manifest, runtime: str | None) -> None:
    if manifest.request.application is not None and is_packed(verification.path):
        verification.notes.append("whether its sessions find their programs is said when it is unpacked")
        return
    if manifest.request.application is not None:
        try:
            check = check_sessions(verification.path, manifest, verification.problems)
            verification.notes += check.notes
            verification.unfit = check.unfit
        except BridgeError as error:
            verification.unfit = str(error)
        return
    if not manifest.on_migraphx:
        return
    try:
        there = runtimes.find(runtime)
        require_compatible(manifest, there, verification.path)
    except BridgeError as error:
        verification.unfit = f"{error.what}; {error.hint}" if error.hint else error.what
        return
    here = gpu_architecture()
    for program in manifest.programs:
        for gpu in program.gpu_programs:
            fits = "the GPU here" if gpu.architecture == here else f"and the GPU here is {here}"
            if not here:
                fits = "and there is no GPU here: that it loads and computes the same there is not known"
            if not gpu.complete:
                fits = "for checking alone: no GPU runs it"
            verification.notes.append(f"{gpu.file.file} is for {gpu.architecture}, {fits}")
    build = manifest.versions.get("runtime")
    if build != there.identity:
        verification.notes.append(f"made by another build of MIGraphX ({build}); the one here is {there.identity}")


class _Folder:
    """The files of a bundle in a folder."""

    def __init__(self, folder: Path, digest: Callable[[Path], str] = file_digest) -> None:
        self._folder, self._digest = folder, digest

    def read(self, name: str) -> bytes | None:
        """Return the content of a manifest; None if there is no such file."""
        try:
            return read_text(self._folder / name)
        except OSError:
            return None

    def problem(self, name: str, info: FileInfo) -> str | None:
        """Return what is wrong with a file; None if it is unchanged."""
        return FileInfo(name, info.bytes, info.sha256).problem(self._folder, self._digest)

    def names(self) -> set[str]:
        return {path.relative_to(self._folder).as_posix() for path in self._folder.rglob("*") if path.is_file()}

    def size(self, name: str) -> int:
        """Return the size of a file; 0 if there is no such file."""
        try:
            return (self._folder / name).stat().st_size
        except OSError:
            return 0

    def place(self, name: str) -> Path:
        return self._folder / name


class _Packed:
    """The files of a bundle in an archive, which is read once, sequentially."""

    def __init__(self, path: Path, countdown: ByteCountdown) -> None:
        self._path = path
        self._files: dict[str, FileInfo] = {}
        self._manifests: dict[str, bytes] = {}
        self.damage: str | None = None
        try:
            with opened(path) as archive:
                for entry in members(archive, path):
                    content = archive.extractfile(entry)
                    assert content is not None
                    digest, parts, size = hashlib.sha256(), [], 0
                    while chunk := content.read(_CHUNK):
                        digest.update(chunk)
                        size += len(chunk)
                        countdown.count(len(chunk))
                        if entry.name.endswith("manifest.json"):
                            parts.append(chunk)
                    self._files[entry.name] = FileInfo(entry.name, size, digest.hexdigest())
                    if parts:
                        self._manifests[entry.name] = b"".join(parts)
        except InputError as error:
            self.damage = error.what

    def read(self, name: str) -> bytes | None:
        return self._manifests.get(name)

    def problem(self, name: str, info: FileInfo) -> str | None:
        there = self._files.get(name)
        return "it is missing" if there is None else info.change(there.bytes, lambda: there.sha256)

    def names(self) -> set[str]:
        return set(self._files)

    def size(self, name: str) -> int:
        return self._files[name].bytes if name in self._files else 0

    def place(self, name: str) -> Path:
        return self._path
