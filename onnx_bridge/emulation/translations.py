"""Translations in the cache folder, kept by what they are made from: the code object, this code, and the machine."""

from __future__ import annotations

import functools
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import msgspec
import numpy as np

from onnx_bridge.core.files.atomic_write import atomic_file
from onnx_bridge.core.files.user_cache import cache_dir
from onnx_bridge.core.native_code import digest
from onnx_bridge.emulation.library import machine_name
from onnx_bridge.emulation.translate import INSTRUCTION, Translation


class _Rest(msgspec.Struct):
    """A translation without its arrays."""

    lines: list[str]
    constants: list[tuple[int, int]]
    vectors: int
    missing: dict[int, str]


def kept(code_object: str, wave: int, make: Callable[[], Translation]) -> Translation:
    """Return the translation of a code object; it is made unless it is in the cache.

    Args:
        code_object: the code object's digest.
        wave: the lanes of a wave.
        make: translates it.
    """
    path = cache_dir() / "emulation" / f"kernels-{_digest()}-{machine_name(wave)}" / f"{code_object}.npz"
    try:
        translation = _read(path)
        os.utime(path)
        return translation
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):  # not there, or damaged
        translation = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as new:
        _write(new, translation)
    return translation


def files() -> Iterator[Path]:
    """Yield the files of all translations that are kept, of whatever version."""
    return cache_dir().glob("emulation/kernels-*/*")


@functools.cache
def _digest() -> str:
    return digest(sorted(Path(__file__).parent.glob("*.py")))[:16]


def _read(path: Path) -> Translation:
    with np.load(path, allow_pickle=False) as file:
        records, index, rest = (file[name] for name in ("records", "index", "rest"))
    fields = msgspec.structs.asdict(msgspec.json.decode(rest.tobytes(), type=_Rest))
    translation = Translation(records=records, index=index, **fields)
    if records.dtype != INSTRUCTION or index.dtype != np.uint32 or len(records) != len(translation.lines):
        raise ValueError("another form of translations")
    return translation


def _write(path: Path, translation: Translation) -> None:
    fields = asdict(translation)
    arrays = {name: fields.pop(name) for name in ("records", "index")}
    with path.open("wb") as file:
        np.savez_compressed(file, rest=np.frombuffer(msgspec.json.encode(fields), np.uint8), **arrays)
