"""Files and folders here and elsewhere: local paths, and URLs of whatever fsspec knows (``s3://bucket/model.onnx``).

A `Remote` has those of `pathlib.Path`'s members that models are looked for with, so that both do in one place. Where
credentials and endpoints come from is the file system's own affair: its environment variables, or fsspec's
configuration, on every machine its own. Nothing is cached: what another machine has just written is there.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

from onnx_bridge.core.errors import InputError, Unreachable

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem  # type: ignore[import-untyped]

_T = TypeVar("_T")
_LOCAL = ("file", "local")
_INSTALL = "pip install onnx-bridge[ray]"


@dataclass(frozen=True, order=True)
class Remote:
    """A file or folder that fsspec reaches.

    Attributes:
        url: where, without a slash at the end.
    """

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str | os.PathLike[str]) -> Remote:
        scheme, _, rest = self.url.partition("://")
        return Remote(f"{scheme}://{posixpath.normpath(posixpath.join(rest, os.fspath(name)))}")

    @property
    def parts(self) -> tuple[str, ...]:
        """The bucket or host with the scheme, and the names below it."""
        scheme, _, rest = self.url.partition("://")
        first, *others = rest.lstrip("/").split("/")
        return f"{scheme}://{first}", *others

    @property
    def name(self) -> str:
        """The last part."""
        return self.parts[-1]

    @property
    def suffix(self) -> str:
        """Of the name."""
        return Path(self.name).suffix

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return Path(self.name).stem

    @property
    def parent(self) -> Remote:
        """The folder that it is in."""
        return Remote(self.url.rpartition("/")[0])

    def with_suffix(self, suffix: str) -> Remote:
        """Of another suffix."""
        return Remote(f"{self.url.removesuffix(self.suffix)}{suffix}")

    def relative_to(self, folder: Remote) -> Path:
        """Its path below a folder."""
        return Path(self.url).relative_to(folder.url)

    def absolute(self) -> Remote:
        """Itself."""
        return self

    def exists(self) -> bool:
        """Whether there is anything."""
        return self._ask(lambda fs, path: bool(fs.exists(path)))

    def is_dir(self) -> bool:
        """Whether there is something below it."""
        return self._ask(lambda fs, path: bool(fs.isdir(path)))

    def glob(self) -> list[Remote]:
        """What it matches, as a pattern."""
        return self._ask(lambda fs, path: sorted(Remote(fs.unstrip_protocol(each)) for each in fs.glob(path)))

    def files(self) -> dict[str, int]:
        """All files below it, by their paths from here, with their sizes; empty where there are none."""

        def listed(fs: AbstractFileSystem, path: str) -> dict[str, int]:
            found = fs.find(path, detail=True)
            return {posixpath.relpath(each, path): int(info["size"] or 0) for each, info in found.items()}

        return {name: size for name, size in self._ask(listed).items() if name != "."}

    def state(self) -> list[str | int] | None:
        """Something short that changes when the file does; None where there is none."""
        with contextlib.suppress(InputError):
            size, tag = self._ask(lambda fs, path: (int(fs.info(path)["size"] or 0), str(fs.ukey(path))))
            return [self.url, size, tag]
        return None

    def read_bytes(self) -> bytes:
        """All of it."""
        return self._ask(lambda fs, path: bytes(fs.cat_file(path)))

    def read_text(self, encoding: str = "utf-8") -> str:
        """All of it, as text."""
        return self.read_bytes().decode(encoding)

    def write_bytes(self, data: bytes) -> None:
        """Put a file in its place, whole."""
        self._ask(lambda fs, path: fs.pipe_file(path, data))

    def read_many(self, names: list[str]) -> dict[str, bytes]:
        """Files below it, at once where the file system can do that; those that are gone are left out."""

        def read(fs: AbstractFileSystem, path: str) -> dict[str, bytes]:
            paths = {f"{path}/{name}": name for name in names}
            found = fs.cat(list(paths), on_error="omit") if paths else {}
            return {paths[each]: bytes(data) for each, data in found.items()}

        return self._ask(read)

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Read it from its beginning to its end."""
        with self._ask(lambda fs, path: fs.open(path, "rb", block_size=1 << 23, cache_type="readahead")) as file:
            yield file

    def get(self, path: Path) -> None:
        """Copy the file here."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._ask(lambda fs, mine: fs.get_file(mine, str(path)))

    def put(self, path: Path) -> None:
        """Copy a file from here."""
        self._ask(lambda fs, mine: (fs.makedirs(posixpath.dirname(mine), exist_ok=True), fs.put_file(str(path), mine)))

    def take(self, other: Remote, names: list[str]) -> None:
        """Copy files below another folder to here, without their passing through this machine where that can be."""

        def copy(fs: AbstractFileSystem, path: str) -> None:
            theirs = fs._strip_protocol(other.url)
            for name in names:
                fs.makedirs(posixpath.dirname(f"{path}/{name}"), exist_ok=True)
            fs.copy([f"{theirs}/{name}" for name in names], [f"{path}/{name}" for name in names])

        if names:
            self._ask(copy)

    def remove(self) -> None:
        """Remove it, with all below it; nothing happens where there is nothing."""

        def removed(fs: AbstractFileSystem, path: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                fs.rm(path, recursive=True)

        self._ask(removed)

    def _ask(self, what: Callable[[AbstractFileSystem, str], _T]) -> _T:
        """Have the file system do something, with its errors as ours."""
        with self.telling():
            fs, path = _opened(self.url)
            return what(fs, path)

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Have the errors of a file system as ours.

        Raises:
            InputError: there is no such file, it may not be read or written, or nothing here knows such URLs.
            Unreachable: anything else: another time it may well go.
        """
        try:
            yield
        except (InputError, Unreachable):
            raise
        except FileNotFoundError:
            raise InputError("there is no such file", where=self.url) from None
        except PermissionError as error:
            raise InputError(f"it may not be read or written: {_said(error)}", where=self.url) from error
        except ImportError as error:
            raise InputError(f"what reads such URLs is not installed: {_said(error)}", where=self.url) from error
        except Exception as error:  # the file systems have no base of errors in common
            raise Unreachable(f"{type(error).__name__}: {_said(error)}", where=self.url) from error


Place = Path | Remote
"""A file or folder, wherever it is."""


def place(text: str | os.PathLike[str] | Remote) -> Place:
    """What a path or a URL names; ``file://`` is a local path."""
    if isinstance(text, Remote):
        return text
    if isinstance(text, os.PathLike):
        return Path(text)
    scheme, separator, rest = text.partition("://")
    if not separator or not scheme.isalnum():
        return Path(text)
    return Path(rest) if scheme in _LOCAL else Remote(text.rstrip("/"))


def _opened(url: str) -> tuple[AbstractFileSystem, str]:
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]
    except ImportError:
        raise InputError("URLs need the extra ray, which is not installed", where=url, hint=_INSTALL) from None
    try:
        fs, path = url_to_fs(url, use_listings_cache=False)
    except ValueError as error:  # nothing knows its scheme
        raise InputError(_said(error), where=url) from error
    return fs, str(path)


def _said(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
