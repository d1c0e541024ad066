"""The page of errors and exit codes, made from the error classes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from docs.generator.markdown import code, documentation, table
from onnx_bridge.core import errors
from passes.core.errors import BridgeError

_HEAD = """# Errors and exit codes

An error is one line on standard error: where, what is wrong, and in brackets what to do. With `--json` it is the one
document on standard output, `{"error": {"kind", "what", "where", "hint", "page", "exit_code"}}`, whose `kind` is a
class below. `--debug` adds a traceback. If the same command with other options helps, a second line is that command;
else, if a page of the documentation explains an error, the line ends with `` see `onnx-bridge docs …` ``, which shows
it; in JSON, and as a field of the error, it is `page`.

| exit code | meaning |
| --- | --- |
| 0 | success |
| 1 | the answer is no: parity fails, a job failed, a fault was found, a bundle is damaged |
| 2 | wrong usage or bad input |
| 3 | MIGraphX, or the process that runs it, failed; or a defect of ONNX Bridge |
| 4 | not determined: the model chooses between equal numbers ([Parity and ties](../concepts/parity.md)); \
not proven: ONNX Runtime refuses the generated inputs of a model (`convert`) or a node (`doctor`) |
| 128 + signal | interrupted; 130 by Ctrl-C |

"""


def page() -> str:
    """The page."""
    return _HEAD + "\n\n".join(["## Classes", *_classes()])


def _classes() -> Iterator[str]:
    for cls in (BridgeError, *_below(BridgeError)):
        yield f"### {cls.__name__}"
        yield documentation(cls)
        page = f"[{cls.page}](../{cls.page})" if cls.page else ""
        yield table(
            ["import from", "is a", "exit code", "explained in"],
            [(code(cls.__module__), _bases(cls), cls.exit_code, page)],
        )
        text = inspect.getdoc(cls) or ""
        if "Attributes:" in text:
            yield f"```text\n{text[text.index('Attributes:') :]}\n```"


def _below(cls: type[BridgeError]) -> Iterator[type[BridgeError]]:
    for each in cls.__subclasses__():
        if hasattr(errors, each.__name__):
            yield each
            yield from _below(each)


def _bases(cls: type[BridgeError]) -> str:
    base = cls.__mro__[1]
    return f"[{base.__name__}](#{base.__name__.lower()})" if issubclass(base, BridgeError) else code(base.__name__)
