"""The page of the command line: every verb with its arguments and options, as the parsers define them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from docs.generator.markdown import code, table
from onnx_bridge.cli.main import app

_HEAD = """# Command line

`onnx-bridge VERB --help` shows the same. Every verb takes `-h`; a name that is misspelt is answered with the nearest
one. What a verb returns as exit code, and what an error means, is in [Errors and exit codes](errors.md).

"""


def page() -> str:
    """The page."""
    return _HEAD + "\n\n".join(_parts())


def _parts() -> Iterator[str]:
    group: Any = typer.main.get_command(app)
    context = group.make_context("onnx-bridge", [], resilient_parsing=True)
    yield from _command(group, context, 0)


def _command(command: Any, context: Any, level: int) -> Iterator[str]:
    """A command, and its own commands after it."""
    if level:
        yield f"{'#' * (level + 1)} {context.command_path.removeprefix('onnx-bridge ')}"
        yield inspect.cleandoc(command.help or "")
        usage = " ".join(command.collect_usage_pieces(context))
        yield f"```text\n{context.command_path} {usage}\n```"
    records = [
        (code(names), text)
        for parameter in command.get_params(context)
        if (record := parameter.get_help_record(context)) is not None and "--help" not in record[0]
        for names, text in [record]
    ]
    if records:
        yield table(["argument or option" if level else "option of every verb", "meaning"], records)
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        inner = command.get_command(context, name)
        yield from _command(inner, inner.make_context(name, [], parent=context, resilient_parsing=True), level + 1)
