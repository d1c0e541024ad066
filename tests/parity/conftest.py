"""The pass that plants faults is registered for the tests of this folder only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fixtures.suites import faults


@pytest.fixture(autouse=True)
def _planting() -> Iterator[None]:
    with faults.registered():
        yield
