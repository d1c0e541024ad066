"""A verb on the command line: its options in groups, and its errors."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from passes.core.errors import BridgeError

_FIRST = ("Arguments", "Options", "Model", "Precision", "Proof")
_LAST = ("Many models", "Target", "Runtime")


class GroupedCommand(TyperCommand):
    """A command whose help lists the options under the headings that they name, and whose errors spell them."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BridgeError as error:
            from onnx_bridge.model.folder import is_model_folder
            from onnx_bridge.requests.spelling import as_typed, convert_flags

            own = {str(parameter.name): parameter.opts[0] for parameter in self.params}
            flags = {**{name: flag for name, flag in own.items() if flag.startswith("-")}, **convert_flags()}
            error.what, error.hint = as_typed(error.what, flags), error.hint and as_typed(error.hint, flags)
            error.where = flags.get(str(error.where), error.where)
            if error.options[:1] == ("--as",) and "decoder" not in own:
                model = next(str(ctx.params[name]) for name, flag in own.items() if not flag.startswith("-"))
                options = () if is_model_folder(Path(model)) else error.options
                error.options, error.details["command"] = (), shlex.join(["onnx-bridge", "convert", model, *options])
            raise

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
