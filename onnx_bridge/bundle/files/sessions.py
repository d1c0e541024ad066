"""The sessions of a bundle with ONNX Runtime's provider: whether they will find their programs here, and if not, why.

The provider names a program ``WHEEL-GRAPH-GPU-SIZES.mxr``: by the MIGraphX that its wheel was built with, the graph,
the architecture and the sizes of inputs. Neither weights nor options are in the name: a program of other weights, or in
another precision, is found and run. So ``cache/made.json`` records the options that the programs were compiled with.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.bundle.manifest.text import MANIFEST
from onnx_bridge.core.errors import BridgeError
from onnx_bridge.core.files.atomic_write import write_text
from onnx_bridge.core.files.digest import file_digest
from onnx_bridge.core.files.regular_file import read_regular
from onnx_bridge.core.schema import parse_json, read_as
from onnx_bridge.migraphx.architectures import ARCHITECTURES
from onnx_bridge.migraphx.targets import gpu_architecture
from onnx_bridge.provider import provider as providers
from onnx_bridge.provider.provider import CACHE_OPTION, CACHE_VARIABLE, Provider, SessionOptions
from passes.core.text import counted

SESSION_FILES = frozenset(("session.json", "run.py", "session.cpp"))
SESSION_FOLDERS = ("cache/", "triton/")
"""The files for applications, which a conversion for ONNX Runtime writes beside a bundle, and its folders."""
CACHE = "cache"
_RECORD, _MOST = "made.json", 1 << 16
FILL_COMMAND = "`python run.py` beside the card fills the cache"
_PARTS = ("by a wheel that was built with another MIGraphX", "for another graph", "for another GPU", "for other sizes")
"""Descriptions of programs whose names differ in one part from one that is looked for, by part."""


@dataclass(frozen=True)
class CacheRecord:
    """The record of a cache.

    Attributes:
        provider: the options of the provider, but for the folder.
        by: what compiled the programs, in words.
        architecture: the GPU that was not there; empty if the programs were compiled beside it.
    """

    provider: dict[str, str]
    by: str
    architecture: str = ""


@dataclass
class SessionCheck:
    """The result of looking for the programs of a bundle's sessions.

    Attributes:
        notes: sentences for the user.
        unfit: why sessions would not run the programs that the cache seems to have; None if they would, or if it has
            none.
    """

    notes: list[str]
    unfit: str | None = None


def is_for_sessions(name: str) -> bool:
    """Return whether a file of a bundle is for the applications that open its sessions."""
    return name in SESSION_FILES or name.startswith(SESSION_FOLDERS)


def session_files(folder: Path, manifest: Manifest) -> dict[str, Path]:
    """Return the files of a bundle that are for applications, by name."""
    if manifest.request.application is None:
        return {}
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    named = {path.relative_to(folder).as_posix(): path for path in files}
    return {name: path for name, path in named.items() if is_for_sessions(name)}


def keep_programs(old: Path, new: Path) -> None:
    """Link the filled cache of a bundle into the folder of the next one if they share a model, or one of several.

    The provider's names have the name of the model's file, which has a digest of its content.
    """
    with contextlib.suppress(BridgeError, OSError):
        before, after = (Manifest.read(folder / MANIFEST) for folder in (old, new))
        models = [
            {tuple((Path(file.file).name, file.sha256) for file in program.model) for program in each.programs}
            for each in (before, after)
        ]
        if after.request.application is None or not set.intersection(*models):
            return
        (new / CACHE).mkdir(exist_ok=True)
        for path in (old / CACHE).iterdir():
            if path.suffix in (".mxr", ".json") and path.is_file() and not path.is_symlink():
                os.link(path, new / CACHE / path.name)


def write_record(folder: Path, record: CacheRecord) -> None:
    """Write the record of the cache of a bundle."""
    write_text(folder / CACHE / _RECORD, json.dumps(vars(record)))


def check_sessions(folder: Path, manifest: Manifest, changed: Collection[str]) -> SessionCheck:
    """Look for the programs of all sessions of a bundle by the provider's own names, and load those that are there.

    Args:
        changed: the files that are not as they were written.

    Raises:
        RuntimeNotFound: there is no provider here.
        ProviderError, NativeFailure: a session cannot be created.
    """
    cache, provider = folder / CACHE, providers.shared()
    check = SessionCheck([*_differences(manifest, provider)])
    there = sorted(path.name for path in cache.glob("*.mxr")) if cache.is_dir() else []
    record, settings = _read(CacheRecord, cache / _RECORD), _read(_Settings, folder / "session.json")
    architecture = gpu_architecture() or (record.architecture if record else "")
    names_for_it = architecture in ARCHITECTURES  # without the GPU nothing is compiled for it
    wanted = _names(folder, manifest, Provider(architecture=architecture) if names_for_it else provider)
    missing = wanted - set(there)
    programs = counted(len(wanted), "program")
    check.notes.append(f"the cache has {len(wanted) - len(missing)} of the {programs} of all sessions")
    if not there:
        check.notes.append(
            f"the cache is empty or missing: the first session would compile for minutes; {FILL_COMMAND}"
        )
        return check
    stale = [program.model[0].file for program in manifest.programs if program.model[0].file in changed]
    if stale:
        check.unfit = f"{', '.join(stale)} was changed, and the cache has programs of the model before: delete them"
    elif record is None:
        check.notes.append("the cache has no record of the options that its programs were compiled with")
    elif settings is not None and record.provider != settings.provider:
        what = f"its programs were compiled with the options {record.provider}, and session.json has"
        check.unfit = f"{what} {settings.provider}: they would be run all the same; {FILL_COMMAND} anew"
    if check.unfit is None and missing:
        causes = dict.fromkeys(_cause(name, set(there) - wanted) for name in sorted(missing))
        programs = counted(len(missing), "program")
        check.unfit = f"{programs} would be compiled at the first request: {'; '.join(causes)}; {FILL_COMMAND}"
    if check.unfit is None:
        check.unfit = _unreadable(folder, manifest, provider, record)
    if record is not None:
        check.notes.append(f"programs: {record.by}")
    return check


@dataclass(frozen=True)
class _Settings:
    """The members of ``session.json`` that are read."""

    provider: dict[str, str]


def _read(kind: Any, path: Path) -> Any:
    """Return a record from a file; None if there is none, or if it is not one."""
    try:
        values = parse_json(read_regular(path, _MOST))
        known = {name: values[name] for name in kind.__dataclass_fields__ if name in values}
        return read_as(kind, known)
    except (OSError, ValueError, TypeError, BridgeError):
        return None


def _differences(manifest: Manifest, provider: Provider) -> Iterator[str]:
    made, here = manifest.versions.get("onnxruntime-migraphx"), provider.environment.version
    yield f"opened by {provider.note}"
    if made != here:
        yield f"made for onnxruntime-migraphx {made}; the one here is {here}, whose claims and names may differ"
    if manifest.versions["migraphx"] != provider.runtime.version:
        by, here = manifest.versions["migraphx"], provider.runtime.version
        yield f"made with MIGraphX {by}; the one here is {here}, which may not read programs of the other"
    if CACHE_VARIABLE in os.environ:
        yield f"{CACHE_VARIABLE} is set here, and wins over the folder that session.json names"


def _names(folder: Path, manifest: Manifest, provider: Provider) -> set[str]:
    """Return the names that the provider gives to the programs of all sessions."""
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as temporary:
        for program in manifest.programs:
            provider.session(folder / program.model[0].file, SessionOptions(provider={CACHE_OPTION: temporary}))
        return {path.name for path in Path(temporary).iterdir()}


def _cause(name: str, there: Collection[str]) -> str:
    """Return why there is no program of a name: there is one that differs in a part, or in all."""
    parts = name.removesuffix(".mxr").split("-")
    for place, what in enumerate(_PARTS):
        for other in (file.removesuffix(".mxr").split("-") for file in there):
            if len(other) == len(parts) and [place] == [n for n in range(len(parts)) if other[n] != parts[n]]:
                return f"the cache has one {what}"
    return "the cache has none of this model"


def _unreadable(folder: Path, manifest: Manifest, provider: Provider, record: CacheRecord | None) -> str | None:
    """Return the problem if MIGraphX here does not load the programs; None if nothing here is for their GPU."""
    if provider.stubbed and record is not None and record.architecture:
        return None
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as temporary:
        copy = shutil.copytree(folder / CACHE, Path(temporary) / CACHE)
        before = {path.name: file_digest(path) for path in copy.iterdir()}
        for program in manifest.programs:
            provider.session(folder / program.model[0].file, SessionOptions(provider={CACHE_OPTION: str(copy)}))
        replaced = [path.name for path in copy.iterdir() if before.get(path.name) != file_digest(path)]
    if not replaced:
        return None
    what = f"MIGraphX {provider.runtime.version} cannot load {counted(len(replaced), 'program')}, and compiles again"
    return f"{what}: they were made by another version, or are damaged; {FILL_COMMAND}"
