"""SHA-256 digests of JSON values and files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx_bridge.core.files.regular_file import open_regular


def canonical_json(value: Any) -> str:
    """Return a JSON value as text: equal values give equal text, in whatever order their members are.

    Raises:
        TypeError: it is not a JSON value, or a key in it is not a string.
        ValueError: a number in it is not finite.
    """
    _check(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def _check(value: Any) -> None:
    """Refuse keys that JSON would make equal: ``{1: …}`` and ``{"1": …}``."""
    if isinstance(value, Mapping):
        if not all(type(key) is str for key in value):
            raise TypeError(f"keys must be strings: {list(value)}")
        for member in value.values():
            _check(member)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check(item)


def json_digest(value: Any) -> str:
    """Return the digest of a JSON value, in hexadecimal; raises like `canonical_json`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Return the digest of a regular file's content, in hexadecimal; raises OSError."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
