"""The verb ``generate``."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from onnx_bridge.cli.options import takes
from onnx_bridge.cli.terminal import Json, progress, show, volume
from onnx_bridge.requests.conversion import RuntimeRequest
from onnx_bridge.requests.texts import is_size, names, numbers_of
from passes.core.text import counted, printable

_LINES = re.compile(r"[^\n\t]+")
"""Text that a terminal shows in one line."""


def tokens(option: str) -> Callable[[str], tuple[int, ...]]:
    """Return a function that reads the token ids of an option."""
    return numbers_of(option, "TOKEN,TOKEN", "1,15,7")


def _prompt(text: str | None) -> tuple[int, ...] | str | None:
    """Return the tokens of a prompt that consists of them; another text as it is."""
    is_text = text is None or not all(part.strip().isdecimal() for part in text.split(","))
    return text if is_text or text is None else tokens("--prompt")(text)


def _ends(text: str) -> tuple[int | str, ...]:
    """Return the tokens that end a text, of ids and of tokens as the tokenizer has them; ``none`` for no token."""
    return () if text == "none" else tuple(int(part) if is_size(part) else part for part in names(text))


@takes(RuntimeRequest)
def generate(
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="A bundle that `convert --as decoder` wrote.", show_default=False)
    ],
    request: RuntimeRequest,
    ids: Annotated[
        str | None, typer.Option(metavar="1,15,7", help="The tokens of the prompt, or of what an encoder takes.")
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option(metavar="X.npy", help="The input of an encoder, if that is not tokens.")
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(metavar="TEXT|2", help="The text to continue; or, behind an encoder, the tokens it begins with."),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="The most tokens; default: until the cache is full.")
    ] = None,
    stop: Annotated[
        str | None,
        typer.Option(
            metavar="2|'</s>'|none", help="Tokens that end the text; default: those that the model's folder declares."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Generate the most probable tokens that follow a prompt, or the text that an encoder's input leads to.

    Example: onnx-bridge generate llama --prompt 'Once upon a time' --max-new-tokens 20
    """
    from onnx_bridge.bundle import generate as generation

    with contextlib.ExitStack() as spinner:
        spinner.enter_context(progress(as_json, "generate"))

        def emit(piece: str) -> None:
            spinner.close()
            if not as_json and not volume.quiet:
                text = _LINES.sub(lambda part: printable(part[0]), piece) if sys.stdout.isatty() else piece
                print(text, end="", flush=True)

        result = generation.generate(
            bundle,
            None if ids is None else tokens("--ids")(ids),
            max_new_tokens,
            inputs=inputs,
            prompt=_prompt(prompt),
            stop=None if stop is None else _ends(stop),
            emit=emit,
            timeout=request.timeout,
            memory=request.memory,
        )
    if as_json:
        show(result, as_json)
    elif not volume.quiet:
        print(flush=True)
        full = f": the cache of --max-length {result.max_length} is full" if result.ended == "cache" else ""
        print(f"{counted(len(result.tokens), 'token')} in {result.seconds:.3g} s{full}", file=sys.stderr)
    if result.ended == "interrupted":
        raise typer.Exit(130)
