"""Install and remove private runtimes: MIGraphX from Debian's packages, unpacked into the user's cache without root.

A runtime appears under ``runtimes/`` in the cache folder by one rename, complete and tested, or not at all:

    runtimes/7.1.1-8-sid-ref-1f2e3d4c5b/   usr/lib/… and runtime.json
    runtimes/current                       link to the last installed one
    runtimes/.lock                         held during changes
    runtimes/.new-…                        work in progress; the next process removes what a killed one left
"""

from __future__ import annotations

import errno
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from onnx_bridge.core.errors import InputError, RuntimeFailure, RuntimeNotFound, nearest
from onnx_bridge.core.files.digest import file_digest
from onnx_bridge.core.files.user_cache import cache_dir
from onnx_bridge.core.system_tools import last_error, space_needed
from onnx_bridge.migraphx.install.apt import ORIGIN, Archive
from onnx_bridge.migraphx.install.debian_packages import ROOTS, Deb, needed, unpack
from onnx_bridge.migraphx.install_record import InstallRecord, InstallTarget, Package, identity_of, libraries
from onnx_bridge.migraphx.runtime import Runtime, find
from passes.core.text import counted

Progress = Callable[[str], None]

_NEW = ".new-"
_FROM = "from"


def install(
    *,
    target: InstallTarget = "ref",
    source: Path | None = None,
    suite: str = "sid",
    update: bool = False,
    progress: Progress | None = None,
) -> Runtime:
    """Install a private runtime, unless it is installed, and make it the current one.

    Args:
        target: ``ref`` (30 MB to download, 0.1 GB on disk), ``gpu-compiler`` to compile for GPUs without one (82 MB,
            0.3 GB), or ``gpu`` with all libraries for AMD GPUs (0.5 GB, 5.6 GB).
        source: a folder of .deb files (of `download`) to install from, instead of the network; they are not signed.
        suite: the suite of Debian's archive.
        update: look for newer packages even if the suite is installed.
        progress: called with each step.

    Raises:
        InputError: the folder, a package or the suite's name is invalid.
        RuntimeNotFound: this machine, its network or the suite cannot provide it.
        RuntimeFailure: the disk is full, or the unpacked libraries do not load.
    """
    report = progress or _ignore
    check_machine()
    if source is not None and (update or suite != "sid"):
        what = "a folder has the packages that it has: a suite, or an update, has no effect on them"
        raise InputError(what, where=str(source), hint="leave one of the two out")
    label: str = _FROM if source else suite
    with changing(report) as runtimes:
        if source is None and not update:
            for there, record in _recorded(runtimes):
                if record.suite == suite and record.serves(target):
                    report(f"already installed: {there.name}")
                    return _made_current(there)
        with new_folder(runtimes) as new:
            folder = source or new / "debs"
            if source is None:
                report(f"reading Debian's package lists of {suite}")
                archive = Archive(new / "apt", folder, suite, target)
                versions, size = archive.plan()
                if existing := _with(runtimes, label, identity_of(versions.items())):
                    report(f"already installed, and the newest: {existing.name}")
                    return _made_current(existing)
                space_needed(runtimes, size)
                report(f"downloading {counted(len(versions), 'package')}")
                archive.download()
            debs = needed(folder, target)
            if existing := _with(runtimes, label, _identity(debs)):
                report(f"already installed: {existing.name}")
                return _made_current(existing)
            space_needed(runtimes, sum(deb.installed_size for deb in debs))
            report(f"unpacking {counted(len(debs), 'package')}")
            unpacked = new / "runtime"
            unpacked.mkdir()
            unpack(debs, unpacked, target)
            report("testing that it loads")
            ref = _identity(needed(folder, "ref"))
            _record(unpacked, debs, label, str(source.resolve()) if source else ORIGIN, target, ref)
            version = next(deb.version for deb in debs if deb.name == ROOTS[0])
            return _made_current(_moved(unpacked, runtimes / f"{version}-{label}-{target}-{_identity(debs)}"))


def download(
    folder: Path, *, target: InstallTarget = "ref", suite: str = "sid", progress: Progress | None = None
) -> list[Path]:
    """Download the packages for ``install(source=folder)`` on a machine without network.

    Raises:
        InputError: the suite's name is invalid.
        RuntimeNotFound: this machine, its network or the suite cannot provide them.
        RuntimeFailure: the disk is full.
    """
    report = progress or _ignore
    with _disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=_NEW) as temporary:
            new = Path(temporary).absolute()
            report(f"reading Debian's package lists of {suite}")
            archive = Archive(new / "apt", new / "debs", suite, target)
            versions, size = archive.plan()
            space_needed(folder, size)
            report(f"downloading {counted(len(versions), 'package')}")
            archive.download()
            return sorted(deb.path.rename(folder / deb.path.name) for deb in needed(new / "debs", target))


def remove(name: str | None = None, *, progress: Progress | None = None) -> list[Path]:
    """Remove a private runtime, or all of them, and what killed installations left behind.

    Args:
        name: the name of its folder; default: all.
        progress: called with each step.

    Returns:
        The removed folders.

    Raises:
        InputError: there is none of that name.
    """
    report = progress or _ignore
    if not (cache_dir() / "runtimes").is_dir() and name is None:
        return []
    with changing(report) as runtimes:
        there = {path.name: path for path in sorted(runtimes.glob("[!.]*")) if not path.is_symlink()}
        if name is not None and name not in there:
            hint = nearest(name, there) or "onnx-bridge runtime list shows them"
            raise InputError("the private runtime does not exist", where=name, hint=hint)
        gone = [there[name]] if name else list(there.values())
        for path in gone:
            report(f"removing {path.name}")
            with new_folder(runtimes) as trash:
                path.rename(trash / path.name)
        link = runtimes / "current"
        if link.is_symlink() and not link.exists():
            link.unlink()
        return gone


def check_machine() -> None:
    """Check that this machine can run Debian's packages for x86-64; raises RuntimeNotFound if it cannot."""
    system, machine, libc = sys.platform, platform.machine(), platform.libc_ver()[0]
    if (system, machine) != ("linux", "x86_64"):
        hint = "use such a machine, container or virtual machine"
        raise RuntimeNotFound("the private runtime is for Linux on x86_64", where=f"{machine} {system}", hint=hint)
    if libc != "glibc":
        raise RuntimeNotFound(
            "the private runtime needs a Python that is built for glibc",
            where=sys.executable,
            hint="this one is probably built for musl (Alpine); use the Python of another distribution",
        )


def load_error(runtime: Runtime) -> str | None:
    """Return the error of the dynamic loader for a runtime and its targets; None if everything loads.

    The libraries are loaded in another process, and nothing in them is called: neither a GPU nor a model is needed.
    """
    libraries = [str(runtime.library or runtime.path)]
    for target in runtime.targets:
        library_files = [lib for folder in runtime.library_path for lib in folder.glob(f"libmigraphx_{target}.so*")]
        libraries.append(str(sorted(library_files)[0]))
    if runtime.compiles_kernels and "gpu" not in runtime.targets:
        libraries += ["libhiprtc.so.6", "libamd_comgr.so.3"]
    script = "import ctypes, sys\nfor name in sys.argv[1:]: ctypes.CDLL(name)"
    command = runtime.command(Path(sys.executable), ["-I", "-c", script, *libraries])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode < 0:
        return f"the process was ended by {signal.Signals(-done.returncode).name}"
    return last_error(done.stderr) if done.returncode else None


def _ignore(_: str) -> None:
    """Do nothing."""


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Turn the operating system's errors into errors about ``folder``."""
    hint = "choose another place with the environment variable ONNX_BRIDGE_CACHE"
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what = "the disk is full, and partial files were removed"
            raise RuntimeFailure(what, where=str(folder), hint=f"free some space, or {hint}") from error
        raise RuntimeFailure(f"this folder cannot be used: {error}", where=str(folder), hint=hint) from error


@contextmanager
def changing(report: Progress) -> Iterator[Path]:
    """Lock the folder of private runtimes, and remove what killed processes left in it."""
    runtimes = cache_dir() / "runtimes"
    with _disk_errors(runtimes):
        runtimes.mkdir(parents=True, exist_ok=True)
        lock = FileLock(runtimes / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            report("waiting for another installation to finish")
            lock.acquire()
        try:
            for left in runtimes.glob(f"{_NEW}*"):
                _sweep(left)
            yield runtimes
        finally:
            lock.release()


def _sweep(left: Path) -> None:
    """Remove the remains of a killed process, even while a tool that it started still writes to them."""
    for _ in range(20):
        shutil.rmtree(left, ignore_errors=True)
        if not left.is_dir():
            break
        time.sleep(0.1)


@contextmanager
def new_folder(runtimes: Path) -> Iterator[Path]:
    """Yield a folder for work in progress, which is removed afterwards with what is left in it."""
    with tempfile.TemporaryDirectory(dir=runtimes, prefix=_NEW, ignore_cleanup_errors=True) as path:
        yield Path(path)


def _identity(debs: list[Deb]) -> str:
    return identity_of((deb.name, deb.version) for deb in debs)


def _recorded(runtimes: Path) -> list[tuple[Path, InstallRecord]]:
    """Return the installed runtimes, newest first, without those with missing or truncated files."""
    read = ((path, InstallRecord.read(path)) for path in runtimes.glob("[!.]*") if not path.is_symlink())
    whole = [(path, record) for path, record in read if record and not record.damage(path)]
    return sorted(whole, key=lambda installed: installed[1].date, reverse=True)


def _with(runtimes: Path, suite: str, identity: str) -> Path | None:
    """Return the installed runtime of a suite and exactly these packages."""
    for path, record in _recorded(runtimes):
        if (record.suite, record.identity) == (suite, identity):
            return path
    return None


def _record(unpacked: Path, debs: list[Deb], suite: str, origin: str, target: InstallTarget, ref: str) -> None:
    """Test the unpacked runtime and write its record; raises RuntimeFailure if it does not load."""
    runtime = find(str(unpacked))
    provides = (*runtime.targets, *(["gpu-compiler"] if runtime.compiles_kernels else []))
    if (error := load_error(runtime)) or target not in provides:
        raise RuntimeFailure(
            f"the unpacked libraries do not load: {error or f'the target {target} is missing'}",
            where=suite if suite != _FROM else origin,
            hint="the packages are incompatible: all of them must come from the same suite, sid",
        )
    InstallRecord(
        suite=suite,
        origin=origin,
        target=target,
        date=datetime.now(UTC).isoformat(),
        identity=_identity(debs),
        packages=tuple(Package(deb.name, deb.version, file_digest(deb.path)) for deb in debs),
        files=libraries(unpacked, runtime.library_path),
        ref_identity=ref,
    ).write(unpacked)


def _moved(unpacked: Path, place: Path) -> Path:
    """Move a finished runtime to its place; a damaged one there is replaced."""
    if place.exists():
        place.rename(unpacked.parent / "damaged")
    return unpacked.rename(place)


def _made_current(place: Path) -> Runtime:
    """Point the link ``current`` to a runtime, and return it."""
    link = place.parent / f"{_NEW}current"
    link.unlink(missing_ok=True)
    link.symlink_to(place.name)
    link.replace(place.parent / "current")
    return find(str(place))
