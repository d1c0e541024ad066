"""Runs the code of the documentation, for the tests.

``python -m docs.generator.execute [PAGE…]`` puts what the commands print into the pages; what varies from run
to run is only replaced in pages that are named.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from docs.generator.blocks import PAGES, Block, refreshed
from docs.generator.folder import export, prepare
from onnx_bridge.core.files.user_cache import BUILT, cache_dir

_CACHE = Path(".cache/onnx-bridge")
"""The cache folder of the commands, in the folder that they run in."""
_HOST = re.compile(r"(https?://)[\w.:-]+")
_KEPT = ("runtimes", "quark-*", *BUILT)
"""What takes long to make, of the user's cache; all else would differ from machine to machine."""


@dataclass(frozen=True)
class Ran:
    """A command or a piece of Python, what it printed on both streams, and its exit code."""

    command: str
    output: str
    code: int


def link_cache(folder: Path, verdicts: Path) -> None:
    """Give a folder a cache that shares what takes long with the user's, and verdicts with the other pages."""
    cache = folder / _CACHE
    cache.mkdir(parents=True)
    verdicts.mkdir(exist_ok=True)
    (cache / "verdicts").symlink_to(verdicts)
    for kind in BUILT:  # so that all pages share what the first one builds
        (cache_dir() / kind).mkdir(parents=True, exist_ok=True)
    for pattern in _KEPT:
        for kept in cache_dir().glob(pattern):
            (cache / kept.name).symlink_to(kept)


def run(command: str, folder: Path) -> Ran:
    """Run one command in a folder, with this interpreter's ``onnx-bridge``."""
    return _run(command, ["bash", "-o", "pipefail", "-c", command], folder)


def run_python(text: str, folder: Path) -> Ran:
    """Run Python code in a folder."""
    return _run(text, [sys.executable, "-c", text], folder)


def _run(command: str, arguments: list[str], folder: Path) -> Ran:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "104", "ONNX_BRIDGE_CACHE": str(folder / _CACHE)}
    done = subprocess.run(
        arguments,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Ran(command, done.stdout, done.returncode)


def _written(block: Block, folder: Path, keep: bool) -> dict[str, str]:
    """Return the outputs for a page; those that vary stay as they are if they are to be kept."""
    found = outputs(block, folder)
    return dict(block.commands) if block.varies and keep else found


def outputs(block: Block, folder: Path) -> dict[str, str]:
    """Run a block; what its commands print, without this machine's paths.

    Raises:
        RuntimeError: its exit code is not 0.
    """
    if block.language == "python":
        runs = [run_python(block.text, folder)]
    else:
        runs = [run(command, folder) for command, _ in block.commands]
    for each in runs:
        if each.code:
            raise RuntimeError(f"exit code {each.code}: {each.command}\n{each.output}")
    return {each.command: _elsewhere(each.output, folder) for each in runs}


def _elsewhere(output: str, folder: Path) -> str:
    """Return the output as on another machine, without this one's paths and hosts."""
    for place in (folder, Path.home()):
        output = output.replace(str(place), "/home/you")
    output = _HOST.sub(r"\1packages.example", output)
    return "".join(f"{line.rstrip()}\n" for line in output.splitlines())


def main() -> None:
    """Update pages, by default all."""
    named = [Path(page).resolve() for page in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as name:
        models = Path(name) / "models"
        models.mkdir()
        for network in ("bert", "resnet"):
            export(network, models / f"{network}.onnx")
        for number, page in enumerate(named or PAGES):
            folder = Path(name) / str(number)
            folder.mkdir()
            link_cache(folder, Path(name) / "verdicts")
            prepare(folder, lambda network, path: path.write_bytes((models / f"{network}.onnx").read_bytes()))
            print(page)
            text = page.read_text(encoding="utf-8")
            written = refreshed(text, lambda block, folder=folder: _written(block, folder, keep=not named))
            page.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main()
