"""The picture of the README: what ``doctor`` prints in a terminal, as the guide shows it, drawn by rich.

``make docs`` writes it. Its text is compared with what the command prints by the
tests of the guide. It is drawn in the viewer's own fonts.
"""

from __future__ import annotations

import io
import re

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from docs.generator.blocks import ROOT, blocks

GUIDE = ROOT / "docs" / "guides" / "rejected-model.md"
PICTURE = ROOT / "docs" / "assets" / "doctor.svg"
_COMMAND = "onnx-bridge doctor detector.onnx"
_COLUMNS = 120
_FONT_FACES = re.compile(r"@font-face \{\{.*?\}\}\n", re.DOTALL)


def picture() -> str:
    """The picture, as SVG."""
    shown = next(
        output
        for block in blocks(GUIDE.read_text(encoding="utf-8"))
        for command, output in block.commands
        if command == _COMMAND
    )
    console = Console(record=True, file=io.StringIO(), width=_COLUMNS, highlight=False)
    console.print(Text(f"$ {_COMMAND}", "bold"))
    for number, line in enumerate(shown.splitlines()):
        text = Text(line, "bold" if number == 0 else "")
        text.highlight_words(["everything will run"], "green")
        console.print(text, no_wrap=True, crop=False)
    plain = _FONT_FACES.sub("", CONSOLE_SVG_FORMAT).replace("Fira Code, monospace", "monospace")
    svg = console.export_svg(title="onnx-bridge", theme=SVG_EXPORT_THEME, code_format=plain, unique_id="doctor")
    return svg.replace("Fira Code", "monospace")


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
