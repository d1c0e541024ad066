"""Installations of MIGraphX: finding them, and the command line that starts a process with one."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from onnx_bridge.core.errors import RuntimeNotFound, nearest
from onnx_bridge.core.files.user_cache import cache_dir
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.migraphx.c_api import LIBRARY
from onnx_bridge.migraphx.install_record import InstallRecord
from onnx_bridge.migraphx.kinds import KINDS, VARIABLE, Kind
from passes.core.doubts import Doubts, cached

_PRIVATE_LIBRARIES = Path("usr/lib/x86_64-linux-gnu")
_LOADER = "ld-linux-x86-64.so.2"
_INSTALL = "install one with: onnx-bridge runtime install"


@dataclass(frozen=True)
class Runtime(JsonRecord):
    """One installation of MIGraphX.

    Attributes:
        kind: ``module`` (the official Python module), ``system`` (a system's libmigraphx_c), ``private`` (what
            ``onnx-bridge runtime install`` unpacked).
        path: the module file, the library file, or the private runtime's root folder.
        origin: how it was found, as text ("ONNX_BRIDGE_RUNTIME", "/opt/rocm-7.1/lib", …).
        version: MIGraphX's version ("2.14.0").
        targets: the targets whose libraries are there; ``gpu`` does not imply that there is a GPU.
        identity: a cache key, which changes when the installation does (version and checksums).
        library_path: folders for the dynamic loader.
        loader: the dynamic loader to start the worker with, if the system's is too old for the libraries.
    """

    in_json = ("compiles_kernels",)

    kind: Kind
    path: Path
    origin: str
    version: str
    targets: tuple[str, ...]
    identity: str
    library_path: tuple[Path, ...] = field(default=(), repr=False)
    loader: Path | None = field(default=None, repr=False)

    @property
    def release(self) -> tuple[int, ...]:
        """Its version's major and minor number."""
        return tuple(int(part) for part in self.version.split(".")[:2] if part.isdigit())

    @property
    def library(self) -> Path | None:
        """The C library to load with ctypes; None for the official module."""
        if self.kind == "module":
            return None
        return self.path / _PRIVATE_LIBRARIES / LIBRARY if self.kind == "private" else self.path

    @property
    def core(self) -> Path | None:
        """The core library, which the module and the C library load."""
        return next((file for folder in self.library_path for file in sorted(folder.glob("libmigraphx.so.*"))), None)

    def by_c_library(self) -> Runtime:
        """Return this runtime by its C library, which the official module has beside it.

        Raises RuntimeNotFound if it has none.
        """
        if self.kind != "module":
            return self
        for folder in self.library_path:
            if (file := folder / LIBRARY).is_file():
                return replace(self, kind="system", path=file, identity=f"{self.identity}-c")
        raise RuntimeNotFound(f"this runtime has no {LIBRARY} beside its module", where=str(self.path))

    @property
    def gpu_libraries(self) -> tuple[Path, ...]:
        """The two libraries of the target gpu, with or without what they need; fewer if they are not there."""
        patterns = "libmigraphx_gpu.so.*", "libmigraphx_device.so.*"
        there = ([*folder.glob(pattern)] for pattern in patterns for folder in self.library_path)
        return tuple(min(files) for files in there if files)

    @property
    def compiles_kernels(self) -> bool:
        """True if it has all that compiling a GPU's kernels needs, which is less than what running them needs."""
        hiprtc = any(any(folder.glob("libhiprtc.so*")) for folder in self.library_path)
        return len(self.gpu_libraries) == 2 and hiprtc

    def command(self, python: Path, arguments: list[str]) -> list[str]:
        """Return the command line that runs ``python arguments…`` so that this runtime's libraries load in it.

        Children that the process starts by ``sys.executable`` run under the system's own loader again.
        """
        if self.loader is None:
            return [str(python), *arguments]
        # The interpreter's own libraries are found relative to its real path, its virtual environment by argv[0].
        inherited = os.environ.get("LD_LIBRARY_PATH", "").split(":")
        folders = [*map(str, self.library_path), *filter(None, inherited)]
        loader = [str(self.loader), "--argv0", str(python), "--library-path", ":".join(folders)]
        return [*loader, str(python.resolve()), *arguments]


@dataclass(frozen=True)
class SearchPlaces:
    """The places where `find` looks for runtimes; ``search_path`` is Python's."""

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    search_path: Sequence[str] = field(default_factory=lambda: tuple(sys.path))
    root: Path = Path("/")

    def rocm_libraries(self) -> list[Path]:
        """Return ROCm's library folders: /opt/rocm, then the newest first."""

        def version(folder: Path) -> list[int]:
            return [int(number) for number in re.findall(r"\d+", folder.name)]

        others = sorted((self.root / "opt").glob("rocm-*"), key=version, reverse=True)
        return [folder / "lib" for folder in (self.root / "opt/rocm", *others)]

    def library_folders(self) -> list[Path]:
        """Return the folders of the system's libraries, in the order of the dynamic loader."""
        preferred = self.environment.get("LD_LIBRARY_PATH", "").split(":")
        usual = ("usr/local/lib", "usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib")
        return [
            *map(Path, filter(None, preferred)),
            *(path.parent for path in self._cached()),
            *self.rocm_libraries(),
            *(self.root / folder for folder in usual),
        ]

    def _cached(self) -> list[Path]:
        """Return the C library's paths in the dynamic loader's cache."""
        cache = self.root / "etc/ld.so.cache"
        search = f"{self.environment.get('PATH', '')}:/usr/sbin:/sbin"
        program = shutil.which("ldconfig", path=search)
        if program is None or not cache.is_file():
            return []
        listed = _listed(program, cache, cache.stat().st_mtime_ns)
        return [Path(path) for path in re.findall(rf"{re.escape(LIBRARY)} .*=> (.+)", listed)]


@cached(8)
def _listed(program: str, cache: Path, _changed: int) -> str:
    """Return the output of ldconfig for a cache."""
    done = subprocess.run([program, "-p", "-C", str(cache)], capture_output=True, text=True, check=False)
    if done.returncode:
        Doubts.add()
    return done.stdout


@dataclass(frozen=True)
class Choice:
    """A runtime, whether it is the one that `find` returns, and the reason."""

    runtime: Runtime
    used: bool
    why: str


def find(which: str | None = None, places: SearchPlaces | None = None) -> Runtime:
    """Return the runtime to use: the first of `installed`, or the one that ``which`` names.

    Args:
        which: a path (module, library, private root) or a kind; default: the environment's
            ``ONNX_BRIDGE_RUNTIME``, else the first of `installed`.

    Raises:
        RuntimeNotFound: there is none, or not that one.
    """
    places = places or SearchPlaces()
    if which is not None:
        return _named(which, which, places)
    if named := places.environment.get(VARIABLE):
        return _named(named, VARIABLE, places)
    for runtime in _search(places):
        return runtime
    raise RuntimeNotFound("there is no MIGraphX on this machine", hint=_INSTALL)


def installed(places: SearchPlaces | None = None) -> list[Runtime]:
    """Return all runtimes on this machine, in order of precedence."""
    places = places or SearchPlaces()
    runtimes = list(_search(places))
    if named := places.environment.get(VARIABLE):
        with suppress(RuntimeNotFound):  # `find` says so
            runtimes.insert(0, _named(named, VARIABLE, places))
    unique: dict[Path, Runtime] = {}
    for runtime in runtimes:
        unique.setdefault(runtime.path.resolve(), runtime)
    return list(unique.values())


def choices(places: SearchPlaces | None = None) -> list[Choice]:
    """Return all of `installed`, with the reason why each is used or not."""
    places = places or SearchPlaces()
    everything = installed(places)
    named = places.environment.get(VARIABLE)
    try:
        used = find(places=places)
    except RuntimeNotFound as error:
        return [Choice(runtime, False, str(error)) for runtime in everything]
    why = f"{VARIABLE} is {named}" if named else "the order is: module, system, private (the last installed)"
    return [
        Choice(runtime, runtime == used, why if runtime == used else f"{used.path} comes first: {why}")
        for runtime in everything
    ]


def fits(module: Path) -> bool:
    """Return whether a file is named as MIGraphX's Python module for this interpreter."""
    return any(module.name == f"migraphx{suffix}" for suffix in EXTENSION_SUFFIXES)


def _search(places: SearchPlaces) -> Iterator[Runtime]:
    """Yield every runtime in the usual places, twice if it is found in two ways."""
    for folder in (*map(Path, places.search_path), *places.rocm_libraries()):
        # by file name: PyPI's placeholder package migraphx has no such file
        for module in sorted(folder.glob("migraphx*.so")):
            if fits(module):
                yield _of_file("module", module, str(folder))
    for folder in places.library_folders():
        if (folder / LIBRARY).is_file():
            yield _of_file("system", folder / LIBRARY, str(folder))
    for root in _private_roots(cache_dir(places.environment) / "runtimes"):
        if unpacked := _of_root(root):
            yield unpacked


def _private_roots(folder: Path) -> list[Path]:
    """Return the installations in ``folder``: the current one, then the newest first."""
    records = {path: InstallRecord.read(path) for path in folder.glob("[!.]*") if not path.is_symlink()}
    dated = {path: record.date for path, record in records.items() if record}
    current = (folder / "current").resolve()
    return sorted(dated, key=lambda path: (path.resolve() == current, dated[path]), reverse=True)


def _named(name: str, by: str, places: SearchPlaces) -> Runtime:
    """Return the runtime of a kind or a path; ``by`` is its name in error messages and `origin`."""
    where, origin = (name, None) if by == name else (f"{by}={name}", by)
    if name in KINDS:
        for runtime in _search(places):
            if runtime.kind == name:
                return runtime
        raise RuntimeNotFound(f"there is no {name} runtime on this machine", where=where, hint=_INSTALL)
    path = Path(name).expanduser().absolute()
    if not path.exists():
        hint = nearest(name, KINDS) or f"give a path, or one of: {', '.join(KINDS)}"
        raise RuntimeNotFound("the file or folder does not exist", where=where, hint=hint)
    if path.is_dir():
        if unpacked := _of_root(path, origin):
            return unpacked
        inside = (file for folder in (path, path / "lib") for file in sorted(folder.glob("*migraphx*.so*")))
        candidates = [file for file in inside if fits(file) or file.name == LIBRARY]
        candidates.sort(key=lambda file: not fits(file))  # the official module before the C library
    else:
        candidates = [path]
    for file in candidates:
        if fits(file):
            return _of_file("module", file, by)
        if file.name.startswith("libmigraphx_c.so"):
            root = Path(*file.parts[:-4])
            private = root != places.root and root / _PRIVATE_LIBRARIES == file.parent
            return (_of_root(root, origin) if private else None) or _of_file("system", file, by)
    raise RuntimeNotFound(
        f"the path is neither MIGraphX's Python module for this Python (migraphx{EXTENSION_SUFFIXES[0]}), "
        f"nor {LIBRARY}, nor a folder with one of them, nor a private runtime",
        where=where,
        hint=_INSTALL,
    )


def _of_root(root: Path, origin: str | None = None) -> Runtime | None:
    """Return the private runtime in ``root``, installed or unpacked by hand; None without one."""
    folder = root / _PRIVATE_LIBRARIES
    library, loader = folder / LIBRARY, folder / _LOADER
    if not library.is_file() or not loader.is_file():
        return None
    folders = (folder, folder / "migraphx/lib")
    targets = _targets(folders)
    if not any(folder.glob("libamdhip64.so*")):  # unpacked without the dependencies of the GPU's library
        targets = tuple(name for name in targets if name != "gpu")
    record = InstallRecord.read(root)
    version = _version(library)
    identity = f"{version}-{record.ref_identity or record.identity}" if record else _identity(version, folders)
    source = f"onnx-bridge runtime install ({record.suite})" if record else str(root)
    return Runtime("private", root, origin or source, version, targets, identity, folders, loader)


def _of_file(kind: Kind, file: Path, origin: str) -> Runtime:
    beside = dict.fromkeys((file.parent, file.resolve().parent))
    folders = tuple(folder / below for folder in beside for below in ("", "migraphx/lib"))
    version = _version(file)
    identity = _identity(version, (*folders, file))
    return Runtime(kind, file, origin, version, _targets(folders), identity, folders)


def _targets(folders: Iterable[Path]) -> tuple[str, ...]:
    listed = list(folders)
    return tuple(t for t in ("ref", "gpu") if any(any(f.glob(f"libmigraphx_{t}.so*")) for f in listed))


def _version(file: Path) -> str:
    """Return the version by the core library that ``file`` is linked to: libmigraphx.so.2014000 is 2.14.0."""
    linked = re.search(rb"libmigraphx\.so\.(\d{7,})\0", file.read_bytes())
    if linked is None:
        return "unknown"
    major, rest = divmod(int(linked.group(1)), 1_000_000)
    return f"{major}.{rest // 1000}.{rest % 1000}"


def _identity(version: str, places: Iterable[Path]) -> str:
    """Return a text that changes with MIGraphX's libraries in ``places`` (folders or files)."""
    files = [file for place in places for file in (place.glob("libmigraphx*.so*") if place.is_dir() else [place])]
    states = sorted({(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file()})
    return f"{version}-{hashlib.sha256(repr(states).encode()).hexdigest()[:10]}"
