"""Fixtures for tests of passes, which need ``onnx_bridge`` only where they run MIGraphX."""

from __future__ import annotations

import importlib
from functools import partial

import pytest

from tests.passes.rewriting import RunModel


@pytest.fixture
def migraphx(request: pytest.FixtureRequest) -> RunModel:
    """``migraphx(proto, inputs=None)``: all outputs of a model on MIGraphX, target ``ref``."""
    module = importlib.import_module("tests.passes.on_migraphx")
    return partial(module.migraphx, worker=request.getfixturevalue("worker"))
