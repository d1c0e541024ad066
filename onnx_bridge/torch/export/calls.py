"""A module with one way of calling it, as a function of named tensors.

Exporters see ``forward(*tensors) -> tuple of tensors`` whatever the module's own signature is, so that names, order and
number of what a graph takes and gives are known before it is made.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import fx, nn

from onnx_bridge.core.errors import InputError
from onnx_bridge.torch.export.dynamic_linear import is_packed
from onnx_bridge.torch.export.structure import Constant, Structure, flatten, flatten_result, leaf_names, rebuild

WRAPPER = "module"
"""The attribute that the user's module is in an exporter's view: the first part of all its names there."""


@dataclass(frozen=True)
class Call:
    """The arguments of a call, taken apart.

    Attributes:
        positional: those given by position, in order.
        keywords: the others, by name.
        constants: arguments that are no tensors, by name, without those that are None: the graph has them fixed.
    """

    positional: tuple[Structure, ...]
    keywords: Mapping[str, Structure]
    constants: Mapping[str, Any]

    @staticmethod
    def of(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Call, dict[str, torch.Tensor]]:
        """The call, and its tensors by name: parameters of ``forward``, and the ways into what is nested in them.

        A ``forward(*inputs)`` has no names: it takes arguments by name in their order, and these names are kept.

        Raises:
            InputError: the arguments do not fit the signature.
        """
        signature = inspect.signature(module.forward)
        kinds = [parameter.kind for parameter in signature.parameters.values()]
        if kinds == [inspect.Parameter.VAR_POSITIONAL] and kwargs and not args:
            named: dict[str, torch.Tensor] = {}
            positional = tuple(flatten(value, name, named) for name, value in kwargs.items())
            fixed = {name: each.value for name, each in zip(kwargs, positional, strict=True) if _is_set(each)}
            return Call(positional, {}, fixed), named
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            where, hint = f"{type(module).__name__}.forward", f"it takes {_shown(signature)}"
            raise InputError(f"the arguments do not fit: {error}", where=where, hint=hint) from None
        leaves: dict[str, torch.Tensor] = {}
        found: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            match signature.parameters[name].kind:
                case inspect.Parameter.VAR_POSITIONAL:
                    found[name] = tuple(flatten(each, f"{name}.{i}", leaves) for i, each in enumerate(value))
                case inspect.Parameter.VAR_KEYWORD:
                    found[name] = {key: flatten(each, key, leaves) for key, each in value.items()}
                case _:
                    found[name] = flatten(value, name, leaves)
        bound.arguments.update(found)
        fixed = {name: each.value for name, each in found.items() if _is_set(each)}
        return Call(bound.args, bound.kwargs, fixed), leaves

    @property
    def names(self) -> list[str]:
        """The names of the tensors, in order."""
        return [name for each in (*self.positional, *self.keywords.values()) for name in leaf_names(each)]

    def arguments(self, tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What to call the module with: ``args`` and ``kwargs``."""
        args = tuple(rebuild(each, tensors) for each in self.positional)
        return args, {name: rebuild(each, tensors) for name, each in self.keywords.items()}


class Flat(nn.Module):
    """The module as exporters see it."""

    def __init__(self, module: nn.Module, call: Call) -> None:
        super().__init__()
        self.module = module
        self._call, self._names = call, call.names

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The leaves of what the module returns."""
        _, leaves = flatten_result(self.run(tensors))
        return tuple(leaves.values())

    def run(self, tensors: Sequence[torch.Tensor]) -> Any:
        """What the module itself returns."""
        args, kwargs = self._call.arguments(dict(zip(self._names, tensors, strict=True)))
        return self.module(*args, **kwargs)


def eager(flat: Flat, tensors: Mapping[str, torch.Tensor]) -> tuple[Structure, dict[str, torch.Tensor]]:
    """Call the module so that what it writes into its arguments and buffers does no harm."""
    result, leaves, _, _ = watched(flat, tensors)
    return result, leaves


def watched(
    flat: Flat, tensors: Mapping[str, torch.Tensor]
) -> tuple[Structure, dict[str, torch.Tensor], list[str], list[str]]:
    """Call the module on copies, and put its buffers back.

    Returns:
        What it returned, the tensors of that, and the names of the arguments and of the buffers that it wrote into.
    """
    copies = {name: each.detach().clone() for name, each in tensors.items()}
    before = {name: _version(each) for name, each in copies.items()}
    with torch.no_grad(), untouched(flat.module) as buffers:
        result, leaves = flatten_result(flat.run(list(copies.values())))
        memory = {each.untyped_storage()._cdata for each in flat.module.buffers() if each.layout is torch.strided}
        for name, leaf in leaves.items():  # which must outlast the buffer that it is
            if leaf.layout is torch.strided and leaf.untyped_storage()._cdata in memory:
                leaves[name] = leaf.clone()
    return result, leaves, [name for name, each in copies.items() if _version(each) != before[name]], buffers


@contextlib.contextmanager
def untouched(module: nn.Module) -> Iterator[list[str]]:
    """Put buffers back that are written into meanwhile: a stand-in shares them with the user's module.

    Yields:
        A list that in the end has the names of these buffers.
    """
    kept = []
    for name, buffer in module.named_buffers():
        owner, _, attribute = name.rpartition(".")
        place = module.get_submodule(owner)._buffers
        kept.append((name, place, attribute, buffer, _version(buffer), buffer.detach().clone()))
    written: list[str] = []
    try:
        yield written
    finally:
        with torch.no_grad():
            for name, place, attribute, buffer, version, copied in kept:
                if _version(buffer) != version:
                    buffer.copy_(copied)
                elif place.get(attribute) is buffer:
                    continue
                place[attribute] = buffer
                written.append(name)


def _version(tensor: torch.Tensor) -> int:
    """How often a tensor was written into; inference mode does not count."""
    return 0 if tensor.is_inference() else tensor._version


def check_devices(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse what is not in the CPU's memory.

    Raises:
        InputError: it names the first parameter, buffer or argument that is elsewhere.
    """
    kinds = (("parameter", module.named_parameters()), ("buffer", module.named_buffers()), ("input", tensors.items()))
    for kind, named in kinds:
        for name, tensor in named:
            if tensor.device.type != "cpu":
                on_cpu = "pass x.cpu()" if kind == "input" else "export a copy: copy.deepcopy(module).cpu()"
                hint = "load its weights first" if tensor.is_meta else on_cpu
                raise InputError(
                    f"is on {tensor.device}, and exports are made on the CPU", where=f"{kind} {name!r}", hint=hint
                )


def check_module(module: object) -> None:
    """Refuse what is no module of Python's.

    Raises:
        InputError: it is something else, or TorchScript's.
    """
    where = "the module"
    if not isinstance(module, nn.Module):
        what = f"it is a {type(module).__name__}, and no torch.nn.Module"
        raise InputError(what, where=where, hint="put the function into the forward of a module")
    if isinstance(module, torch.jit.ScriptModule):
        what = "it is TorchScript, which no exporter takes apart"
        raise InputError(what, where=where, hint="take the module that was scripted or traced")


def in_training(module: nn.Module, name: str = "") -> str | None:
    """The name of the first module within that is in training mode; None where none is.

    Traced graphs, and layers with packed weights, compute the same in both modes.
    """
    if isinstance(module, fx.GraphModule) or is_packed(module):
        return None
    if module.training:
        return name
    inner = (in_training(each, f"{name}.{child}".strip(".")) for child, each in module.named_children())
    return next((each for each in inner if each is not None), None)


@contextlib.contextmanager
def settled(module: nn.Module) -> Iterator[nn.Module]:
    """A stand-in for the module, in evaluation mode, that may be traced: some modules keep what a trace computes.

    It is a copy that shares parameters and buffers; where the module cannot be copied, it is the module itself, which
    is put back into its modes afterwards.
    """
    module = getattr(module, "_orig_mod", module)  # what torch.compile returns
    shared = {id(each): each for each in (*module.parameters(), *module.buffers())}
    modes = {each: each.training for each in module.modules()}
    try:
        stand_in = copy.deepcopy(module, shared)
    except Exception:  # whatever an attribute that cannot be copied raises
        stand_in = module
    try:
        stand_in.eval()
        with _without_fast_path():  # whose operators have no ONNX form
            yield stand_in
    finally:
        if stand_in is module:
            for each, training in modes.items():
                each.training = training


class _Shared:
    """A state of the whole process that several threads may want at once: the first makes it, the last undoes it."""

    def __init__(self, make: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self._make, self._lock, self._users = make, threading.Lock(), 0

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._users:
                self._made = self._make()
                self._made.__enter__()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._made.__exit__(None, None, None)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    level = logging.root.manager.disable
    log = torch._C._jit_onnx_log
    logging.disable(logging.CRITICAL)
    try:
        nowhere = io.StringIO()  # dynamo prints the graphs that it gives up to the one or the other
        with warnings.catch_warnings(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            torch._C._jit_onnx_log = lambda *_: None  # prints whole graphs, past Python's sys.stdout
            yield
    finally:
        torch._C._jit_onnx_log = log
        logging.disable(level)


@contextlib.contextmanager
def _slow_attention() -> Iterator[None]:
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


_quiet, _without_fast_path = _Shared(_silence), _Shared(_slow_attention)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence: exporters log, warn and print about what a user can do nothing about."""
    with _quiet():
        yield


def _is_set(value: Any) -> TypeGuard[Constant]:
    """Whether it is a constant other than None."""
    return isinstance(value, Constant) and value.value is not None


def _shown(signature: inspect.Signature) -> str:
    """A signature without annotations and defaults."""
    names = []
    for name, parameter in signature.parameters.items():
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        stars = "*" * (variable.index(parameter.kind) + 1) if parameter.kind in variable else ""
        optional = "" if parameter.default is inspect.Parameter.empty else "=…"
        names.append(f"{stars}{name}{optional}")
    return f"({', '.join(names)})"
