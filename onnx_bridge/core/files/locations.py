"""Locations of files and folders: local paths, and URLs that fsspec opens (``s3://bucket/model.onnx``).

A `RemotePath` has the members of `pathlib.Path` that searching for models needs. Credentials and endpoints are
configured as fsspec's file systems document it, on each machine. Listings are not cached, so that files another machine
has just written are found.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from onnx_bridge.core.errors import InputError, Unreachable

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem  # type: ignore[import-untyped]

_T = TypeVar("_T")
_LOCAL = ("file", "local")
_CHUNK = 1 << 22
_INSTALL = "pip install 'onnx-bridge[ray]'"


@dataclass(frozen=True, order=True)
class RemotePath:
    """A file or folder behind a URL without a trailing slash."""

    url: str

    def __str__(self) -> str:
        return self.url

    to_json = __str__

    def __truediv__(self, name: str | os.PathLike[str]) -> RemotePath:
        scheme, _, rest = self.url.partition("://")
        return RemotePath(f"{scheme}://{posixpath.normpath(posixpath.join(rest, os.fspath(name)))}")

    @property
    def parts(self) -> tuple[str, ...]:
        """The scheme with the bucket or host, and the names below it."""
        scheme, _, rest = self.url.partition("://")
        first, *others = rest.lstrip("/").split("/")
        return f"{scheme}://{first}", *others

    @property
    def name(self) -> str:
        return self.parts[-1]

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    @property
    def stem(self) -> str:
        return Path(self.name).stem

    @property
    def parent(self) -> RemotePath:
        return RemotePath(self.url.rpartition("/")[0])

    def with_suffix(self, suffix: str) -> RemotePath:
        return RemotePath(f"{self.url.removesuffix(self.suffix)}{suffix}")

    def relative_to(self, folder: RemotePath) -> Path:
        """Return the path relative to a folder; raises ValueError if it is not below it."""
        return Path(self.url).relative_to(folder.url)

    def absolute(self) -> RemotePath:
        return self

    def exists(self) -> bool:
        return self._call(lambda fs, path: bool(fs.exists(path)))

    def is_dir(self) -> bool:
        return self._call(lambda fs, path: bool(fs.isdir(path)))

    def glob(self) -> list[RemotePath]:
        """Return the paths that match this one as a pattern, in order."""
        return self._call(lambda fs, path: sorted(RemotePath(fs.unstrip_protocol(match)) for match in fs.glob(path)))

    def files(self) -> dict[str, tuple[str | int, ...]]:
        """Return all files below, by relative path: URL, size in bytes, and a tag that changes with the content."""

        def listed(fs: AbstractFileSystem, path: str) -> dict[str, dict[str, Any]]:
            return {posixpath.relpath(file, path): info for file, info in fs.find(path, detail=True).items()}

        infos = {name: info for name, info in self._call(listed).items() if name != "."}
        return {
            name: (str(self / name), int(info["size"] or 0), hashlib.sha256(str(info).encode()).hexdigest())
            for name, info in infos.items()
        }

    def fingerprint(self) -> list[str | int] | None:
        """Return URL, size and version tag of the file, which change with its content; None if there is no file."""
        with contextlib.suppress(InputError):
            size, tag = self._call(lambda fs, path: (int(fs.info(path)["size"] or 0), str(fs.ukey(path))))
            return [self.url, size, tag]
        return None

    def read_bytes(self) -> bytes:
        return self._call(lambda fs, path: bytes(fs.cat_file(path)))

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def write_bytes(self, data: bytes) -> None:
        """Write the file in one operation."""
        self._call(lambda fs, path: fs.pipe_file(path, data))

    def digest(self) -> str:
        """Return the SHA-256 of the file's content in hexadecimal, which is streamed."""
        hashed = hashlib.sha256()
        with self.translated_errors(), self.open() as file:
            while chunk := file.read(_CHUNK):
                hashed.update(chunk)
        return hashed.hexdigest()

    def read_many(self, names: list[str]) -> dict[str, bytes]:
        """Return the contents of files below, read concurrently if the file system can; missing files are left out."""

        def read(fs: AbstractFileSystem, path: str) -> dict[str, bytes]:
            paths = {f"{path}/{name}": name for name in names}
            contents = fs.cat(list(paths), on_error="omit") if paths else {}
            return {paths[path]: bytes(data) for path, data in contents.items()}

        return self._call(read)

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the file for sequential reading."""
        with self._call(lambda fs, path: fs.open(path, "rb", block_size=1 << 23, cache_type="readahead")) as file:
            yield file

    def download(self, path: Path) -> None:
        """Copy the file to a local path, whose folder is created."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._call(lambda fs, remote: fs.get_file(remote, str(path)))

    def upload(self, path: Path) -> None:
        """Copy a local file to this location."""

        def put(fs: AbstractFileSystem, remote: str) -> None:
            fs.makedirs(posixpath.dirname(remote), exist_ok=True)
            fs.put_file(str(path), remote)

        self._call(put)

    def copy_from(self, other: RemotePath, names: list[str]) -> None:
        """Copy files from another remote folder into this one, on the server if the file system can."""

        def copy(fs: AbstractFileSystem, path: str) -> None:
            source = fs._strip_protocol(other.url)
            for name in names:
                fs.makedirs(posixpath.dirname(f"{path}/{name}"), exist_ok=True)
            fs.copy([f"{source}/{name}" for name in names], [f"{path}/{name}" for name in names])

        if names:
            self._call(copy)

    def remove(self) -> None:
        """Remove the file, or the folder with everything below; missing is not an error."""

        def remove(fs: AbstractFileSystem, path: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                fs.rm(path, recursive=True)

        self._call(remove)

    def _call(self, operation: Callable[[AbstractFileSystem, str], _T]) -> _T:
        with self.translated_errors():
            fs, path = _file_system(self.url)
            return operation(fs, path)

    @contextlib.contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Translate the errors of a file system.

        Raises:
            InputError: the file does not exist, access is denied, or no installed file system handles the URL.
            Unreachable: anything else, which may be transient.
        """
        try:
            yield
        except (InputError, Unreachable):
            raise
        except FileNotFoundError:
            raise InputError("the file does not exist", where=self.url) from None
        except PermissionError as error:
            raise InputError(f"access is denied: {_one_line(error)}", where=self.url) from error
        except ImportError as error:
            raise InputError(f"the file system is not installed: {_one_line(error)}", where=self.url) from error
        except Exception as error:  # file systems have no common base class of errors
            raise Unreachable(f"{type(error).__name__}: {_one_line(error)}", where=self.url) from error


Location = Path | RemotePath


def parse_location(text: str | os.PathLike[str] | RemotePath) -> Location:
    """Return the location that a path or URL names; ``file://`` is a local path. Raises InputError if it names none."""
    if isinstance(text, RemotePath):
        return text
    if isinstance(text, os.PathLike):
        return Path(text)
    if not text:
        raise InputError("a path is empty", hint="it may come from a variable of the shell that is not set")
    if "\0" in text:
        raise InputError("a path has no NUL character", where=text)
    scheme, separator, rest = text.partition("://")
    if not separator or not scheme.isalnum():
        return Path(text)
    return Path(rest) if scheme in _LOCAL else RemotePath(text.rstrip("/"))


def _file_system(url: str) -> tuple[AbstractFileSystem, str]:
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]
    except ImportError:
        raise InputError("URLs need fsspec, which is not installed", where=url, hint=_INSTALL) from None
    try:
        fs, path = url_to_fs(url, use_listings_cache=False)
    except ValueError as error:  # unknown scheme
        raise InputError(_one_line(error), where=url) from error
    return fs, str(path)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
