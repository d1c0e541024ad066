"""Job files: models with requests of their own, in TOML or YAML.

    [defaults]                       # of every job in this file
    target = "ref"
    dims = {batch = 1}

    [[jobs]]
    model = "encoder.onnx"           # or a folder, a glob, a URL; relative to this file
    name = "encoder-8"               # of the bundle; default: from the model's
    dims = {batch = 8}
    check = true
    inputs = "samples.npz"           # what to compare on

The keys of a table are the fields of `ConvertRequest`, ``check``, and the fields of `CheckRequest` that say what is
compared, and how.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from onnx_bridge.batch.journal import STATE_FOLDER
from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.files.locations import Location, RemotePath, parse_location
from onnx_bridge.core.files.regular_file import read_regular
from onnx_bridge.requests.batch import JobRequest
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.parity import CheckRequest

_CONVERSION = tuple(field.name for field in fields(ConvertRequest) if field.name not in ("runtime", "reuse"))
_PARITY = ("inputs", "seed", "samples", "rtol", "atol", "tolerance")
_BY_NAME = ("dims", "shapes", "freeze", "buckets", "ties", "pad", "options")
_PATHS = ("inputs", "calibration")
_EXAMPLES = {
    "dims": "dims = {batch = 1}",
    "shapes": "shapes = {x = [1, 3, 224, 224]}",
    "freeze": "freeze = {k = [5]}",
    "buckets": "buckets = {batch = [1, 4, 16]}",
    "ties": 'ties = {total = "past + 1"}',
    "pad": 'pad = {mask = "0"}',
    "pad_before": 'pad_before = ["past"]',
    "options": "options = {fast_math = false}",
    "keep_fp32": 'keep_fp32 = ["Softmax"]',
}


@dataclass(frozen=True)
class JobEntry:
    """A job of a job file.

    Attributes:
        model: the location that it names.
        name: the name of the bundle; None if it is not given.
        own: the names in ``dims``, ``shapes``, … that were given for this very job, not in the defaults.
    """

    model: Location
    name: str | None
    request: JobRequest
    own: frozenset[str]


def read_job_file(path: Location, base: JobRequest) -> Iterator[JobEntry]:
    """Yield the jobs of a TOML or YAML file, which override ``base``; raises InputError if the file is invalid."""
    content = _parse(path)
    _check_keys(content, ("defaults", "jobs"), str(path))
    defaults = _override(base, content.get("defaults", {}), f"{path}: defaults", path)
    jobs = content.get("jobs")
    if not isinstance(jobs, list) or not jobs:
        raise InputError("the file has no jobs", where=str(path), hint="a job is [[jobs]] with model = …")
    for number, job in enumerate(jobs, 1):
        where = f"{path}: job {number}"
        if not isinstance(job, dict) or not isinstance(job.get("model"), str):
            raise InputError("the job names no model", where=where, hint='model = "model.onnx"')
        name = job.get("name")
        if name is not None:
            _check_name(name, where)
        rest = {key: value for key, value in job.items() if key not in ("model", "name")}
        own = frozenset(name for kind in _BY_NAME if isinstance(rest.get(kind), dict) for name in rest[kind])
        request = _override(defaults, rest, where, path)
        _check_effect(request, rest, where)
        yield JobEntry(beside(path, job["model"]), name, request, own)


def beside(file: Location, text: str) -> Location:
    """Return what a text in a file names: a URL, or a path relative to the folder of the file."""
    named = parse_location(text)
    if isinstance(named, RemotePath):
        return named
    try:
        named = named.expanduser()
    except RuntimeError as error:
        raise InputError(f"{text!r} has no place: {error}", where=str(file)) from None
    if isinstance(file, RemotePath) and not named.is_absolute():
        return file.parent / named
    return Path(os.path.normpath(named if named.is_absolute() else Path(file.parent) / named))  # type: ignore[arg-type]


def read_text(path: Location) -> str:
    """Return the text of a file; raises InputError if it cannot be read."""
    try:
        return path.read_text() if isinstance(path, RemotePath) else read_regular(path).decode()
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the file is not text"
        raise InputError(f"the file cannot be read: {reason}", where=str(path)) from error


def _parse(path: Location) -> dict[str, Any]:
    import yaml  # type: ignore[import-untyped]

    text = read_text(path)
    try:
        content = tomllib.loads(text) if path.suffix.lower() == ".toml" else yaml.safe_load(text)
    except RecursionError:
        raise InputError("the file is nested too deeply", where=str(path)) from None
    except (AttributeError, LookupError, TypeError, ValueError, yaml.YAMLError) as error:  # of what a tag says, too
        what = f"the file is not well formed: {' '.join(str(error).split())}"
        raise InputError(what, where=str(path)) from None
    if not isinstance(content, dict):
        raise InputError("the file has no jobs", where=str(path), hint="jobs: [{model: …}]")
    return content


def _check_keys(values: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    for key in values:
        if key not in names:
            hint = nearest(str(key), names) or f"one of: {', '.join(names)}"
            raise InputError(f"the setting {key!r} does not exist", where=where, hint=hint)


def _override(base: JobRequest, values: Mapping[str, Any], where: str, file: Location) -> JobRequest:
    """Return a request with the values of a table; values by name are added to those of the base."""
    if not isinstance(values, dict):
        raise InputError("the value is not a table", where=where)
    _check_keys(values, (*_CONVERSION, "check", *_PARITY), where)
    settings = {name: _value(name, value, where, file) for name, value in values.items()}
    conversion = {name: value for name, value in settings.items() if name in _CONVERSION}
    for name in set(conversion) & {*_BY_NAME}:
        conversion[name] = {**getattr(base.conversion, name), **conversion[name]}
    parity = {name: value for name, value in settings.items() if name in _PARITY}
    try:
        return JobRequest(
            replace(base.conversion, **conversion),
            settings.get("check", base.check),
            replace(base.parity, **parity),
        )
    except InputError as error:  # which names the field only
        raise InputError(error.what, where=f"{where}: {error.where}", hint=error.hint) from None


def _check_effect(request: JobRequest, given: Mapping[str, Any], where: str) -> None:
    """Raise InputError for a setting of a job that would have no effect; defaults may be for other jobs."""
    for name in given.keys() & set(_PARITY) if not request.check else ():
        raise InputError(f"{name} has no effect without a comparison", where=where, hint="add check = true")
    try:
        request.check_needs(given)
    except InputError as error:
        raise InputError(error.what, where=f"{where}: {error.where}", hint=error.hint) from None


def _value(name: str, value: Any, where: str, file: Location) -> Any:
    """Return a value of a table as the field of the request that it sets."""
    if name in _BY_NAME and not isinstance(value, dict):
        raise InputError(f"{name} is not a table", where=where, hint=_EXAMPLES[name])
    if name in ("freeze", "pad"):
        return {str(key): item if isinstance(item, str) else json.dumps(item) for key, item in value.items()}
    if name in _PATHS:
        location = beside(file, value) if isinstance(value, str) else None
        if not isinstance(location, Path):
            raise InputError(f"{name} must be a local path", where=where)
        return location
    owner = JobRequest if name == "check" else CheckRequest if name in _PARITY else ConvertRequest
    try:
        field = owner.field_value(name, value, where)
    except InputError as error:
        raise InputError(error.what, where=where, hint=_EXAMPLES.get(name, error.hint)) from None
    sizes = [size for part in (field.values() if isinstance(field, dict) else [field]) for size in _numbers(part)]
    if any(size < 0 for size in sizes):
        raise InputError(f"{name} cannot be {value!r}", where=where, hint="give no negative number")
    return field


def _numbers(value: Any) -> list[float]:
    return [number for number in (value if isinstance(value, tuple) else [value]) if isinstance(number, (int, float))]


def _check_name(name: Any, where: str) -> None:
    parts = Path(name).parts if isinstance(name, str) else ()
    if not parts or "\0" in name or Path(name).is_absolute() or ".." in parts or parts[0] == STATE_FOLDER:
        raise InputError(f"{name!r} cannot be the name of a folder under OUT", where=where)
