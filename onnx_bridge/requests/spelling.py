"""Options in messages: written as the API has them, in backticks, and shown by the command line as they are typed.

`max_length`             --max-length
`dims={'batch': 2}`      --dim batch=2
`shapes={'x': [1, 3]}`   --shape x:[1,3]
"""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.request import fields_of

_OPTION = re.compile(r"`(\w+)(?:=([^`]+))?`")
_PLAIN = re.compile(r"[\w@%+=:,./\[\]…-]+")
"""Words that are copied to a shell without quotes."""


def as_typed(text: str, flags: Mapping[str, str] | None = None) -> str:
    """Return a message with options as they are typed: ``flags`` by name, or those of the verb `convert`."""
    return _OPTION.sub(lambda match: _typed(match, flags or convert_flags()), text)


@functools.cache
def convert_flags() -> Mapping[str, str]:
    """Return the options of the verb `convert` by name."""
    return {
        field.name: "--as decoder" if field.name == "decoder" else field.flag.partition("/")[0]
        for field in fields_of(ConvertRequest)
        if field.option.cli
    }


def _typed(match: re.Match[str], flags: Mapping[str, str]) -> str:
    name, text = match.groups()
    if name not in flags or text in (None, "True"):
        return flags.get(name, match[0])
    if text == "False":
        return f"--no-{flags[name].removeprefix('--')}"
    try:
        value = ast.literal_eval(text)
    except Exception:  # names in it may be anything
        return match[0]
    return " ".join(f"{flags[name]} {word if _PLAIN.fullmatch(word) else shlex.quote(word)}" for word in _words(value))


def _words(value: Any) -> Iterable[str]:
    """Return the values of an option, which is repeated for each."""
    if isinstance(value, Mapping):
        pairs = ((key, _listed(part), isinstance(part, list)) for key, part in value.items())
        return [f"{key}:[{text}]" if is_shape else f"{key}={text}" for key, text, is_shape in pairs]
    return map(str, value) if isinstance(value, list) else [_listed(value)]


def _listed(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
