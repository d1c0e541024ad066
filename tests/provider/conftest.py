"""The provider of all tests here, in one process."""

from __future__ import annotations

import pytest

from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.provider.provider import Provider, shared


@pytest.fixture
def provider(runtime: Runtime) -> Provider:
    return shared(runtime=runtime)
