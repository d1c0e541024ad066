"""Show or clear the cache folder.

Example: onnx-bridge cache dir
"""

from __future__ import annotations

from typing import Annotated

import typer

from onnx_bridge.cli.terminal import Json, show
from onnx_bridge.core.errors import BridgeError

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)


@app.command("dir")
def cache_folder(as_json: Json = False) -> None:
    """Print the path of the cache folder; the environment variable ONNX_BRIDGE_CACHE moves it.

    Example: onnx-bridge cache dir
    """
    from onnx_bridge.core.files.user_cache import CacheFolder, cache_dir

    show(CacheFolder(cache_dir()), as_json)


@app.command("clear")
def cache_clear(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be freed, remove nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Remove everything that is made again when it is needed; private runtimes stay.

    Example: onnx-bridge cache clear --dry-run
    """
    from onnx_bridge.core.files.user_cache import clear

    try:
        cleared = clear(dry_run=dry_run)
    except OSError as error:
        raise BridgeError(f"the cache cannot be cleared: {error.strerror}", where=str(error.filename)) from error
    show(cleared, as_json)
