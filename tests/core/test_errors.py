"""The errors for users."""

from __future__ import annotations

import pickle

import pytest

from onnx_bridge.core.errors import BridgeError, InputError, ParityError, WorkerCrashed
from onnx_bridge.torch.export.exported import ExportFailed

ERRORS = [
    InputError("the input is wrong", where="x", hint="mend it"),
    ParityError("the numbers differ", output="y", error=0.5, tolerance=1e-3),
    WorkerCrashed("a run", returncode=-11, output="abort"),
    ExportFailed({"dynamo": "no"}, where="Net", hint=None),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_cross_processes_with_all_their_fields(error: BridgeError) -> None:
    """What fails in the process of a pool reaches the parent by pickle."""
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is type(error)
    assert str(copied) == str(error)
    assert vars(copied) == vars(error)
