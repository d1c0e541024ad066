"""Step 6: move the files into place."""

from __future__ import annotations

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.conversion.staging import move_into_place
from onnx_bridge.conversion.steps.resolve import Plan


def publish(manifest: Manifest, plan: Plan) -> Bundle:
    """Replace an earlier bundle by the files of the staging folder; raises InputError if they cannot be written."""
    move_into_place(plan.out, plan.folder, manifest)
    return Bundle.of(plan.out, plan.request)
