"""Where the bundles of a batch go: a folder here, or one elsewhere.

Elsewhere nothing can be locked, renamed or appended to, and the machine may not be this one the next time. So each
bundle is copied to its place file by file with its manifest last, its truth; what is there at the start of a batch is
listed once. The journal is a file here, that the folder has copies of (`onnx_bridge.batch.journal_copies`).
"""

from __future__ import annotations

import abc
import contextlib
import hashlib
import json
import os
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
from onnx_bridge.batch.examine import whole
from onnx_bridge.batch.journal import STATE, Journal, Record
from onnx_bridge.batch.journal_copies import Copies
from onnx_bridge.batch.transfer import MANIFEST, listed
from onnx_bridge.bundle.buckets import BucketsManifest
from onnx_bridge.bundle.bundle import manifest_path
from onnx_bridge.bundle.manifest import Manifest, is_manifest
from onnx_bridge.conversion.publish import adopt, aside, keep_off
from onnx_bridge.core.atomic_write import synchronize
from onnx_bridge.core.errors import BridgeError, InputError, Unreachable
from onnx_bridge.core.locations import Location, RemotePath, parse_location
from onnx_bridge.core.user_cache import cache_dir

_TAKEN = "there is a file already that no conversion made, and that the bundle would overwrite"


class Output(abc.ABC):
    """The folder of a batch.

    Attributes:
        place: where it is.
    """

    place: Location

    @abc.abstractmethod
    def records(self) -> list[Record]:
        """What its journal says, in order."""

    @abc.abstractmethod
    def held(self) -> AbstractContextManager[Journal]:
        """Hold it, for this program alone; raises as `onnx_bridge.batch.journal.held`."""

    @abc.abstractmethod
    def whole(self, name: str, key: str) -> Manifest | BucketsManifest | None:
        """The manifest of the bundle of a name, if it has a content key, and all of its files are there."""

    @abc.abstractmethod
    def reuse(self, other: str, name: str, source: Location) -> Manifest:
        """Have a bundle under another name too, as that of another file; raises InputError."""

    @abc.abstractmethod
    def publish(self, name: str, made: Location, source: Location) -> None:
        """Move a bundle that was laid down aside to its place.

        Raises:
            InputError: there is something else, or it may not be written there.
            Unreachable: the place, or the bundle, cannot be seen from here.
        """

    @abc.abstractmethod
    def sweep(self, name: str) -> None:
        """Take away what a job that was stopped had begun."""

    @abc.abstractmethod
    def log(self, name: str, far: bool) -> Location:
        """Where what a job prints goes to; ``far``: on another machine."""

    def bundle(self, name: str) -> Location:
        """Where the bundle of a name is."""
        return self.place / name

    def aside(self) -> Location:
        """A new folder for a bundle that is laid down for `publish`."""
        return self.place / STATE / "aside" / secrets.token_hex(8)


def output_at(out: str | os.PathLike[str] | RemotePath) -> Output:
    """The folder that a path or a URL names; what concerns one elsewhere is kept in the cache folder.

    Raises:
        InputError: it is a file.
    """
    where = parse_location(out)
    if isinstance(where, Path):
        return Folder(where)
    digest = hashlib.sha256(where.url.encode()).hexdigest()[:16]
    return Elsewhere(where, cache_dir() / "batches" / digest)


class Folder(Output):
    """A folder here."""

    place: Path

    def __init__(self, out: Path) -> None:
        if out.exists() and not out.is_dir():
            raise InputError("this is a file already", where=str(out), hint="many models need a folder")
        self.place = out

    def records(self) -> list[Record]:
        """What its journal says, in order."""
        return journals.read(self.place / STATE)[0]

    @contextlib.contextmanager
    def held(self) -> Iterator[Journal]:
        """Hold it, for this program alone."""
        with journals.held(self.place) as journal:
            shutil.rmtree(self.place / STATE / "aside", ignore_errors=True)  # of programs that were killed
            try:
                yield journal
            finally:
                shutil.rmtree(self.place / STATE / "aside", ignore_errors=True)

    def whole(self, name: str, key: str) -> Manifest | BucketsManifest | None:
        """The manifest of the bundle of a name, if it has a content key, and all of its files are there."""
        return whole(self.place / name, key)

    def reuse(self, other: str, name: str, source: Location) -> Manifest:
        """Have a bundle under another name too, as that of another file."""
        return adopt(self.place / other, self.place / name, source)  # type: ignore[arg-type]  # it is only named

    def publish(self, name: str, made: Location, source: Location) -> None:
        """Move a bundle that was laid down aside to its place."""
        home = self.place / name
        if not isinstance(made, Path) or not (made / MANIFEST).exists():
            hint = "with --engine ray, OUT must be where every node sees it: a shared folder, or a URL"
            raise Unreachable("the node that made the bundle did not write it here", where=str(made), hint=hint)
        files = _ordered(each.relative_to(made).as_posix() for each in made.rglob("*") if each.is_file())
        with aside(home):
            keep_off([home / each for each in files], made if isinstance(source, RemotePath) else source, home)
            for each in _before(home) - {MANIFEST}:
                (home / each).unlink(missing_ok=True)
            for each in (MANIFEST, *files[:-1]):  # a manifest always says whose this is
                (home / each).parent.mkdir(parents=True, exist_ok=True)
                (made / each).replace(home / each)
            synchronize(home)
        shutil.rmtree(made, ignore_errors=True)

    def sweep(self, name: str) -> None:
        """Take away what a job that was stopped had begun."""
        bundle = self.place / name
        for stale in bundle.glob(".converting-*"):
            shutil.rmtree(stale, ignore_errors=True)
        for folder in (bundle, *bundle.relative_to(self.place).parents):
            with contextlib.suppress(OSError):
                (self.place / folder).rmdir()

    def log(self, name: str, far: bool) -> Path:
        """Where what a job prints goes to."""
        return self.place / STATE / "logs" / f"{name}.log"


class Elsewhere(Output):
    """A folder that fsspec reaches.

    Args:
        out: which.
        state: the folder here for what concerns it.
    """

    place: RemotePath

    def __init__(self, out: RemotePath, state: Path) -> None:
        self.place = out
        self._copies = Copies(out / STATE, state)
        self._state = state
        self._mine: set[str] = set()

    def records(self) -> list[Record]:
        """What its journal says, in order."""
        return self._copies.records()

    @contextlib.contextmanager
    def held(self) -> Iterator[Journal]:
        """Hold it, for this program alone."""
        with self._copies.held() as journal:
            (self.place / STATE / "aside").remove()  # of programs that were killed
            yield journal
            (self.place / STATE / "aside").remove()

    def whole(self, name: str, key: str) -> Manifest | BucketsManifest | None:
        """The manifest of the bundle of a name, if it has a content key, and all of its files are there."""
        with self._shadow(name) as shadow:
            return whole(shadow, key)

    def reuse(self, other: str, name: str, source: Location) -> Manifest:
        """Have a bundle under another name too, as that of another file."""
        with self._shadow(other) as shadow:
            old = Manifest.read(manifest_path(shadow))
        manifest = replace(old, name=source.stem, source={**old.source, "path": str(source)})
        files = [each.file for each in old.files]

        def write(home: RemotePath) -> None:
            home.copy_from(self.place / other, files)
            (home / MANIFEST).write_bytes(f"{json.dumps(manifest.to_json(), indent=2)}\n".encode())

        self._replace(name, [*files, MANIFEST], write)
        return manifest

    def publish(self, name: str, made: Location, source: Location) -> None:
        """Move a bundle that was laid down aside to its place."""
        assert isinstance(made, RemotePath)
        files = _ordered(made.files())

        def write(home: RemotePath) -> None:
            home.copy_from(made, [each for each in files if posixpath.basename(each) != MANIFEST])
            for each in files:
                if posixpath.basename(each) == MANIFEST:
                    home.copy_from(made, [each])

        self._replace(name, files, write)
        made.remove()

    def sweep(self, name: str) -> None:
        """Nothing: what was begun is aside."""

    def log(self, name: str, far: bool) -> Location:
        """Where what a job prints goes to."""
        folder: Location = self.place / STATE if far else self._state / STATE
        return folder / "logs" / f"{name}.log"

    def _replace(self, name: str, files: Sequence[str], write: Callable[[RemotePath], None]) -> None:
        """Put files in the place of those of an earlier bundle."""
        self._copies.check()
        home, begun = self.place / name, self.place / STATE / "publishing" / f"{name}.json"
        self._mine.add(name)
        with self._shadow(name) as shadow:
            there = {each.relative_to(shadow).as_posix() for each in shadow.rglob("*") if each.is_file()}
            before = _before(shadow)
            ours = is_manifest(shadow / MANIFEST)
        with contextlib.suppress(InputError):  # there is none where nothing was cut off
            before |= set(json.loads(begun.read_bytes()))
            ours = True
        if not ours and (clash := sorted(there & set(files))):
            raise InputError(_TAKEN, where=str(home / clash[0]), hint="give another folder")
        begun.write_bytes(json.dumps(sorted(before | set(files))).encode())  # without a manifest, it says whose this is
        (home / MANIFEST).remove()
        write(home)
        for stale in before - set(files):
            (home / stale).remove()
        begun.remove()

    @cached_property
    def _found(self) -> tuple[dict[str, dict[str, int]], dict[str, bytes]]:
        """What was there at first: for each folder the files below it, with their sizes; and all manifests."""
        below: dict[str, dict[str, int]] = {}
        for name, size in self.place.files().items():
            for parent in Path(name).parents:
                below.setdefault(parent.as_posix(), {})[Path(name).relative_to(parent).as_posix()] = size
        return below, self.place.read_many([each for each in below.get(".", ()) if Path(each).name == MANIFEST])

    @contextlib.contextmanager
    def _shadow(self, name: str) -> Iterator[Path]:
        """A bundle as a folder here, in which only the manifests have content; the others have their size."""
        if name in self._mine:
            files = (self.place / name).files()
            manifests = (self.place / name).read_many([each for each in files if Path(each).name == MANIFEST])
        else:
            below, all_ = self._found
            files = below.get(name, {})
            manifests = {each: all_[f"{name}/{each}"] for each in files if f"{name}/{each}" in all_}
        with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
            for each, size in files.items():
                path = Path(folder) / each
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    file.write(manifests.get(each, b""))
                    file.truncate(size)
            yield Path(folder)


def _before(bundle: Path) -> set[str]:
    """The files of a bundle that is there already."""
    with contextlib.suppress(BridgeError):
        return listed(bundle)
    return set()


def _ordered(names: Iterator[str] | dict[str, int]) -> list[str]:
    """The files of a bundle in the order in which they are published: manifests last, that of the whole behind all."""
    return sorted(names, key=lambda each: (posixpath.basename(each) == MANIFEST, each == MANIFEST, each))
