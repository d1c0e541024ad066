"""The stages of a conversion, announced and timed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from onnx_bridge.core.progress import Progress, Stage, silent


class Stopwatch:
    """Announces each stage by the callback ``progress`` as it begins, and measures ``seconds`` by stage."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.progress = progress or silent
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def __call__(self, stage: Stage) -> Iterator[None]:
        """Time a block as a part of a stage."""
        self.progress(stage)
        started = time.perf_counter()
        yield
        self.seconds[stage.value] = round(self.seconds.get(stage.value, 0) + time.perf_counter() - started, 4)
