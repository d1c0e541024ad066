"""Look at, prune and verify what is kept in the cache folder."""

from __future__ import annotations

from typing import Annotated

import typer

from onnx_bridge.cli.terminal import Json, progress, show

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)


@app.command("list")
def cache_list(as_json: Json = False) -> None:
    """Show everything that is kept: how large it is, when it was last used, and what it is for."""
    from onnx_bridge.verdicts.user_cache import entries

    show(entries(), as_json)


@app.command("prune")
def cache_prune(
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="TIME", help="Also what was not used for so long: 30d, 12h.")
    ] = None,
    keep_runtime: Annotated[
        list[str] | None, typer.Option("--keep-runtime", metavar="NAME", help="A runtime that stays; repeatable.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, remove nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Remove what is damaged, was left behind by killed processes, or belongs to a runtime that is gone.

    The runtime in use always stays. Exit code 1 where something could not be removed.
    """
    from onnx_bridge.verdicts.user_cache import prune, seconds

    limit = seconds(older_than) if older_than is not None else None
    done = prune(older_than=limit, keep_runtimes=keep_runtime or (), dry_run=dry_run)
    show(done, as_json)
    if not done.passed:
        raise typer.Exit(1)


@app.command("verify")
def cache_verify(as_json: Json = False) -> None:
    """Compare everything with what is recorded of it. Exit code 1 where something is damaged."""
    from onnx_bridge.verdicts.user_cache import verify

    with progress(as_json) as tell:
        found = verify(progress=tell)
    show(found, as_json)
    if not found.passed:
        raise typer.Exit(1)
