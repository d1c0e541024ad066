"""Waiting for a message: what comes is told in either way of waiting, and nothing is burnt where nothing comes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from passes.isolation.child import Waiting

Pair = tuple[socket.socket, Waiting, socket.socket]


@pytest.fixture(params=[0, 3], ids=["at first", "after a quick succession"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        waiting = Waiting(ours)
        for _ in range(request.param):
            theirs.sendall(b"x")
            assert waiting.wait()
            ours.recv(1)
        yield ours, waiting, theirs


def test_a_message_that_is_there(pair: Pair) -> None:
    _, waiting, theirs = pair
    theirs.sendall(b"x")
    assert waiting.wait()
    assert waiting.wait(0)


@pytest.mark.parametrize("after", [1e-4, 0.05])
def test_a_message_that_comes_later(pair: Pair, after: float) -> None:
    _, waiting, theirs = pair
    timer = threading.Timer(after, theirs.sendall, [b"x"])
    timer.start()
    assert waiting.wait(60)
    timer.join()


def test_the_other_side_is_gone(pair: Pair) -> None:
    _, waiting, theirs = pair
    theirs.close()
    assert waiting.wait()


def test_without_a_message_the_processor_is_free(pair: Pair) -> None:
    _, waiting, _ = pair
    before = time.thread_time()
    assert not waiting.wait(0.3)
    assert not waiting.wait(0.3)
    assert time.thread_time() - before < 0.1


def test_a_time_that_is_over(pair: Pair) -> None:
    _, waiting, _ = pair
    assert not waiting.wait(-1.0)
