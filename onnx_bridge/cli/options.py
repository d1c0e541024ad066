"""Commands whose options are those of a request, and options that several verbs have besides."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from onnx_bridge.migraphx.kinds import KINDS, VARIABLE
from onnx_bridge.reference import ops_libraries
from onnx_bridge.requests.request import Field, Request, fields_of, members
from passes.core.errors import InputError

_C = TypeVar("_C", bound=Callable[..., None])


_LIBRARIES = inspect.Parameter(
    "ops_library",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        list[Path] | None,
        typer.Option(
            "--ops-library",
            metavar="PATH",
            help=f"A library of custom operators for ONNX Runtime; repeatable; default: {ops_libraries.VARIABLE}.",
            show_default=False,
            rich_help_panel="Runtime",
        ),
    ],
)
"""The option of all verbs that run models."""
_PLACEHOLDERS = {int: "N", float: "X"}
"""Placeholders of values in the help, by type."""


def takes(request: type[Request]) -> Callable[[_C], _C]:
    """Give a command the options of a class of requests, in the place of its parameter ``request``."""

    def decorate(command: _C) -> _C:
        options = {field.name: field for field in fields_of(request) if field.option.cli}
        runs = "timeout" in options  # foreign code

        @functools.wraps(command)
        def run(**given: Any) -> None:
            texts = {name: given.pop(name) for name in options}
            if runs and (libraries := given.pop(_LIBRARIES.name)):
                ops_libraries.use(libraries)
            command(**given, request=read(request, texts))

        signature = inspect.signature(command, eval_str=True)
        parameters = []
        for parameter in signature.parameters.values():
            added = [*map(_parameter, options.values()), *([_LIBRARIES] if runs else [])]
            added = added if parameter.name == "request" else [parameter]
            parameters += [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in added]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run  # type: ignore[return-value]

    return decorate


def read(request: type[Request], texts: Mapping[str, Any]) -> Any:
    """Return a request with the options of a command line; an option of None keeps its default.

    Args:
        texts: values by option, as typer gives them. ``runtime`` becomes that of this process, and of all that it
            starts.

    Raises:
        InputError: a text cannot be read, or a value is out of range.
    """
    fields = {field.name: field for field in fields_of(request)}
    values = {}
    for name, text in texts.items():
        if text is None or text in ((), []):
            continue
        if name == "runtime":
            use_runtime(text)
        else:
            parse = fields[name].option.parse
            values[name] = text if parse is None else parse(text)
    return request.of(values)


def _parameter(field: Field) -> inspect.Parameter:
    """Return an option of a request as a parameter that typer understands."""
    option, kind = field.option, _text_type(field)
    flag, metavar = field.flag, option.metavar or "|".join(map(str, field.choices)) or _PLACEHOLDERS.get(kind)
    default = field.default
    if option.parse is not None:
        default = None
    elif kind is bool and default and "/" not in flag:
        flag, metavar = f"{flag}/--no-{flag.removeprefix('--')}", None
    written = f"  [default: {option.default}]" if option.parse is not None and option.default else ""
    typer_option = typer.Option(
        flag,
        metavar=metavar,
        help=option.help + written,
        show_default=option.parse is None,
        autocompletion=_complete_dims if field.name in ("dims", "buckets") else option.complete or _choices_of(field),
        rich_help_panel=option.panel or None,
    )
    annotation = kind if kind is bool else kind | None
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[annotation, typer_option]
    )


def _choices_of(field: Field) -> Callable[[str], list[str]] | None:
    """Return a function that completes the choices of an option; None if it has no choices."""
    choices = [str(choice) for choice in field.choices]
    return (lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]) if choices else None


def _complete_dims(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the open dimensions of the model before it on the command line, each with ``=``."""
    from onnx_bridge.model import io as models

    given = context.params.get("model") or context.params.get("sources") or ()
    names: dict[str, None] = {}
    for path in [given] if isinstance(given, str | Path) else given:
        with contextlib.suppress(InputError, OSError):
            for value in models.load(path).graph.inputs:
                names |= dict.fromkeys(dim.value for dim in value.shape or () if not isinstance(dim, int) and dim.value)
    return [f"{name}=" for name in names if f"{name}=".startswith(incomplete)]


def _text_type(field: Field) -> Any:
    """Return the type of an option on the command line."""
    if field.option.many:
        return list[str]
    if field.option.parse is not None:
        return str
    kinds = [kind for kind in members(field.type) if kind is not type(None)]
    return kinds[0] if kinds[0] in (bool, int, float, Path) else str


def again(context: typer.Context, *names: str) -> Iterator[str]:
    """Yield the given options of a command, by the names of fields of its request, for another command."""
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if parameter.name in names and value is not None and value != parameter.default:
            for text in value if isinstance(value, (list, tuple)) else [value]:
                yield from (parameter.opts[0], str(text))


def _output_file(path: Path | None) -> Path | None:
    """Return the path of a file to write; raises InputError if its folder is missing, before there is work to lose."""
    if path is not None and not path.parent.is_dir():
        raise InputError(
            "the file cannot be written: its folder does not exist", where=str(path), hint="make the folder"
        )
    return path


OutputFile = functools.partial(typer.Option, callback=_output_file)
"""An option that names a file to write."""
_MODEL = "An ONNX file, or the folder of one with its configuration"
Model = Annotated[Path, typer.Argument(metavar="MODEL", help=f"{_MODEL}.", show_default=False)]
ModelOrBundle = Annotated[
    Path,
    typer.Argument(metavar="MODEL|BUNDLE", help=f"{_MODEL}, or a bundle of `convert`.", show_default=False),
]
HtmlReport = Annotated[
    Path | None,
    OutputFile("--report", metavar="OUT.html", help="Write a page that a browser shows, offline."),
]


def use_runtime(name: str | None) -> str | None:
    """Choose the runtime of this process, and of all that it starts."""
    if name is not None:
        os.environ[VARIABLE] = name if name in KINDS else str(Path(name).expanduser().absolute())
    return name
