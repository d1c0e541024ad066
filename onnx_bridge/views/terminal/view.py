"""Results as the terminal shows them: the view of a class is in the file that is named after its innermost package.

If there is no such file, it is in that of the package around it. So a result is plain data, and a command imports one
of these files only.
"""

from __future__ import annotations

from functools import singledispatch
from importlib import import_module
from importlib.util import find_spec

from rich.console import RenderableType


@singledispatch
def view(result: object, verbose: bool) -> RenderableType:
    """Return the view of a result, by its class; `render` imports the file first."""
    raise TypeError(f"{type(result).__name__} has no view")


def render(result: object, *, verbose: bool = False) -> RenderableType:
    """Return the view of a result of the API, in full if ``verbose``."""
    packages = type(result).__module__.split(".")[1:-1]
    files = (f"{__package__}.{package}" for package in reversed(packages))
    import_module(next(filter(find_spec, files)))
    return view(result, verbose)
