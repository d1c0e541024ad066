"""Models that are run once by the reference: those of probes, and files.

Probes are run on generated values, on some of which ONNX Runtime ends the process (an integer division by zero, an
index that it does not check). Such a crash costs one answer, which is asked for again the next time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.values import Value
from onnx_bridge.reference.reference import SERVER, called
from passes.isolation import value_messages, worker
from passes.isolation.failure import NativeFailure
from passes.isolation.limits import Limits, at_most, lose
from passes.isolation.messages import Array
from passes.isolation.process import Reason

Values = dict[str, Array]

_SECONDS = 30.0
_MEMORY = 4 << 30


class NoReference(Exception):
    """The reference does not run a model; the text says why, `is_limit` whether it exceeded a limit."""

    def __init__(self, why: str, *, is_limit: bool = False) -> None:
        super().__init__(why)
        self.is_limit = is_limit


def launch() -> None:
    """Start the process of the reference unless it runs, without waiting for it."""
    worker.shared().launch(SERVER)


def evaluate(model: bytes, samples: Sequence[Mapping[str, Array]], *, by_onnx: bool = False) -> list[Values | None]:
    """Return the outputs of a serialized model for each sample, by name; None if there is no reference for it.

    Args:
        samples: inputs by name.
        by_onnx: use ONNX's own evaluator instead of ONNX Runtime.

    Raises:
        NativeFailure: a limit was exceeded, or ONNX Runtime crashed, which is no answer.
    """
    entries, arrays = value_messages.pack(samples)
    request = {"do": "evaluate", "by_onnx": by_onnx, "samples": entries}
    arrays["model"] = value_messages.from_bytes(model)
    limits = at_most(_SECONDS, _MEMORY)
    try:
        (answer, outputs), _ = called(request, arrays, limits)
    except NativeFailure as failure:
        if failure.reason is Reason.TIMEOUT:
            lose(limits.timeout or 0)
        raise
    return [entry and {name: outputs[str(index)] for name, index in entry.items()} for entry in answer["samples"]]


def run_file(
    path: Path,
    samples: Sequence[Mapping[str, Value]],
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    by_onnx: bool = False,
    limits: Limits = Limits(),
) -> list[dict[str, Value]]:
    """Return the outputs of a model file for each sample, by ONNX Runtime with all graph optimizations off.

    Args:
        samples: inputs by name.
        shapes: the shapes of inputs, if they differ from the declared ones (`onnx_bridge.reference.resized`).
        by_onnx: use ONNX's own evaluator instead of ONNX Runtime.

    Raises:
        NoReference: the evaluator refuses the model or a sample, or a limit was exceeded.
    """
    entries, arrays = value_messages.pack(samples)
    sizes = {name: list(shape) for name, shape in (shapes or {}).items()}
    request = {"do": "run file", "path": str(path.absolute()), "shapes": sizes, "by_onnx": by_onnx, "samples": entries}
    try:
        (answer, outputs), _ = called(request, arrays, limits)
    except InputError as error:
        raise NoReference(error.what) from None
    except NativeFailure as failure:
        raise NoReference(failure.what, is_limit=failure.reason is not Reason.DIED) from None
    return value_messages.unpack(answer["samples"], outputs)
