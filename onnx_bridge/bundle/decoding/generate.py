"""The verb ``generate``: the tokens that follow a prompt."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from onnx_bridge.bundle.decoding.decoder import Decoder
from onnx_bridge.bundle.decoding.sampling import Choose, greedy
from onnx_bridge.core.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Generated:
    """The result of `generate`.

    Attributes:
        tokens: the new ones.
        seconds: how long it took, without loading the bundle.
    """

    tokens: list[int]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def render(self) -> RenderableType:
        """As text for the terminal."""
        from rich.console import Group

        return Group(",".join(map(str, self.tokens)), f"{len(self.tokens)} tokens in {self.seconds:.3g} s")


def generate(
    bundle: str | os.PathLike[str],
    ids: Sequence[int],
    max_new_tokens: int | None = None,
    *,
    choose: Choose = greedy,
    stop: Collection[int] = (),
    runtime: str | None = None,
    timeout: float | None = None,
    memory: float | None = None,
) -> Generated:
    """Generate the tokens that follow one prompt; `Decoder.generate` of a loaded bundle takes several.

    Args:
        bundle: a decoder (`onnx_bridge.convert_decoder`).
        ids: the tokens of the prompt.
        max_new_tokens: as for `Decoder.generate`.
        choose: likewise.
        stop: likewise.
        runtime: as for `onnx_bridge.load`.
        timeout: likewise.
        memory: likewise.

    Raises:
        InputError: it is no decoder, or as for `Decoder.generate`.
        RuntimeFailure: as for `onnx_bridge.load`.
    """
    decoder = Decoder(bundle, runtime=runtime, timeout=timeout, memory=memory)
    if decoder.layout.batch != 1:
        what = f"it generates {decoder.layout.batch} texts at a time"
        raise InputError(what, where=str(bundle), hint="from Python: onnx_bridge.load(…).generate(…)")
    decoder.open()
    started = time.perf_counter()
    found = decoder.generate(np.array([ids], np.int64), max_new_tokens, choose=choose, stop=stop)
    return Generated(found[0].tolist(), round(time.perf_counter() - started, 6))
