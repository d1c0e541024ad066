"""The text of a manifest: JSON with a checksum, which is read and written as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx_bridge.core.files.digest import file_digest, json_digest
from onnx_bridge.core.files.regular_file import read_regular
from onnx_bridge.core.schema import parse_json

MANIFEST = "manifest.json"
"""The manifest of a bundle in a folder."""
CHECKSUM = "checksum"
"""The member of a manifest that is the digest of all others."""
_PREVIOUS = "previous"
"""The member of the manifest of a single program with the earlier manifest, while the program is replaced."""


def manifest_path(bundle: Path) -> Path:
    """Return the manifest of a bundle, given its folder or its program (``.mxr``)."""
    return bundle.with_suffix(".manifest.json") if bundle.suffix == ".mxr" else bundle / MANIFEST


def sealed(values: Mapping[str, Any]) -> str:
    """Return the text of a manifest, with its checksum."""
    return json.dumps({**values, CHECKSUM: json_digest(values)}, indent=2) + "\n"


def resealed(values: Mapping[str, Any]) -> bytes:
    """Return the text of a manifest whose values were changed, with its checksum."""
    return sealed({name: value for name, value in values.items() if name != CHECKSUM}).encode()


def unsealed(text: str | bytes) -> str | None:
    """Return what is wrong with the text of a manifest; None if its checksum matches."""
    try:
        values = parse_json(text)
        claimed = values.pop(CHECKSUM, None)
        if claimed is None:
            return "it has no checksum"
        return None if claimed == json_digest(values) else "its content was changed (checksum)"
    except (ValueError, TypeError, AttributeError):
        return "it is not a manifest"


def with_previous(new: Path, earlier: Path) -> bytes:
    """Return the text of a manifest that describes the new program once it is there, and the earlier one until then."""
    values, previous = (parse_json(read_text(path)) for path in (new, earlier))
    for manifest in (values, previous):
        manifest.pop(CHECKSUM, None)
    return sealed({**values, _PREVIOUS: previous}).encode()


def read_text(path: Path) -> bytes:
    """Return the text of a manifest, for the program that is there while one is replaced; raises OSError."""
    text = read_regular(path)
    if f'"{_PREVIOUS}": {{'.encode() not in text or unsealed(text) is not None:
        return text
    try:
        values = parse_json(text)
        previous = values.pop(_PREVIOUS)
        del values[CHECKSUM]
        there = file_digest(path.with_name(path.name.replace(".manifest.json", ".mxr")))
        new = values["programs"][0]["partitions"][0]["program"]
        return sealed(values if new["sha256"] == there else previous).encode()
    except (OSError, AttributeError, IndexError, KeyError, TypeError, ValueError):
        return text


def is_manifest(path: Path) -> bool:
    """Return whether a file is a manifest of any format."""
    try:
        values = parse_json(read_regular(path))
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and "format" in values and not {"programs", "program", "buckets"}.isdisjoint(values)
