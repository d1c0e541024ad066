"""The layers of a module as Quark takes them: with weights of their own, padded by numbers."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm


def hold_weights(module: nn.Module) -> None:
    """Let each layer hold its own weights: those that are computed at each call now (by weight or spectral norm, say),
    and those that it shares with another layer, which Quark would take away from that one.

    torch.nn.utils.parametrize removes a parametrization from the class, which a copy shares with its original.
    """
    for part in list(module.modules()):
        if parametrize.is_parametrized(part):
            names: list[str] = list(part.parametrizations)  # type: ignore[arg-type]
            weights = {name: getattr(part, name).detach().clone() for name in names}
            part.__class__ = parametrize.type_before_parametrizations(part)
            del part.parametrizations
            for name, weight in weights.items():
                part.register_parameter(name, nn.Parameter(weight))
        for hook in list(part._forward_pre_hooks.values()):  # of the norms that parametrizations replace
            if isinstance(hook, WeightNorm):
                nn.utils.remove_weight_norm(part, hook.name)
            elif isinstance(hook, SpectralNorm):
                nn.utils.remove_spectral_norm(part, hook.name)
    held = set()
    for part in module.modules():
        for name, weight in part.named_parameters(recurse=False):
            if weight in held:
                part.register_parameter(name, nn.Parameter(weight.detach().clone()))
            held.add(weight)


def pad_by_numbers(module: nn.Module) -> Iterator[str]:
    """Replace ``padding="same"`` and ``"valid"``, which Quark does not take; yield the layers with uneven padding."""
    for name, part in module.named_modules():
        if isinstance(part, nn.Conv2d) and isinstance(part.padding, str):
            ends = part._reversed_padding_repeated_twice[::-1]  # two for each axis
            if ends[::2] == ends[1::2]:
                part.padding = tuple(ends[::2])
            else:
                yield name
