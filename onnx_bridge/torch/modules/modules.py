"""The state of a module: its devices, modes and buffers, and a copy of it that may be traced."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import fx, nn

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.third_party import ProcessState
from onnx_bridge.torch.modules.dynamic_linear import DynamicLinear, is_dynamic_linear, is_packed
from onnx_bridge.torch.modules.projected_lstm import ProjectedLstm, is_projected

_REPLACEMENTS: tuple[tuple[Callable[[nn.Module], bool], Callable[..., nn.Module]], ...] = (
    (is_dynamic_linear, DynamicLinear),
    (is_projected, ProjectedLstm),
)
"""The modules that cannot be exported, and those that compute the same."""


def check_module(module: object) -> None:
    """Check that something is a module written in Python, not TorchScript; raises InputError otherwise."""
    where = "the module"
    if not isinstance(module, nn.Module):
        what = f"the module is a {type(module).__name__}, not a torch.nn.Module"
        raise InputError(what, where=where, hint="put the function into the forward of a module")
    if isinstance(module, torch.jit.ScriptModule):
        what = "the module is in TorchScript, which no exporter can trace"
        raise InputError(what, where=where, hint="pass the module that was scripted or traced")


def check_devices(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Check that all tensors of a module and its arguments are on the CPU; raises an InputError that names one."""
    kinds = (("parameter", module.named_parameters()), ("buffer", module.named_buffers()), ("input", tensors.items()))
    for kind, named in kinds:
        for name, tensor in named:
            if tensor.device.type != "cpu":
                on_cpu = "pass x.cpu()" if kind == "input" else "export a copy: copy.deepcopy(module).cpu()"
                hint = "load its weights first" if tensor.is_meta else on_cpu
                raise InputError(
                    f"is on {tensor.device}, and exports are made on the CPU", where=f"{kind} {name!r}", hint=hint
                )


def training_submodule(module: nn.Module, name: str = "") -> str | None:
    """Return the name of the first submodule in training mode (the module itself: ``name``), or None.

    Traced graphs, and layers with packed weights, compute the same in both modes and are skipped.
    """
    if isinstance(module, fx.GraphModule) or is_packed(module):
        return None
    if module.training:
        return name
    inner = (training_submodule(child, f"{name}.{key}".strip(".")) for key, child in module.named_children())
    return next((path for path in inner if path is not None), None)


@contextlib.contextmanager
def inference_copy(module: nn.Module) -> Iterator[nn.Module]:
    """Copy a module in evaluation mode, for tracing: some modules store what a trace computes.

    It shares parameters and buffers with the module. A module that cannot be copied is used itself, and its training
    flags are restored afterwards.
    """
    module = getattr(module, "_orig_mod", module)  # of what torch.compile returns
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    modes = {submodule: submodule.training for submodule in module.modules()}
    try:
        copied = copy.deepcopy(module, shared)
    except Exception:  # raised by any attribute that cannot be copied
        copied = module
    try:
        copied.eval()
        with _without_fast_path():
            yield copied
    finally:
        if copied is module:
            for submodule, training in modes.items():
                submodule.training = training


@contextlib.contextmanager
def _attention_without_fast_path() -> Iterator[None]:
    """Disable the fused attention operators, which have no ONNX form."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


_without_fast_path = ProcessState(_attention_without_fast_path)


@contextlib.contextmanager
def restored_buffers(module: nn.Module) -> Iterator[list[str]]:
    """Restore at the end the buffers that are written to, which copies share; yield a list that then names them."""
    kept = []
    for name, buffer in module.named_buffers():
        owner, _, attribute = name.rpartition(".")
        place = module.get_submodule(owner)._buffers
        kept.append((name, place, attribute, buffer, write_count(buffer), buffer.detach().clone()))
    written: list[str] = []
    try:
        yield written
    finally:
        with torch.no_grad():
            for name, place, attribute, buffer, count, copied in kept:
                if write_count(buffer) != count:
                    buffer.copy_(copied)
                elif place.get(attribute) is buffer:
                    continue
                place[attribute] = buffer
                written.append(name)


def write_count(tensor: torch.Tensor) -> int:
    """Return how often autograd counted an in-place write to a tensor; 0 for tensors of inference mode."""
    return 0 if tensor.is_inference() else tensor._version


def traceable(module: nn.Module) -> nn.Module:
    """Return a copy of a module with replacements for what cannot be exported; the module itself without any."""
    for applies, build in _REPLACEMENTS:
        if applies(module):
            return build(module)
    if not any(applies(submodule) for submodule in module.modules() for applies, _ in _REPLACEMENTS):
        return module
    copied = copy.copy(module)
    copied.__dict__["_modules"] = {
        name: child if child is None else traceable(child) for name, child in module._modules.items()
    }
    return copied
