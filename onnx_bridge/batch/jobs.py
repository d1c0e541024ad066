"""The jobs of a batch: which models, under which names, with which settings.

A source is a model file, a folder (all ``.onnx`` below it), a glob, a list (``.txt``: one of these a line), or a job
file (``.toml``, ``.yaml``) with settings for each model; each a path, or a URL that fsspec knows:

    [defaults]                       # of every job in this file
    target = "ref"
    dims = {batch = 1}

    [[jobs]]
    model = "encoder.onnx"           # or a folder, or a glob; from the file's own folder
    name = "encoder-8"               # of the bundle's folder; default: from the model's
    dims = {batch = 8}

What is nearer to the model counts: a job's setting before the file's defaults, these before the command line. Settings
by name (``dims``, ``shapes``, ``freeze``, ``buckets``, ``pad``) add up, and those that come from afar hold for the
models that have such a dimension or input; only a job's own must fit.
"""

from __future__ import annotations

import glob
import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from onnx_bridge.batch.journal import STATE
from onnx_bridge.bundle.bundle import manifest_path
from onnx_bridge.bundle.manifest import is_manifest
from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.locations import Location, RemotePath, parse_location

_LISTS = (".txt", ".list")
_JOB_FILES = (".toml", ".yaml", ".yml")
_BY_NAME = ("dims", "shapes", "freeze", "buckets", "pad", "options")
_PATHS = ("data", "calibration")


@dataclass(frozen=True)
class Settings:
    """What a job is to do; the fields are the arguments of `convert` and `check`.

    Attributes:
        check: whether to compare with the reference after converting.
        data: a file or folder of samples to compare on (their ``inputs``); None generates them.
        own: the names in ``dims``, ``shapes``, … that were said of this very model.
    """

    target: str = "auto"
    pipeline: str = "default"
    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    freeze: Mapping[str, str] = field(default_factory=dict)
    buckets: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    pad: Mapping[str, str] = field(default_factory=dict)
    host: bool = True
    cache: bool = True
    precision: str = "fp32"
    calibration: Path | None = None
    keep_fp32: tuple[str, ...] = ()
    options: Mapping[str, bool | str] = field(default_factory=dict)
    timeout: float | None = None
    memory: float | None = None
    check: bool = False
    data: Path | None = None
    seed: int = 0
    samples: int | None = None
    rtol: float | None = None
    atol: float | None = None
    tolerance: str | None = None
    own: frozenset[str] = frozenset()

    def fitting(self, symbols: Sequence[str], inputs: Sequence[str]) -> Settings:
        """Without what came from afar and names a dimension or an input that a model does not have."""
        known = {"dims": symbols, "buckets": symbols, "shapes": inputs, "freeze": inputs, "pad": inputs}
        kept: dict[str, Any] = {
            kind: {name: value for name, value in getattr(self, kind).items() if name in names or name in self.own}
            for kind, names in known.items()
        }
        return replace(self, **kept)

    def conversion(self) -> dict[str, Any]:
        """The arguments of `convert`."""
        names = ("target", "pipeline", "dims", "shapes", "freeze", "host", "cache", "timeout", "memory")
        precision = ("precision", "calibration", "keep_fp32", "options")
        return {name: getattr(self, name) for name in (*names, *precision)}

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        paths = {name: str(values[name]) if values[name] else None for name in _PATHS}
        return {**values, **paths, "keep_fp32": list(self.keep_fp32), "own": sorted(self.own)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Settings:
        """What `to_json` gave."""
        paths = {name: Path(values[name]) if values[name] else None for name in _PATHS}
        keep = tuple(values["keep_fp32"])
        return cls(**{**values, **paths, "keep_fp32": keep, "own": frozenset(values["own"])})


@dataclass(frozen=True)
class Job:
    """A model to convert.

    Attributes:
        name: the path of its bundle under OUT.
        source: the model's file, absolute, or its URL.
        settings: how.
    """

    name: str
    source: Location
    settings: Settings


@dataclass(frozen=True)
class _Found:
    """A model that a source leads to.

    Attributes:
        wanted: the name that it should have; by itself it is not unique.
        given: whether the user chose that.
    """

    source: Location
    wanted: str
    given: bool
    settings: Settings


def is_batch(sources: Sequence[Location]) -> bool:
    """Whether sources are anything else than one file here that is a model."""
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
    sources: Sequence[Location], out: Location, base: Settings = Settings(), known: Mapping[str, str] | None = None
) -> list[Job]:
    """The jobs that sources lead to, each with a name of its own.

    Args:
        sources: files, folders, globs, lists, job files.
        out: where bundles go; what is in there is no source.
        base: settings of all jobs.
        known: names that were given before, by source; they stay.

    Raises:
        InputError: a source is not there, leads to no model, or a job file is wrong.
    """
    found: list[_Found] = []
    for source in sources:
        found += _follow(source.absolute(), base, out.absolute(), None)
    unique = {(each.source, each.wanted if each.given else None, _text(each.settings)): each for each in found}
    jobs = list(unique.values())
    return [Job(name, each.source, each.settings) for name, each in zip(_names(jobs, known or {}), jobs, strict=True)]


def _follow(source: Location, base: Settings, out: Location, name: str | None) -> Iterator[_Found]:
    if source.is_dir():
        models = list(_models(source, out))
        if not models:
            raise InputError("there is no .onnx file in this folder", where=str(source))
        for model in models:
            wanted = model.relative_to(source).with_suffix("").as_posix()  # type: ignore[arg-type]  # of one kind
            yield _Found(model, f"{name}/{wanted}" if name else wanted, bool(name), base)
    elif not source.exists() and _is_glob(source):
        matches = _matches(source)
        if not matches:
            raise InputError("nothing matches", where=str(source))
        for match in matches:
            inside = f"{name}/{match.stem}" if name else None
            yield from _follow(match, base, out, inside)
    elif source.suffix.lower() in _LISTS:
        for line in _read(source).splitlines():
            if text := line.partition("#")[0].strip():
                yield from _follow(_beside(source, text), base, out, name)
    elif source.suffix.lower() in _JOB_FILES:
        yield from _job_file(source, base, out)
    else:
        yield _Found(source, name or source.stem, bool(name), base)


def _matches(pattern: Location) -> Sequence[Location]:
    if isinstance(pattern, RemotePath):
        return pattern.glob()
    return sorted(map(Path, glob.glob(str(pattern), recursive=True)))  # noqa: PTH207 — also of absolute patterns


def _models(folder: Location, out: Location) -> Iterator[Location]:
    """All models below a folder, in order; those of bundles are none."""
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


def _beside(file: Location, text: str) -> Location:
    """What a text in a file names: a URL, or a path from the folder of the file."""
    named = parse_location(text)
    if isinstance(named, RemotePath):
        return named
    named = named.expanduser()
    if isinstance(file, RemotePath) and not named.is_absolute():
        return file.parent / named
    return Path(os.path.normpath(named if named.is_absolute() else Path(file.parent) / named))  # type: ignore[arg-type]


def _read(path: Location) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InputError(f"it cannot be read: {reason}", where=str(path)) from error


def _job_file(path: Location, base: Settings, out: Location) -> Iterator[_Found]:
    content = _parse(path)
    _known(content, ("defaults", "jobs"), str(path))
    defaults = _changed(base, content.get("defaults", {}), f"{path}: defaults", path)
    jobs = content.get("jobs")
    if not isinstance(jobs, list) or not jobs:
        raise InputError("it has no jobs", where=str(path), hint="a job is [[jobs]] with model = …")
    for number, job in enumerate(jobs, 1):
        where = f"{path}: job {number}"
        if not isinstance(job, dict) or not isinstance(job.get("model"), str):
            raise InputError("it names no model", where=where, hint='model = "model.onnx"')
        rest = {key: value for key, value in job.items() if key not in ("model", "name")}
        own = frozenset(name for kind in _BY_NAME if isinstance(rest.get(kind), dict) for name in rest[kind])
        name = job.get("name")
        if name is not None:
            _check_name(name, where)
        yield from _follow(
            _beside(path, job["model"]), replace(_changed(defaults, rest, where, path), own=own), out, name
        )


def _parse(path: Location) -> dict[str, Any]:
    try:
        content = tomllib.loads(_read(path)) if path.suffix.lower() == ".toml" else _parse_yaml(path)
    except ValueError as error:
        said = " ".join(str(error).split())
        raise InputError(f"it is not well formed: {said}", where=str(path)) from None
    if not isinstance(content, dict):
        raise InputError("it has no jobs", where=str(path), hint="jobs: [{model: …}]")
    return content


def _parse_yaml(path: Location) -> Any:
    import yaml  # type: ignore[import-untyped]

    try:
        return yaml.safe_load(_read(path))
    except yaml.YAMLError as error:
        raise ValueError(error) from error


def _known(values: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    for key in values:
        if key not in names:
            hint = nearest(str(key), names) or f"there are {', '.join(names)}"
            raise InputError(f"there is no setting {key!r}", where=where, hint=hint)


def _changed(base: Settings, values: Mapping[str, Any], where: str, file: Location) -> Settings:
    """Settings with those of a table of a job file in their place."""
    if not isinstance(values, dict):
        raise InputError("it is no table", where=where)
    names = [each.name for each in fields(Settings) if each.name != "own"]
    _known(values, names, where)
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in _BY_NAME:
            if not isinstance(value, dict):
                raise InputError(f"{name} is no table", where=where, hint=_EXAMPLES[name])
            made = {str(key): _typed(name, each, where) for key, each in value.items()}
            found[name] = {**getattr(base, name), **made}
        else:
            found[name] = _typed(name, value, where)
    for name in _PATHS:
        if name in found:
            found[name] = _beside(file, found[name])
            if isinstance(found[name], RemotePath):
                raise InputError(f"{name} must be a path, not a URL", where=where)
    return replace(base, **found)


_EXAMPLES = {
    "dims": "dims = {batch = 1}",
    "shapes": "shapes = {x = [1, 3, 224, 224]}",
    "freeze": "freeze = {k = [5]}",
    "buckets": "buckets = {batch = [1, 4, 16]}",
    "pad": 'pad = {mask = "0"}',
    "options": "options = {fast_math = false}",
    "keep_fp32": 'keep_fp32 = ["Softmax"]',
}


def _typed(name: str, value: Any, where: str) -> Any:
    """A setting as `Settings` has it."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    match name:
        case "dims" | "seed" | "samples":
            fits = whole
        case "shapes" | "buckets":
            fits = isinstance(value, list) and all(type(each) is int and each >= 0 for each in value)
            value = tuple(value) if fits else value
        case "keep_fp32":
            fits = isinstance(value, list) and all(isinstance(each, str) for each in value)
            value = tuple(value) if fits else value
        case "options":
            fits = isinstance(value, (bool, str))
        case "freeze" | "pad":
            return value if isinstance(value, str) else json.dumps(value)
        case "host" | "cache" | "check":
            fits = isinstance(value, bool)
        case "timeout" | "memory":
            fits = number and value > 0
        case "rtol" | "atol":
            fits = number and value >= 0
        case _:
            fits = isinstance(value, str)
    if not fits:
        raise InputError(f"{name} cannot be {value!r}", where=where, hint=_EXAMPLES.get(name))
    return value


def _check_name(name: Any, where: str) -> None:
    parts = Path(name).parts if isinstance(name, str) else ()
    if not parts or Path(name).is_absolute() or ".." in parts or parts[0] == STATE:
        raise InputError(f"{name!r} is no name of a folder under OUT", where=where)


def _text(settings: Settings) -> str:
    return json.dumps(settings.to_json(), sort_keys=True)


def _names(found: Sequence[_Found], known: Mapping[str, str]) -> list[str]:
    """A name for each: what it has had before, what it wants, or that with as much of its path as tells it apart."""
    sources = [str(each.source) for each in found]
    given = {each.wanted for each in found if each.given}
    kept = {
        index: known[source]
        for index, source in enumerate(sources)
        if known.get(source, "") not in ("", *given) and sources.count(source) == 1 and not found[index].given
    }
    others = {name for source, name in known.items() if source not in sources and parse_location(source).exists()}
    taken = others | set(kept.values())
    choices = {
        index: [each.wanted] if each.given else _choices(each) for index, each in enumerate(found) if index not in kept
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
        if twice or not found[index].given:
            what = f"two jobs would both write the bundle {final[index]}"
            raise InputError(what, where=sources[index], hint="give each a name of its own in a job file")
    return [final[index] for index in range(len(found))]


def _choices(found: _Found) -> list[str]:
    """Names from short to long."""
    longer = found.source.with_suffix("").parts[1:]
    start = len(Path(found.wanted).parts)
    paths = ["/".join(longer[-count:]) for count in range(start + 1, len(longer) + 1)]
    whole = "/".join(found.source.parts[1:])
    safe = found.wanted if Path(found.wanted).parts[0] != STATE else f"_{found.wanted}"
    return [safe, *paths, whole]
