"""The toolchain, and a bench for each architecture."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from tests.emulation.bench import WAVES, Bench
from tests.emulation.toolchain import Toolchain


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    return Toolchain()


@pytest.fixture(scope="session")
def bench_for(toolchain: Toolchain) -> Callable[[str], Bench]:
    return functools.cache(lambda isa: Bench(toolchain, isa))


@pytest.fixture(params=list(WAVES))
def bench(request: pytest.FixtureRequest, bench_for: Callable[[str], Bench]) -> Bench:
    return bench_for(request.param)
