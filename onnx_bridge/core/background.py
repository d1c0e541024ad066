"""One thread for work beside the caller's, which an interrupt never waits for.

A `concurrent.futures.ThreadPoolExecutor` joins its threads, also when the interpreter exits. If a signal handler raises
while a lock of the executor is held, that join never returns, and Ctrl-C hangs the process.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

_T = TypeVar("_T")
_Task = tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]


class Background:
    """Runs functions one after the other in a daemon thread; a context manager, whose end does not wait for them."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()

    def __enter__(self) -> Background:
        Thread(target=_work, args=(self._tasks,), name="onnx-bridge-background", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._tasks.put(None)

    def submit(self, function: Callable[..., _T], *arguments: Any) -> Future[_T]:
        """Run a function after those submitted before."""
        future: Future[_T] = Future()
        self._tasks.put((future, function, arguments))
        return future


def _work(tasks: SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        future, function, arguments = task
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)
