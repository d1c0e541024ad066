"""What stands between this machine and a working MIGraphX: every check, passed or not, with what to do."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onnx_bridge.core.errors import BridgeError
from onnx_bridge.migraphx.install.apt import keyring, mirrors
from onnx_bridge.migraphx.install.install import check_machine, load_error
from onnx_bridge.migraphx.install.system_tools import tool
from onnx_bridge.migraphx.runtime import Choice, Machine, cache_dir, choices, find, fits, gpu, gpus_listed
from onnx_bridge.migraphx.runtime_record import Record

Level = Literal["ok", "warn", "error"]

_ROOM = 600_000_000


@dataclass(frozen=True)
class Finding:
    """One check: how it went, what was found, and what to do where that is not good."""

    level: Level
    what: str
    hint: str | None = None


def doctor(machine: Machine | None = None) -> list[Finding]:
    """Check the runtimes, the GPU, and whether a private runtime could be installed; nothing is changed.

    Every runtime is loaded once, in a process of its own, and every file of the private ones is read. The network
    is not used. What is wrong with a runtime that is not used, or with installing where a runtime works, only warns.
    """
    machine = machine or Machine()
    listed = choices(machine)
    found = [*_runtimes(listed, machine), *_misfits(machine), *_gpu(listed, machine)]
    works = not any(finding.level == "error" for finding in found)
    return [*found, *_installing(machine, "warn" if works else "error")]


def _runtimes(listed: list[Choice], machine: Machine) -> Iterator[Finding]:
    try:
        find(machine=machine)
    except BridgeError as error:
        yield _finding("error", error)
    for choice in listed:
        runtime = choice.runtime
        bad: Level = "error" if choice.used else "warn"
        name = f"{runtime.kind} {runtime.path}"
        if said := load_error(runtime):
            yield Finding(bad, f"{name} does not load: {said}", "repair it, or choose another: ONNX_BRIDGE_RUNTIME")
        else:
            use = f"used ({choice.why})" if choice.used else f"not used ({choice.why})"
            yield Finding("ok", f"{name}: MIGraphX {runtime.version} for {', '.join(runtime.targets)}; {use}")
        record = Record.read(runtime.path) if runtime.kind == "private" else None
        if record and (damaged := record.damage(runtime.path, thorough=True)):
            again = f"onnx-bridge runtime remove {runtime.path.name}, and install it again"
            yield Finding(bad, f"{name}: missing or changed since it was installed: {', '.join(damaged)}", again)
        elif record:
            versions = {package.name: package.version for package in record.packages}
            packages = ", ".join(f"{package} {version}" for package, version in sorted(versions.items()))
            yield Finding("ok", f"{name}: {len(record.files)} libraries intact, from {record.origin} ({packages})")


def _misfits(machine: Machine) -> Iterator[Finding]:
    for folder in dict.fromkeys((*map(Path, machine.search_path), *machine.rocm_libraries())):
        for module in sorted(folder.glob("migraphx*.so")):
            if not fits(module):
                hint = "run ONNX Bridge with the Python that it is named for, if the module is wanted"
                yield Finding("warn", f"{module} is for another Python than this one", hint)


def _gpu(listed: list[Choice], machine: Machine) -> Iterator[Finding]:
    able = any(choice.used and "gpu" in choice.runtime.targets for choice in listed)
    if architecture := gpu(machine.root):
        hint = None if able else "onnx-bridge runtime install --gpu, or AMD's official ROCm packages"
        without = "" if able else ", but the runtime in use has no target gpu"
        yield Finding("ok" if able else "warn", f"AMD GPU {architecture}{without}", hint)
    elif seen := gpus_listed(machine.root):
        hint = "add the user to the groups render and video; in a container: --device /dev/kfd --device /dev/dri"
        yield Finding("warn", f"AMD GPU {seen[0]}, but /dev/kfd may not be opened", hint)
    else:
        yield Finding("ok", "no AMD GPU: the target is ref")


def _installing(machine: Machine, bad: Level) -> Iterator[Finding]:
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
            yield Finding("ok", check())
        except BridgeError as error:
            yield _finding(bad, error)
    cache = cache_dir(machine.environment)
    there = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    room = f"{free / 1e9:,.1f} GB free for {cache}"
    hint = "ONNX_BRIDGE_CACHE chooses another disk; a private runtime wants 0.6 GB, with --gpu 6.2 GB"
    yield Finding("ok", room) if free > _ROOM else Finding("warn", room, hint)


def _finding(level: Level, error: BridgeError) -> Finding:
    what = f"{error.where}: {error.what}" if error.where else error.what
    return Finding(level, what, error.hint)
