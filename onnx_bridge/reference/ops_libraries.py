"""Libraries of custom operators, which ONNX Runtime loads as the reference and for host partitions.

Users choose them for a process, and all that it starts, by `use` or by the variable. A manifest records them, and never
makes anything load them. The library of onnxruntime_extensions is found by itself for models of its domains.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.digest import file_digest

VARIABLE = "ONNX_BRIDGE_OPS_LIBRARY"
_EXTENSIONS = ("ai.onnx.contrib", "com.microsoft.extensions")


def use(libraries: Sequence[str | os.PathLike[str]]) -> None:
    """Choose the libraries of this process; raises InputError if one does not exist."""
    paths = [Path(library).expanduser().absolute() for library in libraries]
    for path in paths:
        if not path.is_file():
            raise InputError("the library of operators does not exist", where=str(path))
    os.environ[VARIABLE] = os.pathsep.join(map(str, paths))


def chosen() -> list[Path]:
    """Return the libraries that the user chose."""
    return [Path(path) for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]


def of_domain(domain: str | None) -> list[Path]:
    """Return the installed library of a domain, if it is one of onnxruntime_extensions, which is not imported."""
    spec = importlib.util.find_spec("onnxruntime_extensions") if domain in _EXTENSIONS else None
    folders = [] if spec is None else spec.submodule_search_locations or []
    return [path for folder in folders for path in sorted(Path(folder).glob("_extensions_pydll*"))][:1]


def recorded() -> dict[str, str]:
    """Return the digests of the chosen libraries, by file name, for the manifest."""
    return {f"library {path.name}": f"sha256 {file_digest(path)}" for path in chosen()}
