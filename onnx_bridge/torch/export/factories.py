"""What a command line says about a module, as Python objects.

A factory is named ``package.module:name`` or ``file.py:name``: a callable without arguments, or a module itself. It
gives the module, or the module and its arguments: ``(module, args)`` or ``(module, kwargs)``. Arguments may also come
from a function likewise, or be made up by name, shape and dtype: ``input_ids=2x16:int64``.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import reprlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.roles import Data, IntegerRange, Mask, Positions, Role

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_HOW = "name it like package.module:factory or file.py:factory"
_INPUT = re.compile(r"(?P<name>[\w.]+)=(?P<shape>\[?[\dx,\s]*\]?)(:(?P<dtype>\w+))?")
_LENGTH = 240
"""What an error of the user's code says has at most so many characters."""
_VOCABULARY = 2
"""Token ids that are made up are below this: no embedding is too small for them."""


def load(name: str) -> tuple[Any, Arguments | None]:
    """The module that a factory gives, and its arguments where it gives them.

    Args:
        name: of the factory. Its modules are also looked for in the current directory.

    Raises:
        InputError: there is no such factory, it fails, or gives something else.
    """
    found = _called(name)
    parts = found if isinstance(found, tuple) else (found,)
    hint = "give the module, or the module and its arguments"
    if len(parts) not in (1, 2):
        raise InputError(f"it gives a tuple of {len(parts)}", where=name, hint=hint)
    if isinstance(parts[0], type) or not hasattr(parts[0], "forward"):
        said = f"the class {parts[0].__name__}" if isinstance(parts[0], type) else reprlib.repr(parts[0])
        raise InputError(f"it gives {said}, and no torch.nn.Module", where=name, hint=hint)
    return parts[0], _arguments(parts[1]) if len(parts) == 2 else None


def arguments(texts: Sequence[str]) -> Arguments | None:
    """The arguments that ``--args`` names; None where there are none.

    Args:
        texts: one name of a function that gives them, or ``KEY=SHAPE:DTYPE`` for each: values are seeded, float32 where
            no dtype is given. Integers are 0 or 1, unless the name says that they are positions or a mask.

    Raises:
        InputError: neither of both, or the function fails.
    """
    if not texts:
        return None
    if len(texts) == 1 and "=" not in texts[0]:
        return _arguments(_called(texts[0]))
    made = {}
    for text in texts:
        found = _INPUT.fullmatch(text)
        if found is None:
            raise InputError(
                f"{text!r} is not KEY=SHAPE:DTYPE", where="--args", hint="for example x=1x3x224x224:float32"
            )
        made[found["name"]] = _tensor(found["name"], found["shape"], found["dtype"] or "float32")
    return (), made


def dynamic(texts: Sequence[str]) -> dict[str, dict[int, str]]:
    """Open dimensions: each text is ``INPUT.AXIS=NAME``.

    Raises:
        InputError: one is not.
    """
    dims: dict[str, dict[int, str]] = {}
    for text in texts:
        place, _, symbol = text.partition("=")
        name, _, axis = place.rpartition(".")
        if not name or not symbol or not axis.lstrip("-").isdecimal():
            what = f"{text!r} is not INPUT.AXIS=NAME"
            raise InputError(what, where="--dynamic", hint="for example --dynamic input_ids.0=batch")
        dims.setdefault(name, {})[int(axis)] = symbol
    return dims


def _called(name: str) -> Any:
    """What is under a name, called unless it is a torch module."""
    home, _, attribute = name.rpartition(":")
    if not home or not attribute:
        raise InputError("this names no factory", where=name, hint=_HOW)
    found: Any = _imported(home, name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            hint = nearest(part, [each for each in vars(found) if not each.startswith("_")]) or _HOW
            raise InputError(f"{home} has no {part!r}", where=name, hint=hint)
        found = getattr(found, part)
    if not callable(found) or (hasattr(found, "forward") and not isinstance(found, type)):
        return found
    try:
        with contextlib.redirect_stdout(sys.stderr):  # where what it prints is no part of any result
            return found()
    except (Exception, SystemExit) as error:  # the user's own code
        raise InputError(f"the factory fails: {_said(error)}", where=name) from error


def _imported(home: str, name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        if not home.endswith(".py"):
            with contextlib.redirect_stdout(sys.stderr):
                return importlib.import_module(home)
        path = Path(home).resolve()
        if not path.is_file():
            raise InputError("there is no such file", where=home)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)  # dataclasses look themselves up there
        if str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
        with contextlib.redirect_stdout(sys.stderr):
            spec.loader.exec_module(module)
        return module
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # the user's own code
        if isinstance(error, ModuleNotFoundError) and home.split(".")[0] == error.name:
            raise InputError(f"there is no module {error.name!r}", where=name, hint=_HOW) from error
        raise InputError(f"it cannot be imported: {_said(error)}", where=name) from error


def _said(error: BaseException) -> str:
    """An error of the user's code in a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else "no message"
    return f"{type(error).__name__}: {first if len(first) <= _LENGTH else f'{first[: _LENGTH - 1]}…'}"


def _arguments(given: Any) -> Arguments:
    if isinstance(given, Mapping):
        return (), dict(given)
    if isinstance(given, tuple | list):
        if len(given) == 2 and isinstance(given[0], tuple | list) and isinstance(given[1], dict):
            return tuple(given[0]), given[1]
        return tuple(given), {}
    return (given,), {}


def _tensor(name: str, shape: str, dtype: str) -> Any:
    """A seeded tensor."""
    from onnx_bridge.torch.export.tensors import to_tensor

    sizes = tuple(int(size) for size in re.split(r"[x,]", shape.strip("[] ")) if size.strip())
    try:
        kind = np.dtype(dtype)
    except TypeError:
        raise InputError(f"there is no dtype {dtype!r}", where=f"--args {name}", hint="use one of numpy's") from None
    (sample,) = samplers.generate([samplers.TensorSpec(name, kind, sizes, _role(name, kind))])
    array = sample[name]
    assert isinstance(array, np.ndarray)
    return to_tensor(array)


def _role(name: str, dtype: np.dtype[Any]) -> Role:
    if "mask" in name:
        return Mask()
    if dtype.kind not in "iu":
        return Data()
    return Positions() if "position" in name else IntegerRange(0, ((_VOCABULARY, 0),))
