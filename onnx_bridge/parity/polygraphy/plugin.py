"""``polygraphy run --migraphx``: its options, and the lines of Polygraphy's script that create the runner.

Polygraphy loads it by the entry point ``polygraphy.run.plugins``.
"""

from __future__ import annotations

from typing import Any

from polygraphy.tools.args import util as args_util
from polygraphy.tools.args.backend.onnx.loader import OnnxLoadArgs
from polygraphy.tools.args.base import BaseArgs, BaseRunnerArgs
from polygraphy.tools.args.model import ModelArgs
from polygraphy.tools.script import make_invocable


def argument_groups() -> list[BaseArgs]:
    """Return the groups of options to add; called by the entry point."""
    return [MigraphxRunnerArgs()]


class MigraphxRunnerArgs(BaseRunnerArgs):  # type: ignore[misc]
    """MIGraphX Inference: running inference with AMD MIGraphX, by ONNX Bridge.

    Depends on:

        - ModelArgs
        - OnnxLoadArgs
    """

    def get_name_opt_impl(self) -> tuple[str, str]:
        """Return the runner's name, and its option."""
        return "MIGraphX", "migraphx"

    def add_parser_args_impl(self) -> None:
        add = self.group.add_argument
        add("--migraphx-target", help="gpu, ref (any CPU), or auto: gpu if there is one. Defaults to auto.")
        add("--migraphx-pipeline", help="Passes, as 'a,b{option=value}', or a pipeline's name. Defaults to 'default'.")
        add(
            "--migraphx-no-host",
            action="store_true",
            default=None,
            help="Fail where MIGraphX cannot run a node, instead of running it on ONNX Runtime.",
        )
        add("--migraphx-timeout", type=float, metavar="S", help="Time limit for each MIGraphX step.")
        add("--migraphx-memory", type=float, metavar="GiB", help="Memory limit of MIGraphX's process.")

    def parse_impl(self, args: Any) -> None:
        """Read the options that were given.

        Attributes:
            options: the given arguments of `onnx_bridge.parity.polygraphy.runner.MigraphxRunner`.
        """
        names = ("target", "pipeline", "timeout", "memory")
        given = {name: args_util.get(args, f"migraphx_{name}") for name in names}
        given["host"] = False if args_util.get(args, "migraphx_no_host") else None
        self.options = {name: value for name, value in given.items() if value is not None}

    def add_to_script_impl(self, script: Any) -> None:
        """Add the runner to the script; it loads the file itself unless Polygraphy's options change the model."""
        loading = self.arg_groups[OnnxLoadArgs]
        changed = loading.must_use_onnx_loader()
        model = loading.add_to_script(script) if changed else self.arg_groups[ModelArgs].path
        script.add_import(imports=["MigraphxRunner"], frm="onnx_bridge.parity.polygraphy.runner")
        script.add_runner(make_invocable("MigraphxRunner", model, **self.options))
