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
from onnx_bridge.model.folder import is_model_folder
from onnx_bridge.model.foreign import hint_of_folder
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
        named: whether the user chose the name.
    """

    name: str
    source: Location
    request: JobRequest
    own: frozenset[str] = frozenset()
    named: bool = False


def is_batch(sources: Sequence[Location]) -> bool:
    """Return whether sources differ from one local model file, or the folder of one language model."""
    if len(sources) != 1:
        return True
    (source,) = sources
    return (
        isinstance(source, RemotePath)
        or (source.is_dir() and not is_model_folder(source))
        or source.suffix.lower() in (*_LISTS, *_JOB_FILES)
        or _is_glob(source)
    )


def gather(
    sources: Sequence[Location], out: Location, base: JobRequest | None = None, known: Mapping[str, str] | None = None
) -> list[Job]:
    """Return the jobs that sources lead to, with unique names.

    Args:
        sources: files, folders, globs, lists, job files.
        out: the folder of the bundles; files in it are not sources.
        base: the request of all jobs.
        known: names of earlier runs by source, which are kept.

    Raises:
        InputError: a source does not exist, leads to no model, or is an invalid job file.
    """
    jobs: list[Job] = []
    for source in sources:
        for job in _follow(source.absolute(), _Origin(out.absolute(), base or JobRequest())):
            if len(jobs) >= _MAX_JOBS:
                raise InputError(f"this leads to more than {_MAX_JOBS:,} models", where=str(source))
            jobs.append(job)
    unique = list({(job.source, job.name if job.named else None, _text(job)): job for job in jobs}.values())
    return [replace(job, name=name) for name, job in zip(_names(unique, known or {}), unique, strict=True)]


@dataclass(frozen=True)
class _Origin:
    """The properties that the models of a source have in common.

    Attributes:
        out: the folder of bundles.
        name: the explicit name, if any.
        own: names that the user gave for this very source.
        files: the lists and job files that lead here.
    """

    out: Location
    request: JobRequest
    name: str | None = None
    own: frozenset[str] = frozenset()
    files: tuple[Location, ...] = ()

    def inside(self, file: Location) -> _Origin:
        """Return the origin of what a list or job file names; raises InputError if it would not end."""
        if file in self.files:
            raise InputError("the file includes itself", where=str(file))
        if len(self.files) >= _MAX_DEPTH:
            raise InputError(f"the file is included by {len(self.files)} files, one by another", where=str(file))
        return replace(self, files=(*self.files, file))

    def job(self, source: Location, name: str) -> Job:
        """Return the job of a model of this origin, whose name may not be unique yet."""
        return Job(name, source, self.request, self.own, self.name is not None)


def _follow(source: Location, origin: _Origin) -> Iterator[Job]:
    name = origin.name
    try:
        is_folder, is_there = source.is_dir(), source.exists()
    except OSError as error:
        raise InputError(f"the source cannot be read: {error.strerror}", where=str(source)) from None
    if is_folder:
        models = list(_models(source, origin.out))
        if not models:
            hint = hint_of_folder(source) if isinstance(source, Path) else None
            raise InputError("the folder has no .onnx file", where=str(source), hint=hint)
        for model in models:
            inner = model.relative_to(source).with_suffix("").as_posix()  # type: ignore[arg-type]  # of one kind
            yield origin.job(model, f"{name}/{inner}" if name else inner)
    elif not is_there and _is_glob(source):
        matches = _matches(source)
        if not matches:
            raise InputError("no file matches", where=str(source))
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
        yield origin.job(source, name or source.stem)


def _matches(pattern: Location) -> Sequence[Location]:
    if isinstance(pattern, RemotePath):
        return pattern.glob()
    return sorted(map(Path, glob.glob(str(pattern), recursive=True)))  # noqa: PTH207 — also of absolute patterns


def _models(folder: Location, out: Location) -> Iterator[Location]:
    """Yield all models below a folder, in order, but for those in bundles."""
    if isinstance(folder, RemotePath):
        yield from _remote_models(folder, out)
        return
    for path, folders, files in os.walk(folder):
        here = Path(path)
        folders[:] = sorted(name for name in folders if not name.startswith(".") and here / name != out)
        if here == out or is_manifest(manifest_path(here)):
            continue
        yield from (here / file for file in sorted(files) if file.lower().endswith(".onnx"))


def _remote_models(folder: RemotePath, out: Location) -> Iterator[RemotePath]:
    names = [Path(file) for file in sorted(folder.files())]
    bundles = {file.parent for file in names if file.name == "manifest.json"}
    for name in names:
        hidden = any(part.startswith(".") for part in name.parts[:-1])
        inside = not bundles.isdisjoint(name.parents) or (folder / name).url.startswith(f"{out}/")
        if name.suffix.lower() == ".onnx" and not hidden and not inside:
            yield folder / name


def _is_glob(path: Location) -> bool:
    return glob.has_magic(str(path)) and not path.exists()


def _text(job: Job) -> str:
    return json.dumps([job.request.to_json(), sorted(job.own)], sort_keys=True)


def _names(jobs: Sequence[Job], known: Mapping[str, str]) -> list[str]:
    """Return a name for each job: of earlier runs, its own, or its own with as much of its path as makes it unique."""
    sources = [str(job.source) for job in jobs]
    explicit = {job.name for job in jobs if job.named}
    kept = {
        index: known[source]
        for index, source in enumerate(sources)
        if known.get(source, "") not in ("", *explicit) and sources.count(source) == 1 and not jobs[index].named
    }
    others = {name for source, name in known.items() if source not in sources and parse_location(source).exists()}
    taken = others | set(kept.values())
    choices = {index: [job.name] if job.named else _choices(job) for index, job in enumerate(jobs) if index not in kept}
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
        if twice or not jobs[index].named:
            what = f"two jobs would both write the bundle {final[index]}"
            raise InputError(what, where=sources[index], hint="give each a name of its own in a job file")
    return [final[index] for index in range(len(jobs))]


def _choices(job: Job) -> list[str]:
    """Return the possible names of a model, from short to long."""
    longer = job.source.with_suffix("").parts[1:]
    start = len(Path(job.name).parts)
    paths = ["/".join(longer[-count:]) for count in range(start + 1, len(longer) + 1)]
    full = "/".join(job.source.parts[1:])
    first = job.name if Path(job.name).parts[0] != STATE_FOLDER else f"_{job.name}"
    return [first, *paths, full]
