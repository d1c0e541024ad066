"""Starting the processes of a conversion before its own modules are imported, so that both happen at once.

This module imports little: it saves the time until the caller has imported the rest.
"""

from __future__ import annotations

import contextlib

from onnx_bridge.core.errors import BridgeError
from onnx_bridge.core.files.user_cache import cache_dir
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.reference import evaluations
from onnx_bridge.requests.conversion import ConvertRequest


def launch(request: ConvertRequest) -> None:
    """Start the processes that a conversion surely needs, without waiting; the conversion reports why one failed.

    They are MIGraphX, unless options may choose its environment; and, without cached verdicts, the probing ones.
    """
    with contextlib.suppress(BridgeError):
        runtime = runtimes.find(request.runtime)
        if not request.options:
            workers.shared(runtime).launch()
        if not request.cache or not (cache_dir() / "verdicts").is_dir():
            workers.shared_with_heap_checks(runtime).launch()
            evaluations.launch()
