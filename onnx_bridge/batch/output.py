"""The folder that the bundles of a batch go to: a local or a remote one.

A remote folder has no locks, no renaming and no appending, and the next run may happen on another machine. So each
bundle is copied file by file, its manifest last, and the folder is listed once, when the batch starts. The journal is a
local file, with copies in the folder (`onnx_bridge.batch.remote_journal`). One program at a time may write to a folder.
"""

from __future__ import annotations

import abc
import contextlib
import hashlib
import json
import posixpath
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from onnx_bridge.batch import journal as journals
from onnx_bridge.batch.journal import STATE_FOLDER, Journal, Record
from onnx_bridge.batch.remote_journal import RemoteJournal
from onnx_bridge.batch.transfer import bundle_files
from onnx_bridge.bundle.files.verify import intact_manifest
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.bundle.manifest.text import MANIFEST, is_manifest, manifest_path, sealed
from onnx_bridge.conversion.staging import adopt, move_folder, refuse_to_overwrite, staging_folder
from onnx_bridge.core.errors import BridgeError, InputError, Unreachable
from onnx_bridge.core.files.atomic_write import synchronize
from onnx_bridge.core.files.digest import file_digest
from onnx_bridge.core.files.known_digests import State, known_digest, recorded
from onnx_bridge.core.files.locations import Location, RemotePath
from onnx_bridge.core.files.user_cache import cache_dir
from onnx_bridge.core.schema import parse_json

_STAGING = "staging"


class Output(abc.ABC):
    """The folder of the bundles of a batch."""

    location: Location

    @abc.abstractmethod
    def records(self) -> list[Record]:
        """Return the records of its journal, in order."""

    @abc.abstractmethod
    def locked(self) -> AbstractContextManager[Journal]:
        """Lock the folder for this program; raises as `onnx_bridge.batch.journal.locked`."""

    @abc.abstractmethod
    def intact_manifest(self, name: str, key: str, prove: str, whole: bool) -> Manifest | None:
        """Return the manifest of a bundle that has this content key, is intact, and is proven as asked; otherwise None.

        ``whole`` says whether to read also files that have not changed since they were last read.
        """

    @abc.abstractmethod
    def copy_bundle(self, other: str, name: str, source: Location) -> Manifest:
        """Copy a bundle to another name, for another model of the same content; raises InputError."""

    @abc.abstractmethod
    def publish(self, name: str, staged: Location, source: Location) -> None:
        """Move a bundle from its staging folder to its name.

        Raises:
            InputError: other files are in the way, or access is denied.
            Unreachable: the folder, or the staged bundle, cannot be accessed from here.
        """

    @abc.abstractmethod
    def clean_up(self, name: str) -> None:
        """Remove the partial results of a job that was stopped."""

    @abc.abstractmethod
    def log(self, name: str, remote: bool) -> Location:
        """Return the log file of a job; ``remote`` if it runs on another machine."""

    def bundle(self, name: str) -> Location:
        return self.location / name

    def new_staging_folder(self) -> Location:
        """Return a folder, not created yet, to write a bundle to before `publish`."""
        return self.location / STATE_FOLDER / _STAGING / secrets.token_hex(8)


def output_at(out: Location) -> Output:
    """Return the output folder at a location, a remote one with its state in the cache; raises InputError for files."""
    if isinstance(out, Path):
        return LocalOutput(out)
    digest = hashlib.sha256(out.url.encode()).hexdigest()[:16]
    return RemoteOutput(out, cache_dir() / "batches" / digest)


class LocalOutput(Output):
    """A local folder."""

    location: Path

    def __init__(self, out: Path) -> None:
        if out.exists() and not out.is_dir():
            raise InputError("this is a file already", where=str(out), hint="a batch needs a folder")
        self.location = out

    def records(self) -> list[Record]:
        return journals.read(self.location / STATE_FOLDER)[0]

    @contextlib.contextmanager
    def locked(self) -> Iterator[Journal]:
        staging = self.location / STATE_FOLDER / _STAGING
        with journals.locked(self.location) as journal:
            shutil.rmtree(staging, ignore_errors=True)  # of killed programs
            try:
                yield journal
            finally:
                shutil.rmtree(staging, ignore_errors=True)

    def intact_manifest(self, name: str, key: str, prove: str, whole: bool) -> Manifest | None:
        return intact_manifest(self.location / name, key, prove, file_digest if whole else known_digest)

    def copy_bundle(self, other: str, name: str, source: Location) -> Manifest:
        # `adopt` only uses the name of the source
        return adopt(self.location / other, self.location / name, source)  # type: ignore[arg-type]

    def publish(self, name: str, staged: Location, source: Location) -> None:
        bundle = self.location / name
        if not isinstance(staged, Path) or not (staged / MANIFEST).exists():
            hint = "with Ray, the folder of the bundles must be where every node sees it: a shared folder, or a URL"
            raise Unreachable("the node that made the bundle did not write it here", where=str(staged), hint=hint)
        files = [bundle / path.relative_to(staged) for path in staged.rglob("*") if path.is_file()]
        with staging_folder(bundle) as folder:
            original = staged if isinstance(source, RemotePath) else source
            refuse_to_overwrite(files, original, bundle)
            for path in staged.iterdir():
                path.replace(folder / path.name)
            move_folder(bundle, folder)
            synchronize(bundle)
        shutil.rmtree(staged, ignore_errors=True)

    def clean_up(self, name: str) -> None:
        bundle = self.location / name
        for stale in bundle.glob(".converting-*"):
            shutil.rmtree(stale, ignore_errors=True)
        for folder in (bundle, *bundle.relative_to(self.location).parents):
            with contextlib.suppress(OSError):
                (self.location / folder).rmdir()

    def log(self, name: str, remote: bool) -> Path:
        return self.location / STATE_FOLDER / "logs" / f"{name}.log"


class RemoteOutput(Output):
    """A remote folder, whose state is kept in a local one."""

    location: RemotePath

    def __init__(self, out: RemotePath, state: Path) -> None:
        self.location = out
        self._journal = RemoteJournal(out / STATE_FOLDER / "journal", state)
        self._state = state
        self._changed: set[str] = set()

    def records(self) -> list[Record]:
        return self._journal.records()

    @contextlib.contextmanager
    def locked(self) -> Iterator[Journal]:
        """Lock the folder for this program, against others on this machine."""
        staging = self.location / STATE_FOLDER / _STAGING
        with self._journal.locked() as journal:
            staging.remove()  # of killed programs
            yield journal
            staging.remove()

    def intact_manifest(self, name: str, key: str, prove: str, whole: bool) -> Manifest | None:
        with self._sparse_copy(name) as copy:

            def digest(path: Path) -> str:
                inner = posixpath.normpath(path.relative_to(copy).as_posix())
                file = self.location / name / inner
                return file.digest() if whole else recorded(self._files(name)[inner], file.digest)

            return intact_manifest(copy, key, prove, digest)

    def copy_bundle(self, other: str, name: str, source: Location) -> Manifest:
        with self._sparse_copy(other) as copy:
            old = Manifest.read(manifest_path(copy))
        manifest = replace(old, name=source.stem, source={**old.source, "path": str(source)})
        files = [file.file for file in old.program.files]

        def write(bundle: RemotePath) -> None:
            bundle.copy_from(self.location / other, files)
            (bundle / MANIFEST).write_bytes(sealed(manifest.to_json()).encode())

        self._replace(name, [*files, MANIFEST], write)
        return manifest

    def publish(self, name: str, staged: Location, source: Location) -> None:
        """Copy a bundle from its staging folder to its name."""
        assert isinstance(staged, RemotePath)
        # manifests last, that of the whole bundle at the end
        files = sorted(staged.files(), key=lambda file: (posixpath.basename(file) == MANIFEST, file == MANIFEST, file))

        def write(bundle: RemotePath) -> None:
            bundle.copy_from(staged, [file for file in files if posixpath.basename(file) != MANIFEST])
            for file in files:
                if posixpath.basename(file) == MANIFEST:
                    bundle.copy_from(staged, [file])

        self._replace(name, files, write)
        staged.remove()

    def clean_up(self, name: str) -> None:
        """Do nothing: partial results are in staging folders."""

    def log(self, name: str, remote: bool) -> Location:
        """Return the log file of a job: local, unless the job runs on another machine."""
        folder: Location = self.location / STATE_FOLDER if remote else self._state / STATE_FOLDER
        return folder / "logs" / f"{name}.log"

    def _replace(self, name: str, files: Sequence[str], write: Callable[[RemotePath], None]) -> None:
        """Replace the files of an earlier bundle; ``write`` writes the new ones, the manifest last."""
        bundle, plan = self.location / name, self.location / STATE_FOLDER / "publishing" / f"{name}.json"
        self._changed.add(name)
        with self._sparse_copy(name) as copy:
            present = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
            earlier = _earlier_files(copy)
            is_bundle = is_manifest(copy / MANIFEST)
        with contextlib.suppress(InputError):  # there is no plan unless an earlier replacement was interrupted
            earlier |= set(parse_json(plan.read_bytes()))
            is_bundle = True
        if not is_bundle and (clash := sorted(present & set(files))):
            what = "the bundle would overwrite a file that no conversion wrote"
            raise InputError(what, where=str(bundle / clash[0]), hint="give another folder")
        # while there is no manifest, the plan lists the files that belong to the bundle
        plan.write_bytes(json.dumps(sorted(earlier | set(files))).encode())
        (bundle / MANIFEST).remove()
        write(bundle)
        for stale in earlier - set(files):
            (bundle / stale).remove()
        plan.remove()

    @cached_property
    def _listing(self) -> tuple[dict[str, dict[str, State]], dict[str, bytes]]:
        """The folder as the batch found it: for each folder the states of all files below; and all manifests."""
        below: dict[str, dict[str, State]] = {}
        for name, state in self.location.files().items():
            for parent in Path(name).parents:
                below.setdefault(parent.as_posix(), {})[Path(name).relative_to(parent).as_posix()] = state
        return below, self.location.read_many([file for file in below.get(".", ()) if Path(file).name == MANIFEST])

    def _files(self, name: str) -> dict[str, State]:
        """Return the states of the files of a bundle."""
        return (self.location / name).files() if name in self._changed else self._listing[0].get(name, {})

    @contextlib.contextmanager
    def _sparse_copy(self, name: str) -> Iterator[Path]:
        """Copy a bundle sparsely: manifests have their content, other files only their size."""
        files = self._files(name)
        if name in self._changed:
            manifests = (self.location / name).read_many([file for file in files if Path(file).name == MANIFEST])
        else:
            contents = self._listing[1]
            manifests = {file: contents[f"{name}/{file}"] for file in files if f"{name}/{file}" in contents}
        with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
            for file, (_, size, _) in files.items():
                path = Path(folder) / file
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as copy:
                    copy.write(manifests.get(file, b""))
                    copy.truncate(int(size))
            yield Path(folder)


def _earlier_files(bundle: Path) -> set[str]:
    with contextlib.suppress(BridgeError):
        return bundle_files(bundle)
    return set()
