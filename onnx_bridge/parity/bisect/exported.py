"""The leg before the model: a PyTorch module, exported here, with what PyTorch itself makes of its inputs."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array

_FACTORY = re.compile(r".+\.py:\w+|[A-Za-z_][\w.]*:\w+")
_REFUSED = "it cannot be exported"


@dataclass(frozen=True)
class FromTorch:
    """A module as a model.

    Attributes:
        model: the export; None where there is none that computes what the module does.
        problem: why there is none.
        inputs: samples.
        outputs: what PyTorch gives for each.
        notes: what the user should know.
    """

    model: ir.Model | None
    problem: str = ""
    inputs: Sequence[Mapping[str, Array]] = ()
    outputs: Sequence[Mapping[str, Array]] = ()
    notes: tuple[str, ...] = ()


def is_factory(model: object) -> bool:
    """Whether something names a function that makes a module, like ``net.py:classifier``, and no file."""
    text = os.fspath(model) if isinstance(model, (str, os.PathLike)) else None
    return isinstance(text, str) and _FACTORY.fullmatch(text) is not None and not Path(text).exists()


def export_factory(name: str) -> FromTorch:
    """Export the module that a factory gives.

    Args:
        name: as for ``onnx-bridge export``; it gives the module and its arguments.

    Raises:
        InputError: there is no such factory, or its arguments do not fit; or PyTorch is not installed.
    """
    from onnx_bridge.torch.export import factories  # which imports torch
    from onnx_bridge.torch.export.export import export, require_torch

    require_torch()
    module, arguments = factories.load(name)
    if arguments is None:
        what = "it gives a module without arguments to call it with"
        raise InputError(what, where=name, hint="give (module, args)")
    try:
        made = export(module, *arguments)
    except InputError as error:
        if not error.what.startswith(_REFUSED):
            raise
        return FromTorch(None, error.what)
    return FromTorch(made.model, "", made.samples, made.expected, made.notes)
