"""The state of MIGraphX on this machine: a list of checks, each with its result and what to do about it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onnx_bridge.core.errors import BridgeError
from onnx_bridge.core.files.user_cache import cache_dir
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.core.system_tools import tool
from onnx_bridge.migraphx.install.apt import keyring, mirrors
from onnx_bridge.migraphx.install.install import check_machine, load_error
from onnx_bridge.migraphx.install_record import InstallRecord
from onnx_bridge.migraphx.runtime import Choice, SearchPlaces, choices, find, fits
from onnx_bridge.migraphx.targets import gpu_architecture, gpu_architectures

Level = Literal["ok", "warn", "error"]

_ROOM = 600_000_000


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        what: what was found.
        hint: what to do if the result is not ``ok``.
        details: what ``--verbose`` shows in addition.
    """

    level: Level
    what: str
    hint: str | None = None
    details: str | None = None


@dataclass(frozen=True)
class RuntimeStatus(JsonRecord):
    """The results of all checks."""

    in_json = ("passed",)

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """True if there is a runtime that works."""
        return not any(check.level == "error" for check in self.checks)


def runtime_status(places: SearchPlaces | None = None) -> RuntimeStatus:
    """Check the runtimes, the GPU, and whether a private runtime could be installed; nothing is changed.

    Every runtime is loaded once, in a process of its own, and every file of the private ones is read. The network
    is not used. Problems of a runtime that is not used, or of installing if a runtime works, are warnings.
    """
    places = places or SearchPlaces()
    listed = choices(places)
    checks = [*_runtimes(listed, places), *_foreign_modules(places), *_gpu(listed, places), _compiler(listed)]
    works = not any(check.level == "error" for check in checks)
    return RuntimeStatus((*checks, *_installing(places, "warn" if works else "error")))


def _runtimes(listed: list[Choice], places: SearchPlaces) -> Iterator[Check]:
    try:
        find(places=places)
    except BridgeError as error:
        yield _failed("error", error)
    for choice in listed:
        runtime = choice.runtime
        bad: Level = "error" if choice.used else "warn"
        name = f"{runtime.kind} {runtime.path}"
        if problem := load_error(runtime):
            yield Check(bad, f"{name} does not load: {problem}", "repair it, or choose another by ONNX_BRIDGE_RUNTIME")
        else:
            use = f"used ({choice.why})" if choice.used else f"not used ({choice.why})"
            yield Check("ok", f"{name}: MIGraphX {runtime.version} for {', '.join(runtime.targets)}; {use}")
        record = InstallRecord.read(runtime.path) if runtime.kind == "private" else None
        if record and (damaged := record.damage(runtime.path, thorough=True)):
            again = f"onnx-bridge runtime remove {runtime.path.name}, and install it again"
            yield Check(bad, f"{name}: missing or changed since the installation: {', '.join(damaged)}", again)
        elif record:
            versions = {package.name: package.version for package in record.packages}
            packages = ", ".join(f"{package} {version}" for package, version in sorted(versions.items()))
            intact = f"{name}: all libraries intact, from {record.origin}"
            yield Check("ok", intact, details=packages)


def _foreign_modules(places: SearchPlaces) -> Iterator[Check]:
    for folder in dict.fromkeys((*map(Path, places.search_path), *places.rocm_libraries())):
        for module in sorted(folder.glob("migraphx*.so")):
            if not fits(module):
                hint = "to use it, run ONNX Bridge with the Python that it is built for"
                yield Check("warn", f"{module} is built for another Python", hint)


def _gpu(listed: list[Choice], places: SearchPlaces) -> Iterator[Check]:
    able = any(choice.used and "gpu" in choice.runtime.targets for choice in listed)
    if architecture := gpu_architecture(places.root):
        hint = None if able else "onnx-bridge runtime install --gpu, or AMD's official ROCm packages"
        without = "" if able else ", but the runtime in use has no target gpu"
        yield Check("ok" if able else "warn", f"AMD GPU {architecture}{without}", hint)
    elif seen := gpu_architectures(places.root):
        hint = "add the user to the groups render and video; in a container: --device /dev/kfd --device /dev/dri"
        yield Check("warn", f"AMD GPU {seen[0]}, but this user may not open /dev/kfd", hint)
    else:
        yield Check("ok", "no AMD GPU: the target is ref")


def _compiler(listed: list[Choice]) -> Check:
    """Return whether programs can be compiled for a GPU that is not there; nobody needs it for anything else."""
    able = [choice.runtime for choice in listed if choice.runtime.compiles_kernels]
    if not able:
        return Check("ok", "no compiler for a GPU elsewhere: onnx-bridge runtime install --gpu-compiler")
    if shutil.which("g++") is None:
        what = f"{able[0].path.name} compiles for a GPU elsewhere only with g++, which is missing"
        return Check("warn", what, "on Debian: apt install g++")
    return Check("ok", f"{able[0].path.name} compiles for a GPU elsewhere (--target gpu:ARCHITECTURE)")


def _installing(places: SearchPlaces, bad: Level) -> Iterator[Check]:
    def addresses() -> str:
        return f"Debian's archive in apt's sources: {', '.join(mirrors())}"

    def processor() -> str:
        check_machine()
        return "Linux on x86_64 with glibc"

    checks: list[Callable[[], str]] = [
        processor,
        lambda: f"apt: {tool('apt-get')}",
        lambda: f"dpkg: {tool('dpkg-deb')}",
        lambda: f"Debian's keys: {keyring()}",
        addresses,
    ]
    for check in checks:
        try:
            yield Check("ok", check())
        except BridgeError as error:
            yield _failed(bad, error)
    cache = cache_dir(places.environment)
    there = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    room = f"{free / 1e9:,.1f} GB free for {cache}"
    hint = "ONNX_BRIDGE_CACHE chooses another disk; installing a private runtime needs 0.6 GB, with --gpu 6.2 GB"
    yield Check("ok", room) if free > _ROOM else Check("warn", room, hint)


def _failed(level: Level, error: BridgeError) -> Check:
    what = f"{error.where}: {error.what}" if error.where else error.what
    return Check(level, what, error.hint)
