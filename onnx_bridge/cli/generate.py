"""The verb ``generate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.bundle import generate as generation
from onnx_bridge.cli.options import Memory, Runtime, Timeout, is_size
from onnx_bridge.cli.terminal import Json, progress, show
from passes.core.errors import InputError


def generate(
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="What `convert --as decoder` wrote.", show_default=False)
    ],
    ids: Annotated[
        str | None, typer.Option(metavar="1,15,7", help="The tokens of the prompt, or of what an encoder takes.")
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(metavar="X.npy", help="What an encoder takes, if these are no tokens.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="2", help="Behind an encoder: the tokens that the text begins with.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="The most tokens; or what fits.")
    ] = None,
    stop: Annotated[str, typer.Option(metavar="2", help="Tokens that end the text.")] = "",
    runtime: Runtime = None,
    timeout: Timeout = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Generate the most probable tokens that follow a prompt, or the text that an encoder's input leads to."""
    with progress(as_json, "generate"):
        result = generation.generate(
            bundle,
            None if ids is None else _tokens(ids, "--ids"),
            max_new_tokens,
            inputs=inputs,
            prompt=None if prompt is None else _tokens(prompt, "--prompt"),
            stop=_tokens(stop, "--stop"),
            timeout=timeout,
            memory=memory,
        )
    show(result, as_json)


def _tokens(text: str, option: str) -> list[int]:
    parts = [each.strip() for each in text.split(",") if each.strip()]
    if not all(map(is_size, parts)):
        raise InputError(f"{text!r} is not TOKEN,TOKEN", where=option, hint=f"for example {option} 1,15,7")
    return [int(each) for each in parts]
