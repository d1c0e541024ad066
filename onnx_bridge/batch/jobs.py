"""The jobs of a batch: which models, under which names, with which requests.

A source is a model file, a folder (all ``.onnx`` files below it), a glob, a list (``.txt``: one of these a line), or a
job file (`onnx_bridge.batch.job_files`); each a path, or a URL that fsspec opens.

More specific values win: those of a job over the defaults of its file, these over the command line. Values by name
(``dims``, ``shapes``, ``freeze``, ``buckets``, ``ties``, ``pad``) add up; those that were not given for the very job
are dropped for models without such a dimension or input.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnx_bridge.batch.job_files import beside, read_job_file, read_text
from onnx_bridge.batch.journal import STATE_FOLDER
from onnx_bridge.bundle.manifest.text import is_manifest, manifest_path
from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.locations import Location, RemotePath, parse_location
from onnx_bridge.requests.batch import JobRequest

_LISTS = (".txt", ".list")
_JOB_FILES = (".toml", ".yaml", ".yml")
_MAX_DEPTH = 8
"""The most lists and job files that lead to a model, one by another."""
_MAX_JOBS = 1_000_000


@dataclass(frozen=True)
class Job:
    """A model to convert.

    Attributes:
        name: the path of its bundle under OUT.
        source: the absolute path or the URL of the model.
        request: how.
        own: names that the user gave for this very model (`JobRequest.fitting`).
    """

    name: str
    source: Location
    request: JobRequest
    own: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Found:
    """A model that a source leads to.

    Attributes:
        name: the name that it should have; it may not be unique yet.
        explicit: whether the user chose the name.
    """

    source: Location
    name: str
    explicit: bool
    request: JobRequest
    own: frozenset[str]


def is_batch(sources: Sequence[Location]) -> bool:
    """Whether sources are anything else than one local model file."""
    if len(sources) != 1:
        return True
    (source,) = sources
    return (
        isinstance(source, RemotePath)
        or source.is_dir()
        or source.suffix.lower() in (*_LISTS, *_JOB_FILES)
        or _is_glob(source)
    )


def gather(
    sources: Sequence[Location], out: Location, base: JobRequest | None = None, known: Mapping[str, str] | None = None
) -> list[Job]:
    """The jobs that sources lead to, with unique names.

    Args:
        sources: files, folders, globs, lists, job files.
        out: the folder of the bundles; files in it are not sources.
        base: the request of all jobs.
        known: names of earlier runs by source, which are kept.

    Raises:
        InputError: a source does not exist, leads to no model, or is an invalid job file.
    """
    found: list[_Found] = []
    for source in sources:
        for each in _follow(source.absolute(), _Origin(out.absolute(), base or JobRequest())):
            if len(found) >= _MAX_JOBS:
                raise InputError(f"this leads to more than {_MAX_JOBS:,} models", where=str(source))
            found.append(each)
    unique = {(each.source, each.name if each.explicit else None, _text(each)): each for each in found}
    jobs = list(unique.values())
    names = _names(jobs, known or {})
    return [Job(name, each.source, each.request, each.own) for name, each in zip(names, jobs, strict=True)]


@dataclass(frozen=True)
class _Origin:
    """What the models of a source have in common.

    Attributes:
        out: the folder of bundles.
        request: of each.
        name: the explicit one, if any.
        own: names that the user gave for this very source.
        files: the lists and job files that lead here.
    """

    out: Location
    request: JobRequest
    name: str | None = None
    own: frozenset[str] = frozenset()
    files: tuple[Location, ...] = ()

    def inside(self, file: Location) -> _Origin:
        """The origin of what a list or job file names; raises InputError where it would not end."""
        if file in self.files:
            raise InputError("it includes itself", where=str(file))
        if len(self.files) >= _MAX_DEPTH:
            raise InputError(f"it is included by {len(self.files)} files, one by another", where=str(file))
        return replace(self, files=(*self.files, file))

    def found(self, source: Location, name: str) -> _Found:
        """A model of this origin."""
        return _Found(source, name, self.name is not None, self.request, self.own)


def _follow(source: Location, origin: _Origin) -> Iterator[_Found]:
    name = origin.name
    try:
        is_folder, is_there = source.is_dir(), source.exists()
    except OSError as error:
        raise InputError(f"it cannot be read: {error.strerror}", where=str(source)) from None
    if is_folder:
        models = list(_models(source, origin.out))
        if not models:
            raise InputError("there is no .onnx file in this folder", where=str(source))
        for model in models:
            inner = model.relative_to(source).with_suffix("").as_posix()  # type: ignore[arg-type]  # of one kind
            yield origin.found(model, f"{name}/{inner}" if name else inner)
    elif not is_there and _is_glob(source):
        matches = _matches(source)
        if not matches:
            raise InputError("nothing matches", where=str(source))
        for match in matches:
            yield from _follow(match, replace(origin, name=f"{name}/{match.stem}" if name else None))
    elif source.suffix.lower() in _LISTS:
        for line in read_text(source).splitlines():
            if text := line.partition("#")[0].strip():
                yield from _follow(beside(source, text), origin.inside(source))
    elif source.suffix.lower() in _JOB_FILES:
        inside = origin.inside(source)
        for job in read_job_file(source, origin.request):
            yield from _follow(job.model, replace(inside, request=job.request, name=job.name, own=job.own))
    else:
        yield origin.found(source, name or source.stem)


def _matches(pattern: Location) -> Sequence[Location]:
    if isinstance(pattern, RemotePath):
        return pattern.glob()
    return sorted(map(Path, glob.glob(str(pattern), recursive=True)))  # noqa: PTH207 — also of absolute patterns


def _models(folder: Location, out: Location) -> Iterator[Location]:
    """All models below a folder, in order, but for those in bundles."""
    if isinstance(folder, RemotePath):
        yield from _remote_models(folder, out)
        return
    for path, folders, files in os.walk(folder):
        here = Path(path)
        folders[:] = sorted(each for each in folders if not each.startswith(".") and here / each != out)
        if here == out or is_manifest(manifest_path(here)):
            continue
        yield from (here / each for each in sorted(files) if each.lower().endswith(".onnx"))


def _remote_models(folder: RemotePath, out: Location) -> Iterator[RemotePath]:
    names = [Path(each) for each in sorted(folder.files())]
    bundles = {each.parent for each in names if each.name == "manifest.json"}
    for name in names:
        hidden = any(each.startswith(".") for each in name.parts[:-1])
        inside = not bundles.isdisjoint(name.parents) or (folder / name).url.startswith(f"{out}/")
        if name.suffix.lower() == ".onnx" and not hidden and not inside:
            yield folder / name


def _is_glob(path: Location) -> bool:
    return glob.has_magic(str(path)) and not path.exists()


def _text(found: _Found) -> str:
    return json.dumps([found.request.to_json(), sorted(found.own)], sort_keys=True)


def _names(found: Sequence[_Found], known: Mapping[str, str]) -> list[str]:
    """A name for each: that of earlier runs, its own, or its own with as much of its path as makes it unique."""
    sources = [str(each.source) for each in found]
    explicit = {each.name for each in found if each.explicit}
    kept = {
        index: known[source]
        for index, source in enumerate(sources)
        if known.get(source, "") not in ("", *explicit) and sources.count(source) == 1 and not found[index].explicit
    }
    others = {name for source, name in known.items() if source not in sources and parse_location(source).exists()}
    taken = others | set(kept.values())
    choices = {
        index: [each.name] if each.explicit else _choices(each) for index, each in enumerate(found) if index not in kept
    }
    depth = dict.fromkeys(choices, 0)
    while True:
        names = {index: choices[index][depth[index]] for index in choices}
        owners: dict[str, list[int]] = {}
        for index, name in names.items():
            owners.setdefault(name, []).append(index)
        clashing = [index for name, all_ in owners.items() if len(all_) > 1 or name in taken for index in all_]
        movable = [index for index in clashing if depth[index] + 1 < len(choices[index])]
        if not movable:
            break
        for index in movable:
            depth[index] += 1
    final = {**kept, **names}
    for index in clashing:
        twice = sum(name == final[index] for name in final.values()) > 1
        if twice or not found[index].explicit:
            what = f"two jobs would both write the bundle {final[index]}"
            raise InputError(what, where=sources[index], hint="give each a name of its own in a job file")
    return [final[index] for index in range(len(found))]


def _choices(found: _Found) -> list[str]:
    """Names from short to long."""
    longer = found.source.with_suffix("").parts[1:]
    start = len(Path(found.name).parts)
    paths = ["/".join(longer[-count:]) for count in range(start + 1, len(longer) + 1)]
    full = "/".join(found.source.parts[1:])
    first = found.name if Path(found.name).parts[0] != STATE_FOLDER else f"_{found.name}"
    return [first, *paths, full]
