"""AMD Quark, where it is installed: imported without its noise, and only when it is needed."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

from onnx_bridge.core.errors import InputError
from onnx_bridge.quantization.silence import silence, told

EXTRA = "pip install 'onnx-bridge[quark]'"


def load(module: str) -> Any:
    """A module of Quark's.

    The first import takes some seconds: Quark reads the source of every model of transformers where that is installed.

    Args:
        module: its name, such as ``quark.onnx``.

    Raises:
        InputError: Quark, or what it needs, is not installed or broken.
    """
    for attempt in (1, 2):
        try:
            with silence(), _without_collector():
                return importlib.import_module(module)
        except ImportError as error:
            missing = error.name is not None and module.startswith(error.name)
            what = "AMD Quark is not installed" if missing else f"AMD Quark cannot be imported: {told(error)}"
            raise InputError(what, hint=EXTRA) from error
        except Exception as error:
            # Quark compiles operators when it is first imported. Whoever waits meanwhile for another process to do so,
            # and that process is killed, fails as if there were no compiler.
            if attempt == 2:
                raise InputError(
                    f"AMD Quark cannot be imported: {told(error)}", hint="it needs a C++ compiler"
                ) from error
    raise AssertionError


def require_torchao() -> None:
    """Make sure that there is torchao, without which Quark's graph mode fails in the middle of its work.

    Raises:
        InputError: it is not installed.
    """
    try:
        with silence():
            importlib.import_module("torchao")
    except ImportError as error:
        raise InputError("Quark's graph mode needs torchao, which is not installed", hint=EXTRA) from error


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Let Quark log nothing and warn of nothing, while others may."""
    logger = load("quark.common.utils.log").ScreenLogger
    level = logger._shared_level
    logger.set_shared_level(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"quark\.")
            yield
    finally:
        logger.set_shared_level(level)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Hold the garbage collector, which takes most of the time while syntax trees by the million are made."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
