"""A module with one call signature, as a function of named tensors.

Exporters see ``forward(*tensors) -> tuple of tensors`` whatever the module's own signature is, so that the names, order
and number of the graph's inputs and outputs are known before the export.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import nn

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.third_party import describe, suppressed_output
from onnx_bridge.torch.modules.modules import restored_buffers, write_count
from onnx_bridge.torch.modules.structure import Constant, Structure, flatten, flatten_result, leaf_names, rebuild

WRAPPER = "module"
"""The attribute of `FlatModule` that holds the user's module: the first part of all names in an export."""


@dataclass(frozen=True)
class Call:
    """The arguments of a call, flattened.

    Attributes:
        positional: the arguments by position, in order.
        keywords: the others, by name.
        constants: the other arguments that are not None, by name; they are fixed in the graph.
    """

    positional: tuple[Structure, ...]
    keywords: Mapping[str, Structure]
    constants: Mapping[str, Any]

    @staticmethod
    def of(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Call, dict[str, torch.Tensor]]:
        """Return the call, and its tensors by name: a parameter of ``forward``, or the path into a nested value of one.

        A ``forward(*inputs)`` has no parameter names: keyword arguments are then passed by position, under their names.

        Raises:
            InputError: the arguments do not fit the signature.
        """
        return Call.bound(type(module).__name__, inspect.signature(module.forward), args, kwargs)

    @staticmethod
    def bound(
        name: str,
        signature: inspect.Signature,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        defaults: bool = False,
    ) -> tuple[Call, dict[str, torch.Tensor]]:
        """Return the call of a module of which only the class's name and the signature of ``forward`` are known.

        ``defaults`` says whether arguments that are not given have their defaults.
        """
        kinds = [parameter.kind for parameter in signature.parameters.values()]
        if kinds == [inspect.Parameter.VAR_POSITIONAL] and kwargs and not args:
            named: dict[str, torch.Tensor] = {}
            positional = tuple(flatten(value, key, named) for key, value in kwargs.items())
            fixed = {key: argument.value for key, argument in zip(kwargs, positional, strict=True) if _is_set(argument)}
            return Call(positional, {}, fixed), named
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            where, hint = f"{name}.forward", f"the module takes {_format(signature)}"
            raise InputError(f"the arguments do not fit: {error}", where=where, hint=hint) from None
        if defaults:
            bound.apply_defaults()
        leaves: dict[str, torch.Tensor] = {}
        flattened: dict[str, Any] = {}
        for key, value in bound.arguments.items():
            match signature.parameters[key].kind:
                case inspect.Parameter.VAR_POSITIONAL:
                    flattened[key] = tuple(flatten(item, f"{key}.{i}", leaves) for i, item in enumerate(value))
                case inspect.Parameter.VAR_KEYWORD:
                    flattened[key] = {inner: flatten(item, inner, leaves) for inner, item in value.items()}
                case _:
                    flattened[key] = flatten(value, key, leaves)
        bound.arguments.update(flattened)
        fixed = {key: argument.value for key, argument in flattened.items() if _is_set(argument)}
        return Call(bound.args, bound.kwargs, fixed), leaves

    @property
    def names(self) -> list[str]:
        return [name for argument in (*self.positional, *self.keywords.values()) for name in leaf_names(argument)]

    def arguments(self, tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the ``args`` and ``kwargs`` of the call, with these tensors."""
        args = tuple(rebuild(argument, tensors) for argument in self.positional)
        return args, {name: rebuild(keyword, tensors) for name, keyword in self.keywords.items()}


class FlatModule(nn.Module):
    """A module as exporters see it: ``forward(*tensors) -> tuple of tensors``."""

    def __init__(self, module: nn.Module, call: Call) -> None:
        super().__init__()
        self.module = module
        self._call, self._names = call, call.names

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        _, leaves = flatten_result(self.run(tensors))
        return tuple(leaves.values())

    def run(self, tensors: Sequence[torch.Tensor]) -> Any:
        args, kwargs = self._call.arguments(dict(zip(self._names, tensors, strict=True)))
        return self.module(*args, **kwargs)


@dataclass(frozen=True)
class Result:
    """The result of a call of a module.

    Attributes:
        structure: how the returned value is built from tensors.
        tensors: the tensors by name.
        written_inputs: the names of the arguments that the module wrote to in place.
        written_buffers: the names of the buffers that it wrote to.
    """

    structure: Structure
    tensors: dict[str, torch.Tensor]
    written_inputs: Sequence[str]
    written_buffers: Sequence[str]


def run_module(flat: FlatModule, tensors: Mapping[str, torch.Tensor]) -> Result:
    """Call a module on copies of its arguments, and restore its buffers afterwards."""
    copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
    before = {name: write_count(copy) for name, copy in copies.items()}
    with torch.no_grad(), restored_buffers(flat.module) as buffers:
        structure, leaves = flatten_result(flat.run(list(copies.values())))
        memory = {buffer.untyped_storage()._cdata for buffer in flat.module.buffers() if buffer.layout is torch.strided}
        for name, leaf in leaves.items():  # an output that is a buffer must not change with it
            if leaf.layout is torch.strided and leaf.untyped_storage()._cdata in memory:
                leaves[name] = leaf.clone()
    inputs = [name for name, copy in copies.items() if write_count(copy) != before[name]]
    return Result(structure, leaves, inputs, buffers)


def first_run(flat: FlatModule, tensors: Mapping[str, torch.Tensor]) -> Result:
    """Call a module as `run_module` does, without its output; raises InputError if it fails."""
    try:
        with suppressed_output():
            return run_module(flat, tensors)
    except Exception as error:  # anything that the user's module raises
        what = f"PyTorch cannot run it with these arguments: {describe(error)}"
        raise InputError(what, where=type(flat.module).__name__) from error


def _is_set(value: Any) -> TypeGuard[Constant]:
    """Return whether it is a constant other than None."""
    return isinstance(value, Constant) and value.value is not None


def _format(signature: inspect.Signature) -> str:
    """Return a signature without annotations and defaults."""
    names = []
    for name, parameter in signature.parameters.items():
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        stars = "*" * (variable.index(parameter.kind) + 1) if parameter.kind in variable else ""
        optional = "" if parameter.default is inspect.Parameter.empty else "=…"
        names.append(f"{stars}{name}{optional}")
    return f"({', '.join(names)})"
