"""The keywords of the API's functions, for type checkers: a TypedDict for each request, in a stub.

`make keywords` writes it; a test holds it to the requests.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from onnx_bridge import requests as package
from onnx_bridge.requests.request import Field, Request, fields_of

STUB = Path(package.__file__).with_name("keywords.pyi")
_HEAD = '"""The keywords of the API\'s functions. `make keywords` writes this from the requests; do not edit it."""\n\n'
_IMPORTS = {
    "collections.abc": ("Callable", "Mapping", "Sequence"),
    "os": ("PathLike",),
    "typing": ("Literal", "Required", "TypedDict"),
    "torch": ("nn",),
    "onnx_bridge.core.tolerance": ("PartialTolerance", "Tolerance"),
    "onnx_bridge.core.values": ("Array",),
    "onnx_bridge.requests.parity": ("ExpectedOutputs",),
    "onnx_bridge.requests.request": ("ModelSource",),
    "onnx_bridge.samples.dataset": ("DataSource",),
    "onnx_bridge.samples.files": ("SampleSource",),
}
_REQUIRED = {"DataRequest": "data"}
"""The option without which another request is meant."""


def stub() -> str:
    """Return the text of the stub."""
    classes = "".join(map(_class, requests()))
    imports = [f"from {module} import {', '.join(names)}\n" for module, names in _IMPORTS.items()]
    return _HEAD + "".join(imports).replace("from torch", "\nfrom torch").replace("nn\n", "nn\n\n") + classes


def requests() -> Iterator[type[Request]]:
    """Yield the requests of verbs in the order of the modules."""
    for found in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{found.name}")
        for _, member in inspect.getmembers(module, inspect.isclass):
            public = issubclass(member, Request) and not member.__name__.startswith("_")
            if public and member.__module__ == module.__name__ and fields_of(member):
                yield member


def _class(request: type[Request]) -> str:
    required = _REQUIRED.get(request.__name__)
    lines = [f"    {field.name}: {keyword(field, field.name == required)}\n" for field in fields_of(request)]
    return f"\nclass {options_name(request)}(TypedDict, total=False):\n{''.join(lines)}"


def options_name(request: type[Request]) -> str:
    """Return the name of the TypedDict of a request."""
    return f"{request.__name__.removesuffix('Request')}Options"


def keyword(field: Field, required: bool = False) -> str:
    """Return the type of a keyword.

    Args:
        field: the option.
        required: whether the keyword has to be given.
    """
    if field.option.api:
        return field.option.api
    parts = _spelled(field.type)
    return f"Required[{' | '.join(part for part in parts if part != 'None')}]" if required else " | ".join(parts)


def _spelled(kind: Any) -> list[str]:
    """Return the members of a type, wide enough for what `Request.of` takes."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return [kind.__metadata__[0]]
    if origin is Literal:
        return [f"Literal[{', '.join(map(repr, arguments))}]".replace("'", '"')]
    if origin is tuple:
        return [f"Sequence[{' | '.join(_spelled(arguments[0]))}]"]
    if origin is Mapping:
        return [f"Mapping[{arguments[0].__name__}, {' | '.join(_spelled(arguments[1]))}]"]
    if origin is not None and inspect.isclass(origin) and origin.__name__ == "PathLike":
        return ["PathLike[str]"]
    if arguments:
        return [part for member in arguments for part in _spelled(member)]
    if kind is Path:
        return ["str", "PathLike[str]"]
    return ["None" if kind is NoneType else kind.__name__]


if __name__ == "__main__":
    STUB.write_text(stub())
