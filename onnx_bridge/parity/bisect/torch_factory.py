"""The PyTorch module of a factory, exported; PyTorch's own outputs are the expected ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnx_bridge.core.values import Array
from onnx_bridge.torch.export.export import export
from onnx_bridge.torch.export.exported import ExportFailed
from onnx_bridge.torch.modules import factories


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


def export_factory(name: str) -> ExportedModule:
    """Export the module of a factory.

    Args:
        name: as for ``onnx-bridge export``; it returns the module and its arguments.

    Raises:
        InputError: there is no such factory, or its arguments do not fit; or PyTorch is not installed.
    """
    module, arguments = factories.load_with_arguments(name)
    try:
        exported = export(module, *arguments)
    except ExportFailed as error:
        return ExportedModule(None, error.what)
    return ExportedModule(exported.model, "", exported.samples, exported.expected, exported.notes)
