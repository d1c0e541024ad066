"""Nested values as named tensors, and back: what a module takes and gives, as a graph has it.

    {"logits": t, "past_key_values": ((k, v), …)}   ⇄   logits, past_key_values.0.0, past_key_values.0.1, …

A name is the way to the tensor: field names, keys and positions, joined by dots. Containers are tuples, lists, named
tuples, mappings (among them the outputs of transformers), dataclasses, transformers' caches
(``past_key_values.0.key``), and whatever is registered with torch's pytrees. All else is a constant: None, numbers,
strings, and objects that nothing is known of. A complex tensor is a real one with a last dimension of 2.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree

_OUTPUT = "output"
"""The name of an output that has none: a tensor alone, or the items of a tuple."""
_CACHES = "transformers.cache_utils"
_CACHE_PARTS = {
    "layers": "",
    "keys": "key",
    "values": "value",
    "self_attention_cache": "decoder",
    "cross_attention_cache": "encoder",
}
"""What the attributes of transformers' caches are called in names; nothing for the list of layers."""


@dataclass(frozen=True)
class Leaf:
    """A tensor.

    Attributes:
        name: its name.
        complex: whether it is complex, and its parts are in a last dimension.
    """

    name: str
    complex: bool = False


@dataclass(frozen=True)
class Constant:
    """What is no tensor, and so always the same."""

    value: Any = field(compare=False)


@dataclass(frozen=True)
class Items:
    """A tuple, a list or a named tuple."""

    kind: type
    children: tuple[Structure, ...]


@dataclass(frozen=True)
class Entries:
    """A mapping; ``factory`` is what makes the missing values of a ``defaultdict``."""

    kind: type
    keys: tuple[Any, ...]
    children: tuple[Structure, ...]
    factory: Callable[[], Any] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Fields:
    """An object of which some attributes are rebuilt, and the others are those of ``template``."""

    template: Any = field(compare=False)
    attributes: tuple[str, ...]
    children: tuple[Structure, ...]


@dataclass(frozen=True)
class Registered:
    """What torch's pytrees take apart; ``context`` is what they put it together with."""

    kind: type
    context: Any = field(compare=False)
    children: tuple[Structure, ...]


Structure = Leaf | Constant | Items | Entries | Fields | Registered


def flatten(value: Any, name: str, leaves: dict[str, torch.Tensor]) -> Structure:
    """Take a value apart.

    Args:
        value: anything.
        name: its own name.
        leaves: where the tensors go, by name.
    """
    if isinstance(value, torch.Tensor):
        unique, count = name, 1
        while unique in leaves:
            count += 1
            unique = f"{name}_{count}"
        leaves[unique] = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
        return Leaf(unique, value.is_complex())

    def inner(part: Any, child: Any) -> Structure:
        return flatten(child, f"{name}.{part}" if name else str(part), leaves)

    if isinstance(value, tuple | list):
        names = getattr(value, "_fields", range(len(value)))
        return Items(type(value), tuple(inner(part, child) for part, child in zip(names, value, strict=True)))
    if isinstance(value, Mapping):
        entries = tuple(inner(key, child) for key, child in value.items())
        return Entries(type(value), tuple(value), entries, getattr(value, "default_factory", None))
    if _is_cache(value):
        attributes = [each for each, child in vars(value).items() if _holds_tensors(child)]
        children = []
        for each in attributes:
            part, child = _CACHE_PARTS.get(each, each), getattr(value, each)
            children.append(inner(part, child) if part else flatten(child, name, leaves))
        return Fields(_emptied(value, attributes), tuple(attributes), tuple(children))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        attributes = [each.name for each in dataclasses.fields(value)]
        children = [inner(each, getattr(value, each)) for each in attributes]
        return Fields(_emptied(value, attributes), tuple(attributes), tuple(children))
    if type(value) in _pytree.SUPPORTED_NODES:
        node = _pytree.SUPPORTED_NODES[type(value)]
        if node.flatten_with_keys_fn is not None:
            found, context = node.flatten_with_keys_fn(value)
            pairs = [(_pytree.keystr((key,)).strip("[]'.<>"), child) for key, child in found]
        else:
            parts, context = node.flatten_fn(value)
            pairs = [(str(index), child) for index, child in enumerate(parts)]
        return Registered(type(value), context, tuple(inner(part, child) for part, child in pairs))
    return Constant(value)


def flatten_result(value: Any) -> tuple[Structure, dict[str, torch.Tensor]]:
    """Take apart what a module returned: a tensor alone is ``output``, items of a tuple are ``output.0``, …"""
    leaves: dict[str, torch.Tensor] = {}
    keyed = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    named = keyed or hasattr(value, "_fields") or dataclasses.is_dataclass(value)
    return flatten(value, "" if named else _OUTPUT, leaves), leaves


def rebuild(structure: Structure, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Put a value together from other tensors of the same names.

    Args:
        structure: of `flatten`.
        tensors: at least one for each leaf.
    """

    def children() -> Iterator[Any]:
        return (rebuild(child, tensors) for child in structure.children)  # type: ignore[union-attr]

    match structure:
        case Leaf(name, is_complex):
            return torch.view_as_complex(tensors[name].contiguous()) if is_complex else tensors[name]
        case Constant(value):
            return value
        case Items(kind, _):
            return kind(*children()) if hasattr(kind, "_fields") else kind(children())
        case Entries(kind, keys, _, factory):
            return _mapping(kind, dict(zip(keys, children(), strict=True)), factory)
        case Fields(template, attributes, _):
            made = _copied(template)
            for attribute, child in zip(attributes, children(), strict=True):
                object.__setattr__(made, attribute, child)  # frozen dataclasses, too
            return made
        case Registered(kind, context, _):
            return _pytree.SUPPORTED_NODES[kind].unflatten_fn(list(children()), context)


def leaf_names(structure: Structure, holds: Callable[[Leaf], bool] = lambda _leaf: True) -> list[str]:
    """The names of the tensors, in order; only of those leaves for which it holds."""
    if isinstance(structure, Leaf):
        return [structure.name] if holds(structure) else []
    if isinstance(structure, Constant):
        return []
    return [name for child in structure.children for name in leaf_names(child, holds)]


def renamed(structure: Structure, names: Mapping[str, str]) -> Structure:
    """The same structure whose tensors have other names; those that are not given stay."""
    if isinstance(structure, Leaf):
        return dataclasses.replace(structure, name=names.get(structure.name, structure.name))
    if isinstance(structure, Constant):
        return structure
    return dataclasses.replace(structure, children=tuple(renamed(child, names) for child in structure.children))


def constants(structure: Structure) -> list[Any]:
    """The values that are no tensors, in order, without None."""
    if isinstance(structure, Leaf):
        return []
    if isinstance(structure, Constant):
        return [] if structure.value is None else [structure.value]
    return [value for child in structure.children for value in constants(child)]


def _mapping(kind: type, entries: dict[Any, Any], factory: Callable[[], Any] | None) -> Any:
    if kind is dict:
        return entries
    if dataclasses.is_dataclass(kind):  # the outputs of transformers, which leave out what is None
        return kind(**entries)
    made: Callable[..., Any] = kind
    return made(factory, entries) if issubclass(kind, defaultdict) else made(entries)


def _is_cache(value: Any) -> bool:
    """Whether it is a cache of transformers, or a layer of one."""
    return any(each.__module__ == _CACHES for each in type(value).__mro__)


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, Mapping | tuple | list):
        return any(map(_holds_tensors, value.values() if isinstance(value, Mapping) else value))
    if isinstance(value, torch.Tensor):
        return True
    return _is_cache(value) and any(map(_holds_tensors, vars(value).values()))


def _emptied(value: Any, attributes: list[str]) -> Any:
    """A copy without what will be rebuilt, so that it holds on to no tensors."""
    template = _copied(value)
    for attribute in attributes:
        object.__setattr__(template, attribute, None)
    return template


def _copied(value: Any) -> Any:
    """A copy whose own containers are its own as well: a call that changes them changes no other."""
    made = copy.copy(value)
    for attribute, child in getattr(value, "__dict__", {}).items():  # there is none where all are slots
        if type(child) in (dict, list):
            object.__setattr__(made, attribute, copy.copy(child))
    return made
