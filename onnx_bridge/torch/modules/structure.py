"""Nested values as named tensors, and back: the arguments and results of a module as inputs and outputs of a graph.

    {"logits": t, "past_key_values": ((k, v), …)}   ⇄   logits, past_key_values.0.0, past_key_values.0.1, …

A name is the path to the tensor: field names, keys and positions, joined by dots. Containers are tuples, lists, named
tuples, mappings (among them the outputs of transformers), dataclasses, transformers' caches
(``past_key_values.0.key``), and whatever is registered with torch's pytrees. Everything else is a constant: None,
numbers, strings, and objects of unknown types. A complex tensor becomes a real one with a last dimension of 2.
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
"""The name of an output without a field name: a single tensor, or the items of a tuple."""
_CACHES = "transformers.cache_utils"
_CACHE_PARTS = {
    "layers": "",
    "keys": "key",
    "values": "value",
    "self_attention_cache": "decoder",
    "cross_attention_cache": "encoder",
}
"""The attributes of transformers' caches in names; empty for the list of layers."""


@dataclass(frozen=True)
class Leaf:
    """A tensor with a name; a complex one is stored as a real one."""

    name: str
    complex: bool = False


@dataclass(frozen=True)
class Constant:
    """A value that is not a tensor, and therefore fixed."""

    value: Any = field(compare=False)


@dataclass(frozen=True)
class Items:
    """A tuple, a list or a named tuple."""

    kind: type
    children: tuple[Structure, ...]


@dataclass(frozen=True)
class Entries:
    """A mapping; ``factory`` is the ``default_factory`` of a ``defaultdict``."""

    kind: type
    keys: tuple[Any, ...]
    children: tuple[Structure, ...]
    factory: Callable[[], Any] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Fields:
    """An object: ``attributes`` are rebuilt, the others copied from ``template``."""

    template: Any = field(compare=False)
    attributes: tuple[str, ...]
    children: tuple[Structure, ...]


@dataclass(frozen=True)
class Registered:
    """A container that is registered as a pytree; ``context`` is what it is unflattened with."""

    kind: type
    context: Any = field(compare=False)
    children: tuple[Structure, ...]


Structure = Leaf | Constant | Items | Entries | Fields | Registered


def flatten(value: Any, name: str, leaves: dict[str, torch.Tensor]) -> Structure:
    """Flatten a value with a name; ``leaves`` receives the tensors by name."""
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
        attributes = [key for key, child in vars(value).items() if _holds_tensors(child)]
        children = []
        for attribute in attributes:
            part, child = _CACHE_PARTS.get(attribute, attribute), getattr(value, attribute)
            children.append(inner(part, child) if part else flatten(child, name, leaves))
        return Fields(_emptied(value, attributes), tuple(attributes), tuple(children))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        attributes = [field.name for field in dataclasses.fields(value)]
        children = [inner(attribute, getattr(value, attribute)) for attribute in attributes]
        return Fields(_emptied(value, attributes), tuple(attributes), tuple(children))
    if type(value) in _pytree.SUPPORTED_NODES:
        node = _pytree.SUPPORTED_NODES[type(value)]
        if node.flatten_with_keys_fn is not None:
            keyed, context = node.flatten_with_keys_fn(value)
            pairs = [(_pytree.keystr((key,)).strip("[]'.<>"), child) for key, child in keyed]
        else:
            parts, context = node.flatten_fn(value)
            pairs = [(str(index), child) for index, child in enumerate(parts)]
        return Registered(type(value), context, tuple(inner(part, child) for part, child in pairs))
    return Constant(value)


def flatten_result(value: Any) -> tuple[Structure, dict[str, torch.Tensor]]:
    """Flatten the result of a module: a single tensor is ``output``, items of a tuple are ``output.0``, …"""
    leaves: dict[str, torch.Tensor] = {}
    keyed = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    named = keyed or hasattr(value, "_fields") or dataclasses.is_dataclass(value)
    return flatten(value, "" if named else _OUTPUT, leaves), leaves


def rebuild(structure: Structure, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Rebuild a value from tensors by name, one for each leaf of a structure that `flatten` returned."""

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
            copied = _copied(template)
            for attribute, child in zip(attributes, children(), strict=True):
                object.__setattr__(copied, attribute, child)  # also on frozen dataclasses
            return copied
        case Registered(kind, context, _):
            return _pytree.SUPPORTED_NODES[kind].unflatten_fn(list(children()), context)


def leaf_names(structure: Structure, holds: Callable[[Leaf], bool] = lambda _leaf: True) -> list[str]:
    """Return the names of the tensors, in order, of the leaves for which ``holds`` is true."""
    if isinstance(structure, Leaf):
        return [structure.name] if holds(structure) else []
    if isinstance(structure, Constant):
        return []
    return [name for child in structure.children for name in leaf_names(child, holds)]


def renamed(structure: Structure, names: Mapping[str, str]) -> Structure:
    """Return the structure with other names of tensors; names that are not given stay."""
    if isinstance(structure, Leaf):
        return dataclasses.replace(structure, name=names.get(structure.name, structure.name))
    if isinstance(structure, Constant):
        return structure
    return dataclasses.replace(structure, children=tuple(renamed(child, names) for child in structure.children))


def constants(structure: Structure) -> list[Any]:
    """Return the values that are not tensors, in order, without None."""
    if isinstance(structure, Leaf):
        return []
    if isinstance(structure, Constant):
        return [] if structure.value is None else [structure.value]
    return [value for child in structure.children for value in constants(child)]


def _mapping(kind: type, entries: dict[Any, Any], factory: Callable[[], Any] | None) -> Any:
    if kind is dict:
        return entries
    if dataclasses.is_dataclass(kind):  # the outputs of transformers, which omit None
        return kind(**entries)
    constructor: Callable[..., Any] = kind
    return constructor(factory, entries) if issubclass(kind, defaultdict) else constructor(entries)


def _is_cache(value: Any) -> bool:
    """Return whether it is a transformers cache, or a layer of one."""
    return any(base.__module__ == _CACHES for base in type(value).__mro__)


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, Mapping | tuple | list):
        return any(map(_holds_tensors, value.values() if isinstance(value, Mapping) else value))
    if isinstance(value, torch.Tensor):
        return True
    return _is_cache(value) and any(map(_holds_tensors, vars(value).values()))


def _emptied(value: Any, attributes: list[str]) -> Any:
    """Return a copy without the attributes that will be rebuilt, so that it keeps no tensors alive."""
    template = _copied(value)
    for attribute in attributes:
        object.__setattr__(template, attribute, None)
    return template


def _copied(value: Any) -> Any:
    """Return a copy with copies of its own lists and dicts, so that changes do not reach the original."""
    copied = copy.copy(value)
    for attribute, child in getattr(value, "__dict__", {}).items():  # absent if the class has __slots__
        if type(child) in (dict, list):
            object.__setattr__(copied, attribute, copy.copy(child))
    return copied
