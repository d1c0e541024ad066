"""What a probe should compute: ONNX Runtime, or ONNX's own evaluator, in a process of its own.

Probes are run on values that nobody chose for them, and ONNX Runtime ends the process on some (an integer division by
zero, an index that it does not check). Here that costs one answer.
"""

from __future__ import annotations

import atexit
import os
import pickle
import resource
import select
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from onnx_bridge.samples.generated import Array

Values = dict[str, Array]

_SECONDS = 30.0
_MEMORY = 4 << 30
_LENGTH = struct.Struct("<Q")
_ROOT = Path(__file__).resolve().parents[2]
_BOOT = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from onnx_bridge.verdicts import oracle; oracle.main()"


class Oracle:
    """One process at a time, started when it is needed; safe to use from several threads."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()
        atexit.register(self.close)

    def launch(self) -> None:
        """Start the process unless it runs, without waiting for it."""
        if self._process is not None and (self._owner != os.getpid() or self._process.poll() is not None):
            self.close()
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._owner = os.getpid()

    def ask(
        self, model: bytes, samples: Sequence[Mapping[str, Array]], *, by_onnx: bool = False
    ) -> list[Values | None]:
        """The outputs of a serialized model for each sample, by name; None where there is no reference for it.

        Args:
            model: the model.
            samples: inputs by name.
            by_onnx: let ONNX's own evaluator answer, and not ONNX Runtime.
        """
        with self._lock:
            self.launch()
            assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
            try:
                _send(self._process.stdin, (model, [dict(sample) for sample in samples], by_onnx))
                if select.select([self._process.stdout], [], [], _SECONDS)[0]:
                    found: list[Values | None] = _receive(self._process.stdout)
                    return found
            except (EOFError, BrokenPipeError):
                pass
            except BaseException:  # also Ctrl-C: the answer that is under way belongs to nobody
                self.close()
                raise
            self.close()
            return [None] * len(samples)

    def close(self) -> None:
        """End the process; the next question starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        if self._owner == os.getpid():
            process.kill()
            process.wait()


def main() -> None:
    """Answer questions from standard input until it ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            model, samples, by_onnx = _receive(sys.stdin.buffer)
        except EOFError:
            return
        _send(answers, (_evaluate_by_onnx if by_onnx else _evaluate)(model, samples))


def _end_with_parent() -> None:
    """End this process, whatever it is computing, once nobody can ask any more."""
    poll = select.poll()
    poll.register(0, 0)  # the end of the other side is told unasked
    poll.poll()
    os._exit(0)


def _evaluate(model: bytes, samples: Sequence[Values]) -> list[Values | None]:
    """By ONNX Runtime where it takes the model, else by ONNX's evaluator."""
    from onnx_bridge.core.errors import InputError
    from onnx_bridge.reference.reference import Reference

    try:
        reference = Reference(model)
    except InputError:
        return _evaluate_by_onnx(model, samples)
    found: list[Values | None] = []
    for sample in samples:
        try:
            outputs = reference.run(sample)
        except InputError:
            outputs = {}
        arrays = {name: array for name, array in outputs.items() if isinstance(array, np.ndarray)}
        found.append(arrays if arrays and len(arrays) == len(outputs) else None)
    return found


def _evaluate_by_onnx(model: bytes, samples: Sequence[Values]) -> list[Values | None]:
    import onnx
    from onnx.reference import ReferenceEvaluator

    found: list[Values | None] = []
    try:
        evaluator = ReferenceEvaluator(onnx.ModelProto.FromString(model))
        for sample in samples:
            outputs = evaluator.run(None, dict(sample))
            plain = all(isinstance(output, np.ndarray | np.generic) for output in outputs)
            named = zip(evaluator.output_names, map(np.asarray, outputs), strict=True)
            found.append(dict(named) if plain else None)
    except Exception:  # it raises whatever numpy and its own operators raise
        found += [None] * (len(samples) - len(found))
    return found


def _send(stream: IO[bytes], message: Any) -> None:
    data = pickle.dumps(message, protocol=5)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    data = stream.read(_LENGTH.unpack(head)[0])
    if len(data) < _LENGTH.unpack(head)[0]:
        raise EOFError
    return pickle.loads(data)
