"""A request: a frozen dataclass that says what one verb is asked to do; each option is a field, stated once.

    rtol: Annotated[float | None, Option("Relative tolerance, instead of the dtype's own.", minimum=0.0)] = None

From such a line follow the option of the command line (`onnx_bridge.cli.options`), the keyword of the API's function
(`onnx_bridge.requests.keywords`, which `make keywords` writes), JSON, what a manifest records, and the reference pages.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

import msgspec

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.core.schema import from_text

if TYPE_CHECKING:  # the command line shows the help of a verb without numpy and onnx
    import onnx_ir as ir

    from onnx_bridge.samples.files import SampleSource

    Data = SampleSource
else:
    Data = Annotated[Path, "SampleSource"]
"""Samples, or the place to read them from. JSON has a path: samples in memory have no form there."""
ModelSource: TypeAlias = "str | os.PathLike[str] | ir.Model"


@dataclass(frozen=True)
class Needs:
    """Another option of the same request, without which an option would have no effect.

    Attributes:
        values: the values of it, of which one is needed; empty for any but its default.
        absent: whether it must not be given instead.
    """

    name: str
    values: tuple[Any, ...] = ()
    absent: bool = False

    def problem(self, field: Field, value: Any) -> str | None:
        """Return what is missing from the value of the other option, or is too much; None if nothing is."""
        if self.absent:
            return None if value == field.default else f"with `{self.name}`"
        if not self.values:
            return None if value != field.default else f"without `{self.name}`"
        given = value if isinstance(value, tuple) else (value,)
        return None if set(given) & set(self.values) else f"without `{self.name}` {' or '.join(map(str, self.values))}"


@dataclass(frozen=True)
class Option:
    """The properties of an option besides its name, its type and its default.

    Attributes:
        help: a sentence for the user.
        flag: the name on the command line, if it differs from the field's.
        metavar: the placeholder of the value in the help; default: the choices, or the type.
        parse: reads the text of the command line; default: the type does.
        many: whether the option is repeatable; `parse` then takes the list of texts.
        default: the default as it is written on the command line, if the text is parsed.
        minimum: the smallest value.
        above: the largest value that is too small.
        complete: proposes values in a shell.
        api: the type of the API's keyword, if it differs from the field's.
        cli: whether it is an option of the command line.
        needs: the option without which it would have no effect.
        panel: the heading in the help under which it is listed.
    """

    help: str
    flag: str = ""
    metavar: str | None = None
    parse: Callable[[Any], Any] | None = None
    many: bool = False
    default: str | None = None
    minimum: float | None = None
    above: float | None = None
    complete: Callable[[str], list[str]] | None = None
    api: str = ""
    cli: bool = True
    needs: Needs | None = None
    panel: str = ""


class Part:
    """Marks a field as a request of its own, whose options are options of the whole."""

    def __init__(self, *names: str, needs: Mapping[str, Needs] | None = None) -> None:
        """Create a mark for the options ``names`` of the part, default: all, and what some need of the whole."""
        self.names, self.needs = names, needs or {}


@dataclass(frozen=True)
class Field:
    """An option of a request, or of a part of it.

    Attributes:
        path: the parts that lead to it.
        default: the value without the option.
        option: its other properties.
    """

    name: str
    path: tuple[str, ...]
    type: Any
    default: Any
    option: Option

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return self.option.flag or f"--{self.name.replace('_', '-')}"

    @property
    def choices(self) -> tuple[Any, ...]:
        """The only values; empty if values are not restricted to some."""
        return next((typing.get_args(kind) for kind in members(self.type) if typing.get_origin(kind) is Literal), ())

    def check(self, value: Any) -> None:
        """Raise InputError if a value is out of range, or not one of the choices."""
        if value is None or value == self.default:
            return
        if self.choices and value not in self.choices:
            known = ", ".join(map(str, self.choices))
            hint = nearest(str(value), self.choices) or f"there {'are' if len(self.choices) > 1 else 'is'} {known}"
            raise InputError(f"the value cannot be {value!r}", where=self.name, hint=hint)
        low = self.option.minimum is not None and value < self.option.minimum
        if low or (self.option.above is not None and value <= self.option.above):
            hint = f"give {self.option.minimum} or more" if low else f"give more than {self.option.above:g}"
            raise InputError(f"the value cannot be {value}", where=self.name, hint=hint)


@dataclass(frozen=True)
class Request:
    """The options of a verb; each field has a default."""

    def __post_init__(self) -> None:
        for field in fields_of(type(self)):
            if not field.path:
                field.check(getattr(self, field.name))

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return the request with options as the API takes them (None for a default); raises InputError."""
        known = {field.name: field for field in fields_of(cls)}
        for name in options:
            if name not in known:
                hint = nearest(name, known) or f"there are {', '.join(known)}"
                raise InputError("the option does not exist", where=f"option {name!r}", hint=hint)
        given = {name: plain(known[name].type, value) for name, value in options.items() if value is not None}
        request = cls()._with({(*known[name].path, name): value for name, value in given.items()})
        request.check_needs(given)
        return request

    def check_needs(self, given: Mapping[str, Any]) -> None:
        """Raise InputError for an option that would have no effect; others of the names are ignored."""
        known = {field.name: field for field in fields_of(type(self))}
        for name, value in given.items():
            needs = known[name].option.needs if name in known else None
            if needs is None or needs.name not in known or value == known[name].default:
                continue
            other = known[needs.name]
            problem = needs.problem(other, functools.reduce(getattr, (*other.path, other.name), self))
            if problem is not None:
                what = f"`{name}` has no effect {problem}"
                raise InputError(what, where=name, hint="leave one of the two out" if needs.absent else "leave it out")

    def _with(self, values: Mapping[tuple[str, ...], Any]) -> Self:
        """Return a copy with values of fields, and of fields of its parts."""
        changed = {path[0]: value for path, value in values.items() if len(path) == 1}
        for part in dict.fromkeys(path[0] for path in values if len(path) > 1):
            inner = {path[1:]: value for path, value in values.items() if path[0] == part and len(path) > 1}
            changed[part] = getattr(self, part)._with(inner)
        return replace(self, **changed)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; raises TypeError for values that are in memory only."""
        values: dict[str, Any] = msgspec.to_builtins(self, enc_hook=os.fspath)
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any], where: str = "request") -> Self:
        """Return the request that `to_json` wrote, with defaults of fields that are not given; raises InputError."""
        return cls(**{name: cls.field_value(name, value, where) for name, value in values.items()})

    @classmethod
    def field_value(cls, name: str, value: Any, where: str) -> Any:
        """Read one field from a JSON value; raises InputError if it is unknown or of the wrong type."""
        hints = hints_of(cls)
        if name not in hints:
            hint = nearest(name, hints) or f"there are {', '.join(hints)}"
            raise InputError(f"the setting {name!r} does not exist", where=where, hint=hint)
        try:
            return msgspec.convert(value, hints[name], dec_hook=from_text)
        except msgspec.ValidationError as error:
            expected = str(error).partition(" - at ")[0].lower().replace("`", "")
            raise InputError(f"{name} cannot be {value!r}", where=where, hint=expected) from None


def hints_of(request: type[Request]) -> dict[str, Any]:
    """Return the annotation of each field of a request."""
    return _hints(request)  # type: ignore[arg-type]  # mypy asks whether instances are hashable


def fields_of(request: type[Request]) -> tuple[Field, ...]:
    """Return the options of a request, with those of its parts, in order."""
    return _fields(request)  # type: ignore[arg-type]  # as above


@functools.cache
def _hints(request: type[Request]) -> dict[str, Any]:
    hints = typing.get_type_hints(request, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(request)}


@functools.cache
def _fields(request: type[Request]) -> tuple[Field, ...]:
    return tuple(_options(request))


def _options(request: type[Request]) -> Iterator[Field]:
    for field in dataclasses.fields(request):
        hint = hints_of(request)[field.name]
        mark = hint.__metadata__[0] if typing.get_origin(hint) is Annotated else None
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if isinstance(mark, Option):
            yield Field(field.name, (), hint.__origin__, default, mark)
        elif isinstance(mark, Part):
            for inner in fields_of(hint.__origin__):
                if inner.name in mark.names or not mark.names:
                    value = functools.reduce(getattr, (*inner.path, inner.name), default)
                    option = replace(inner.option, needs=mark.needs.get(inner.name, inner.option.needs))
                    yield replace(inner, path=(field.name, *inner.path), default=value, option=option)


def members(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the only type, each without annotations."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return tuple(kind.__origin__ if typing.get_origin(kind) is Annotated else kind for kind in kinds)


def plain(kind: Any, value: Any) -> Any:
    """Return a value of the API as a field of some type holds it: sequences as tuples, arrays as JSON."""
    for member in members(kind):
        origin, arguments = typing.get_origin(member), typing.get_args(member)
        if origin is tuple and isinstance(value, (list, tuple, range)):
            return tuple(plain(arguments[0], item) for item in value)
        if origin is Mapping and isinstance(value, Mapping):
            return {name: plain(arguments[1], item) for name, item in value.items()}
        if member is str and hasattr(value, "tolist"):
            return json.dumps(value.tolist())
        if member is Path and isinstance(value, (str, os.PathLike)):
            return Path(value)
    return value
