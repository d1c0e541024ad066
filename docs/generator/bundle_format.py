"""The page of the bundle's format: the fields of the manifest, made from the classes that read and write it."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

from docs.generator.markdown import code, documentation, table
from onnx_bridge.bundle.manifest.manifest import FORMAT, Manifest

_HEAD = f"""# The format of a bundle

What `convert` writes for a model is a folder:

| file | content |
| --- | --- |
| `manifest.json` | what was converted, how, by which versions; name, size and SHA-256 of every file; its own checksum |
| `NAME.mxr` | the program, where the whole model runs on MIGraphX; in MIGraphX's own format, of one release |
| `NAME.partition<n>.mxr` | the program of device partition *n*, if there are [several](partitions.md) |
| `NAME.onnx`, `NAME.onnx.data` | the cleaned model, and its large weights |

A bundle has one or several programs: one for each size with buckets, one for each number of tokens with a decoder. Of
several, each is such a bundle in a subfolder, and the manifest on top describes all of them. A packed bundle is an
uncompressed tar archive of the same files.

The manifest is written last. `format` is {FORMAT}. A reader refuses other numbers and says how to make the bundle
again; it refuses unknown fields, fields of another type, and names of files outside of the bundle. `load` refuses a
bundle whose files do not match the manifest, or whose program another release of MIGraphX has made; `verify` says the
same without loading it. What a bundle of a stranger may cause is in [Security](../security.md).

"""


def page() -> str:
    """The page."""
    classes = dict.fromkeys(_with_fields(Manifest))
    return _HEAD + "\n\n".join(part for cls in classes for part in _section(cls))


def _with_fields(cls: Any) -> Iterator[Any]:
    """The class, and those that its fields have."""
    yield cls
    for field in dataclasses.fields(cls):
        for name in re.findall(r"\b[A-Z]\w+", str(field.type)):
            found = getattr(importlib.import_module(cls.__module__), name, None)
            if inspect.isclass(found) and dataclasses.is_dataclass(found) and found is not cls:
                yield from _with_fields(found)


def _section(cls: Any) -> Iterator[str]:
    meanings = _attributes(inspect.getdoc(cls) or "")
    yield f"## {cls.__name__}"
    yield documentation(cls)
    yield table(
        ["field", "type", "meaning"],
        [(code(field.name), code(field.type), meanings.get(field.name, "")) for field in dataclasses.fields(cls)],
    )


def _attributes(docstring: str) -> dict[str, str]:
    """The meanings by name of a docstring's section ``Attributes:``."""
    section = docstring.partition("Attributes:\n")[2].partition("\n\n")[0]
    return dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE))
