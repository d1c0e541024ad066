"""AMD Quark, imported on first use, with its output suppressed."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.third_party import describe, suppressed_output
from onnx_bridge.reference.quark.build import bounded_waits

EXTRA = "pip install 'onnx-bridge[quark]' && pip install --no-deps amd-quark"


def load(module: str) -> Any:
    """Import a module of Quark.

    The first import takes seconds: Quark reads the sources of all models of transformers, if that is installed.

    Args:
        module: its name, such as ``quark.onnx``.

    Raises:
        InputError: Quark, or a package that it needs, is not installed or broken, or its build is locked.
    """
    try:
        with suppressed_output(), _without_collector(), bounded_waits():
            return importlib.import_module(module)
    except InputError:
        raise
    except ImportError as error:
        missing = error.name is not None and module.startswith(error.name)
        what = "AMD Quark is not installed" if missing else f"AMD Quark cannot be imported: {describe(error)}"
        raise InputError(what, hint=EXTRA) from error
    except Exception as error:  # it compiles operators when it is first imported
        raise InputError(f"AMD Quark cannot be imported: {describe(error)}", hint="it needs a C++ compiler") from error


def require_torchao() -> None:
    """Check that torchao is installed, without which Quark's graph mode fails late.

    Raises:
        InputError: it is not installed.
    """
    try:
        with suppressed_output():
            importlib.import_module("torchao")
    except ImportError as error:
        raise InputError("Quark's graph mode needs torchao, which is not installed", hint=EXTRA) from error


@contextlib.contextmanager
def without_log() -> Iterator[None]:
    """Suppress Quark's log and warnings, but not those of others."""
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
    """Disable the garbage collector, which takes most of the time of Quark's import."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
