"""The code that decides on a result, as a digest: what is cached under it was made by exactly this code.

It covers the sources of modules, of all modules that they import or start as a child process by name, and the versions
of the libraries that compute. The modules are found in the sources, without importing them: whoever adds one need not
list it. Sources are only searched, not parsed, which takes milliseconds: patterns that begin with literal text are
fast, and a path object for each file would cost as much.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

LIBRARIES = ("ml-dtypes", "numpy", "onnx", "onnx-ir", "onnxruntime")
"""The libraries that graphs are rewritten and constants computed with."""

_ROOT = Path(__file__).resolve().parents[3]
_PACKAGES = ("onnx_bridge", "passes")
_FROM = re.compile(r"from ((?:onnx_bridge|passes)[\w.]*) import (\([^)]*\)|[^\n]*)")
_IMPORT = re.compile(r"import ((?:onnx_bridge|passes)[\w.]*)(?: as \w+)? *(?:#|$)", re.MULTILINE)
_CHILD = re.compile(r'"((?:onnx_bridge|passes)(?:\.\w+)+)"')
_NAME = re.compile(r"\w+")


@functools.cache
def code_digest(*roots: str) -> str:
    """Return the digest of the code that some modules run, and of the versions of `LIBRARIES`; computed once a process.

    Args:
        roots: names of modules; a package stands for all modules in it; default: the whole project.

    Returns:
        64 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for module in sorted(modules(*roots)):
        digest.update(f"{module}\n".encode() + hashlib.sha256(_source(module)).digest())
    digest.update("".join(f"{library} {metadata.version(library)}\n" for library in LIBRARIES).encode())
    return digest.hexdigest()


def modules(*roots: str) -> set[str]:
    """Return the project's modules that some of them import, directly or not, and themselves.

    Args:
        roots: names of modules; a package stands for all modules in it; default: the whole project.

    Raises:
        ValueError: a module does not exist.
    """
    roots, sources = roots or _PACKAGES, _sources()
    if unknown := [root for root in roots if root not in sources]:
        raise ValueError(f"no module of the project: {', '.join(unknown)}")
    within = tuple(f"{root}." for root in roots)
    pending = [module for module in sources if module in roots or module.startswith(within)]
    reached = set(pending)
    while pending:
        new = _named(pending.pop()) - reached
        reached |= new
        pending += new
    return reached


@functools.cache
def _named(module: str) -> frozenset[str]:
    """Return the modules that the source of one names, and the packages around it."""
    text = _source(module).decode()
    named = {module, *_IMPORT.findall(text), *_CHILD.findall(text)}
    for home, names in _FROM.findall(text):
        named.update((home, *(f"{home}.{name}" for name in _NAME.findall(names))))
    known = named & _sources().keys()
    return frozenset(known.union(*map(_packages, known)))


def _packages(module: str) -> Iterator[str]:
    """Yield the packages around a module; not the outermost ones, which only list what there is."""
    parts = module.split(".")
    return (".".join(parts[:count]) for count in range(2, len(parts)))


@functools.cache
def _sources() -> dict[str, str]:
    """Return the path of each module of the project."""
    paths = {}
    for package in _PACKAGES:
        for folder, _, files in os.walk(_ROOT / package):
            home = os.path.relpath(folder, _ROOT).replace(os.sep, ".")
            for file in files:
                if file.endswith(".py"):
                    name = file.removesuffix(".py")
                    paths[home if name == "__init__" else f"{home}.{name}"] = f"{folder}{os.sep}{file}"
    return paths


@functools.cache
def _source(module: str) -> bytes:
    with open(_sources()[module], "rb") as file:  # noqa: PTH123
        return file.read()
