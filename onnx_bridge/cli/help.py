"""The help of a verb: its options in groups."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

_FIRST = ("Arguments", "Options", "Model", "Precision", "Proof")
_LAST = ("Many models", "Target", "Runtime")


class GroupedCommand(TyperCommand):
    """A command whose help lists the options under the headings that they name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                default = "Arguments" if parameter.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or default, []).append(record)
        others = [heading for heading in groups if heading not in _FIRST + _LAST]
        for heading in filter(groups.__contains__, (*_FIRST, *others, *_LAST)):
            with formatter.section(heading):
                formatter.write_dl(groups[heading])
