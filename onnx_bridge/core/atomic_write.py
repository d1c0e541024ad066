"""Writing a file so that it is there as a whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from onnx_bridge.core.errors import InputError


def write(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file, in UTF-8, by a rename once complete.

    Raises:
        InputError: it cannot be written.
    """
    path = Path(path)
    try:
        with tempfile.TemporaryDirectory(prefix=".writing-", dir=path.parent) as folder:
            written = Path(folder) / "file"
            written.write_text(text, encoding="utf-8")
            written.replace(path)
    except OSError as error:
        raise InputError(f"it cannot be written: {error.strerror}", where=str(path)) from error
