"""What runs a model in a benchmark: an engine is opened, called, and closed.

migraphx       a bundle, in MIGraphX's worker process, on ``ref`` or ``gpu``; takes a precision
ort            ONNX Runtime's CPU provider, with all its optimizations, as it is deployed
ort-migraphx   ONNX Runtime with its MIGraphX provider, where that is installed
ort-rocm       likewise its ROCm provider
torch          the PyTorch module that a factory makes, eager, on the CPU
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_bridge.conversion.bundle import Bundle
from onnx_bridge.errors import InputError, nearest
from onnx_bridge.values import Value

Call = Callable[[Mapping[str, Value]], object]

PROVIDERS = {
    "ort": "CPUExecutionProvider",
    "ort-migraphx": "MIGraphXExecutionProvider",
    "ort-rocm": "ROCMExecutionProvider",
}
ENGINES = ("migraphx", *PROVIDERS, "torch")


@dataclass
class Opened:
    """An engine that is ready.

    Attributes:
        call: runs a sample.
        pid: the process that it runs in; None for this one.
        close: lets go of it.
    """

    call: Call
    pid: int | None = None
    close: Callable[[], object] = gc.collect


def check_names(names: tuple[str, ...], factory: str | None) -> None:
    """Require that engines are known and here.

    Raises:
        InputError: one is not.
    """
    if not names:
        raise InputError("there is nothing to measure: no engine is named", where="engines")
    for name in names:
        where = f"engine {name!r}"
        if name not in ENGINES:
            raise InputError("there is no such engine", where=where, hint=nearest(name, ENGINES) or ", ".join(ENGINES))
        if name in PROVIDERS:
            import onnxruntime

            if PROVIDERS[name] not in onnxruntime.get_available_providers():
                what = f"ONNX Runtime has no {PROVIDERS[name]} here"
                raise InputError(what, where=where, hint="install a build of onnxruntime that has it")
        if name == "torch" and factory is None:
            raise InputError("it needs a factory of the module", where=where, hint="--module FILE.py:FUNCTION")


def open_bundle(bundle: Bundle) -> Opened:
    """A bundle, loaded."""
    bundle.open()
    return Opened(bundle, bundle.worker.pid if bundle.worker else None, bundle.close)


def open_session(path: Path, engine: str) -> Opened:
    """A model on ONNX Runtime.

    Raises:
        InputError: it does not take the model.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=[PROVIDERS[engine]])
    except Exception as error:  # its own classes
        raise InputError(f"ONNX Runtime: {error}", where=str(path), hint=f"leave {engine} out") from error
    return Opened(lambda sample: session.run(None, dict(sample)))


def open_module(factory: str, names: list[str]) -> Opened:
    """A PyTorch module, called with the inputs of the model by position.

    Args:
        factory: ``file.py:function``, which takes nothing and gives the module.
        names: of the model's inputs, in order.

    Raises:
        InputError: there is no torch, or the factory fails.
    """
    try:
        import torch
    except ImportError:
        raise InputError("torch is not installed", where="engine 'torch'", hint="pip install torch") from None
    import runpy

    file, _, function = factory.rpartition(":")
    try:
        module: Any = runpy.run_path(file)[function]()
    except Exception as error:
        what = f"the factory fails: {type(error).__name__}: {error}"
        raise InputError(what, where=factory, hint="as in model.py:make") from error
    module = module[0] if isinstance(module, tuple) else module
    module.eval()

    def call(sample: Mapping[str, Any]) -> object:
        with torch.inference_mode():
            return module(*(torch.from_numpy(sample[name]) for name in names))

    return Opened(call)


def resident(pid: int | None, peak: bool = False) -> int:
    """Bytes of memory that a process (None: this one) has, or had at most since `forget_peak`; 0 where unknown."""
    key = "VmHWM:" if peak else "VmRSS:"
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid or 'self'}/status").read_text().splitlines():
            if line.startswith(key):
                return int(line.split()[1]) << 10
    return 0


def forget_peak(pid: int | None) -> None:
    """Let the peak of a process's memory begin anew."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid or 'self'}/clear_refs").write_text("5")
