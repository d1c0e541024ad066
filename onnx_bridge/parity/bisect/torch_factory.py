"""A PyTorch module that a factory gives: exported, with PyTorch's own outputs as the expected ones."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Array
from onnx_bridge.torch.export import factories
from onnx_bridge.torch.export.export import ExportFailed, export, require_torch

_FACTORY = re.compile(r".+\.py:\w+|[A-Za-z_][\w.]*:\w+")


@dataclass(frozen=True)
class ExportedModule:
    """The export of a module.

    Attributes:
        model: None where no exporter makes a model that computes what the module does.
        problem: why there is none.
        inputs: samples.
        outputs: what PyTorch computes for each.
        notes: sentences for the user.
    """

    model: ir.Model | None
    problem: str = ""
    inputs: Sequence[Mapping[str, Array]] = ()
    outputs: Sequence[Mapping[str, Array]] = ()
    notes: tuple[str, ...] = ()


def is_factory(model: object) -> bool:
    """Whether ``model`` names a factory of a module, like ``net.py:classifier``, and no file."""
    text = os.fspath(model) if isinstance(model, (str, os.PathLike)) else None
    return isinstance(text, str) and _FACTORY.fullmatch(text) is not None and not Path(text).exists()


def export_factory(name: str) -> ExportedModule:
    """Export the module that a factory gives.

    Args:
        name: as for ``onnx-bridge export``; it gives the module and its arguments.

    Raises:
        InputError: there is no such factory, or its arguments do not fit; or PyTorch is not installed.
    """
    require_torch()
    module, arguments = factories.load(name)
    if arguments is None:
        what = "it gives a module without arguments to call it with"
        raise InputError(what, where=name, hint="return (module, args)")
    try:
        exported = export(module, *arguments)
    except ExportFailed as error:
        return ExportedModule(None, error.what)
    return ExportedModule(exported.model, "", exported.samples, exported.expected, exported.notes)
