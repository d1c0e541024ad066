"""The text form of a pipeline: ``fold-constants{max-bytes=64MiB},freeze-shapes{dims={batch=1},shapes={x=[2,3]}}``.

    pipeline = [ item { "," item } ]            item  = name [ map ]
    map      = "{" [ entry { "," entry } ] "}"  entry = word "=" value
    list     = "[" [ value { "," value } ] "]"  value = map | list | word

A word is a run of other characters, or a JSON string if it holds any of ``{}[],="`` or blanks at its ends. The
annotation of the pass's field determines how a word is read.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import passes
from passes.core.errors import InputError, nearest
from passes.rewriting.base import Pass

Value = str | list["Value"] | dict[str, "Value"]

_WORD = re.compile(r'"(?:[^"\\]|\\.)*"|[^{}\[\],="]+')
_PLAIN = re.compile(r'[^{}\[\],="\s](?:[^{}\[\],="]*[^{}\[\],="\s])?')
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|[KMGT]B|[KMGT]iB)?")
_UNITS = {"B": 1, **{f"{p}B": 1000**i for i, p in enumerate("KMGT", 1)}}
_UNITS |= {f"{p}iB": 1024**i for i, p in enumerate("KMGT", 1)}


def parse(text: str) -> list[tuple[str, dict[str, Value]]]:
    """Read the items of a specification: names, each with its options as text.

    Raises InputError if it is not well formed.
    """
    reader = _Reader(text)
    items: list[tuple[str, dict[str, Value]]] = []
    while reader.peek() or items:
        name = reader.word()
        items.append((name, reader.map() if reader.peek() == "{" else {}))
        if not reader.peek():
            break
        reader.take(",")
    return items


def build(name: str, options: Mapping[str, Value]) -> Pass:
    """Make a pass from its name and its options as text.

    Raises InputError if no pass has this name, no option has that one, or a value is not what the option takes.
    """
    cls = passes.get(name)
    fields = {field.name.replace("_", "-"): field for field in dataclasses.fields(cls)}
    values = {}
    for option, text in options.items():
        if option not in fields:
            known = f"it has {', '.join(fields)}" if fields else "it has no options"
            raise InputError(f"{name} has no option {option}", where="pipeline", hint=nearest(option, fields) or known)
        field = fields[option]
        try:
            values[field.name] = _typed(text, _hints(cls)[field.name], field.metadata.get("unit"))
        except ValueError as error:
            raise InputError(f"{name}: {option}={show(text)}: {error}", where="pipeline") from None
    return cls(**values)


@functools.cache
def _hints(cls: type[Pass]) -> Mapping[str, Any]:
    return typing.get_type_hints(cls)


def options_of(step: Pass) -> dict[str, Any]:
    """Return the options of a pass that differ from their defaults."""
    options = {}
    for field in dataclasses.fields(step):
        value = getattr(step, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        if value != default:
            options[field.name.replace("_", "-")] = value
    return options


def text_of(step: Pass) -> str:
    """Return the canonical text of a pass: its name, and the options that differ from their defaults."""
    units = {field.name.replace("_", "-"): field.metadata.get("unit") for field in dataclasses.fields(step)}
    options = [f"{name}={show(_untyped(value, units[name]))}" for name, value in options_of(step).items()]
    return step.name + (f"{{{','.join(options)}}}" if options else "")


def show(value: Value) -> str:
    """Return a value as text."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{show(key)}={show(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(show, value)) + "]"
    return value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)


class _Reader:
    """A recursive-descent reader."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def peek(self) -> str:
        """Return the next non-blank character; empty at the end."""
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def take(self, expected: str) -> None:
        if self.peek() != expected:
            raise self.error(f"expected {expected!r}")
        self.at += 1

    def error(self, what: str) -> InputError:
        following = repr(self.text[self.at :][:20]) if self.at < len(self.text) else "the end"
        return InputError(f"{what}, found {following} at character {self.at + 1}", where=f"pipeline {self.text!r}")

    def word(self) -> str:
        self.peek()
        word = _WORD.match(self.text, self.at)
        if word is None:
            raise self.error("expected a name or a value")
        self.at = word.end()
        if not word[0].startswith('"'):
            return word[0].strip()
        try:
            return str(json.loads(word[0]))
        except ValueError as error:
            raise self.error(f"bad quoted text ({error})") from None

    def value(self) -> Value:
        match self.peek():
            case "{":
                return self.map()
            case "[":
                return self.list()
        return self.word()

    def map(self) -> dict[str, Value]:
        entries: dict[str, Value] = {}
        for _ in self._places("{", "}"):
            key = self.word()
            self.take("=")
            if key in entries:
                raise self.error(f"{key} is given twice")
            entries[key] = self.value()
        return entries

    def list(self) -> list[Value]:
        return [self.value() for _ in self._places("[", "]")]

    def _places(self, opening: str, closing: str) -> Iterator[None]:
        """Yield at the place of each entry between brackets, for the caller to read it."""
        self.take(opening)
        while self.peek() != closing:
            yield
            if self.peek() != closing:
                self.take(",")
        self.take(closing)


def _typed(value: Value, hint: Any, unit: str | None) -> Any:
    """Convert a value to the type of an annotation; the message of a ValueError says what was expected."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value == "none" and type(None) in arguments:
            return None
        return _typed(value, next(argument for argument in arguments if argument is not type(None)), unit)
    if origin is typing.Literal:
        if value in arguments:
            return value
        hint = nearest(value, arguments) if isinstance(value, str) else None
        raise ValueError(f"expected one of {', '.join(arguments)}" + (f" ({hint})" if hint else ""))
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise ValueError("expected a map, as in {name=value}")
        return {key: _typed(entry, arguments[1], unit) for key, entry in value.items()}
    if origin is tuple:
        if not isinstance(value, list):
            raise ValueError("expected a list, as in [1,2]")
        return tuple(_typed(element, arguments[0], unit) for element in value)
    if not isinstance(value, str):
        raise ValueError("expected a single value")
    return _typed_word(value, hint, unit)


def _typed_word(value: str, hint: Any, unit: str | None) -> bool | int | float | str:
    if hint is bool:
        if value not in ("true", "false"):
            raise ValueError("expected true or false")
        return value == "true"
    if hint is int and unit == "bytes":
        return _size(value)
    if hint in (int, float):
        try:
            number: int | float = hint(value)
        except ValueError:
            raise ValueError("expected a whole number" if hint is int else "expected a number") from None
        return number
    if hint is str:
        return value
    raise TypeError(f"options of type {hint} have no text form")


def _untyped(value: Any, unit: str | None) -> Value:
    """Return the inverse of `_typed`."""
    if value is None:
        return "none"
    if isinstance(value, Mapping):
        return {str(key): _untyped(entry, unit) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return [_untyped(element, unit) for element in value]
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and unit == "bytes":
        size, best = max((size, name) for name, size in _UNITS.items() if value % size == 0)
        return f"{value // size}{best}" if value and size > 1 else str(value)
    return str(value)


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("expected a number of bytes, as in 1024, 64MiB or 1.5GB")
    number, unit = match[1], _UNITS[match[2] or "B"]
    return int(float(number) * unit) if "." in number else int(number) * unit
