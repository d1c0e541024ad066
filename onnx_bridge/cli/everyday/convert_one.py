"""The conversion of one model on the command line, which `convert` imports while its processes start."""

from __future__ import annotations

from pathlib import Path

import typer

from onnx_bridge.bundle.inspect import BundleView
from onnx_bridge.cli.terminal import progress, show
from onnx_bridge.conversion import convert as conversion
from onnx_bridge.core.errors import NOT_DETERMINED
from onnx_bridge.requests.batch import JobRequest


def convert_one(source: Path, out: Path, request: JobRequest, as_json: bool) -> None:
    """Convert a model, compare it if asked to, and show the results; raises `typer.Exit` if nothing proves it."""
    with progress(as_json) as tell:
        bundle = conversion.run(source, out, request.conversion, tell)
        report = None
        if request.check:
            from onnx_bridge.parity.checking import check as parity

            report = parity.run(bundle, request.check_request(source), tell)
    if report is None or not as_json:
        then: tuple[object, ...] = ()
        if bundle.manifest.decoder is not None:
            then = ("generate", out, *bundle.decoder.example)
        elif bundle.proof.comparable:
            then = ("check", out)
        show(BundleView(bundle), as_json, then if report is None else ())
    if report is not None:
        show(report, as_json, code=report.exit_code)
    elif not bundle.proof.comparable:
        raise typer.Exit(NOT_DETERMINED)
