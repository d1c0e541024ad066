"""Content keys: what a cleaned model, a bundle, or a comparison of one, was made from, in one digest.

Two conversions have the same key exactly where nothing that matters differs: the bytes of the model and of its weights,
shapes, values that were frozen, the pipeline with the code behind it, the versions of the project and of MIGraphX, what
MIGraphX reads from the environment, the target and the GPU's architecture. Names, dates and limits do not matter. A key
is the SHA-256 of a canonical text, in which no two values look alike.

Keys are a chain: that of a comparison holds that of the conversion, which holds that of the cleaning. What changes an
outer one alone leaves what the inner one stands for as it is, so that a change redoes only the stages behind it.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from onnx_bridge.core.version import VERSION
from onnx_bridge.migraphx.machine import Machine
from onnx_bridge.migraphx.runtime import Runtime

_PASSES = Path(__file__).resolve().parents[2] / "passes"


def canonical(value: Any) -> str:
    """A JSON value as text: the same for equal ones whatever the order of their members, another for any other.

    Raises:
        TypeError: it is no JSON value, or a key in it is no text, or is not finite.
    """
    _check(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _check(value: Any) -> None:
    """Refuse what JSON would make equal to something else: ``{1: …}`` and ``{"1": …}``."""
    if isinstance(value, Mapping):
        if not all(type(key) is str for key in value):
            raise TypeError(f"keys must be text: {list(value)}")
        for each in value.values():
            _check(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            _check(each)


def key_of(value: Any) -> str:
    """The digest of a JSON value, in hexadecimal."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def cleaning_key(
    source: str | None,
    *,
    pipeline: str,
    dims: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
    freeze: Mapping[str, str],
    runtime: Runtime | Machine,
    precision: Mapping[str, Any] | None = None,
) -> str | None:
    """The key of a cleaned model, from those arguments of `convert` that decide on it.

    Args:
        source: the model's digest (`onnx_bridge.model.io.digest`); None for a model in memory, which has no key.
        pipeline: its specification or name.
        dims: sizes of symbolic dimensions.
        shapes: whole shapes of inputs.
        freeze: values of inputs, as JSON.
        runtime: the MIGraphX, whose verdicts legalization follows; or the machine with it, where that is another one.
        precision: what is computed in, with what decides on it; only one that passes make has a part in this.

    Raises:
        InputError: the pipeline is wrong.
    """
    if source is None:
        return None
    from onnx_bridge.conversion.precision import BY_PASS
    from passes.core.pipeline import Pipeline

    passes, machine = Pipeline.parse(pipeline), Machine.of(runtime)
    return key_of(
        {
            "model": source,
            "pipeline": str(passes),
            "files": [_digest(path) for path in _foreign(passes)],
            "dims": dict(dims),
            "shapes": {name: list(shape) for name, shape in shapes.items()},
            "freeze": dict(freeze),
            "precision": dict(precision) if precision and precision["precision"] in BY_PASS else None,
            "onnx_bridge": VERSION,
            "passes": code(),
            "runtime": machine.identity,
            "environment": machine.environment,
        }
    )


def conversion_key(
    cleaned: str | None,
    *,
    host: bool,
    target: str,
    runtime: Runtime | Machine,
    precision: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    buckets: Mapping[str, Sequence[int]] | None = None,
    pad: Mapping[str, str] | None = None,
) -> str | None:
    """The key of a conversion, from the other arguments of `convert`.

    Args:
        cleaned: the key of the cleaned model; None for one that has none.
        host: whether nodes may run on ONNX Runtime.
        target: ``ref`` or ``gpu``.
        runtime: the MIGraphX.
        precision: what it computes in, with what decides on it; None is float32.
        options: of compiling.
        buckets: sizes of the dimensions that have several.
        pad: what inputs are padded with.
    """
    if cleaned is None:
        return None
    return key_of(
        {
            "cleaned": cleaned,
            "host": host,
            "precision": dict(precision or {"precision": "fp32"}),
            "options": dict(options or {}),
            "buckets": {name: list(sizes) for name, sizes in (buckets or {}).items()},
            "pad": dict(pad or {}),
            "target": target,
            "architecture": Machine.of(runtime).architecture if target == "gpu" else None,
        }
    )


def check_key(
    conversion: str,
    *,
    seed: int,
    samples: int | None,
    rtol: float | None,
    atol: float | None,
    tolerance: str | None,
    data: Path | None,
) -> str:
    """The key of a comparison with the reference.

    Args:
        conversion: the key of what is compared.
        seed: of generated samples.
        samples: how many of them.
        rtol: relative tolerance, where one was given.
        atol: absolute tolerance, likewise.
        tolerance: the precision that decides on tolerances, likewise.
        data: the file or folder that samples are read from.
    """
    return key_of(
        {
            "conversion": conversion,
            "seed": seed,
            "samples": samples,
            "rtol": rtol,
            "atol": atol,
            "tolerance": tolerance,
            "data": None if data is None else {str(path.relative_to(data)): _digest(path) for path in _files(data)},
            "onnxruntime": metadata.version("onnxruntime"),
            "onnx_bridge": VERSION,
        }
    )


@functools.cache
def code() -> str:
    """The digest of the project's own passes."""
    return key_of({str(path.relative_to(_PASSES)): _digest(path) for path in sorted(_PASSES.rglob("*.py"))})


def _foreign(pipeline: Any) -> Iterator[Path]:
    """The files behind a pipeline that are not the project's: those of users' passes, and those that options name."""
    from passes.core.spec import options_of

    for step in pipeline.passes:
        own = type(step).__module__.partition(".")[0] == _PASSES.name
        if not own and (file := inspect.getsourcefile(type(step))) is not None:
            yield Path(file)
        for value in options_of(step).values():
            if isinstance(value, str):
                yield from (Path(each) for each in (value, value.rpartition(":")[0]) if each and os.path.isfile(each))  # noqa: PTH113


def _files(path: Path) -> list[Path]:
    return sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
