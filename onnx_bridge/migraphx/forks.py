"""Work in a fork of the worker process: whatever it does to its memory, the next fork does not see it.

A fork takes some 5 ms where a new worker takes 300. Alone in one, a piece of work can blame nothing but itself; many in
one are done a hundred times as fast, and those that were not answered for are to be done again.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any

from onnx_bridge.migraphx import wire
from onnx_bridge.migraphx.program import Tensor

Answer = tuple[dict[str, Any], dict[str, Tensor]]

_PR_SET_PDEATHSIG = 1


def in_fork(work: Sequence[Callable[[], Answer]], timeout: float) -> list[Answer]:
    """Do pieces of work, one after the other, in a fork of this process, which must have no thread that holds a lock.

    Args:
        work: what to do; none may raise.
        timeout: seconds that each may take.

    Returns:
        What they returned, in order. Where the fork ended before all were done, the last answer is of the one that it
        was at: ``{"died": status}``, with the number of the signal that ended it, negative, or the status with which it
        left; or ``{"timeout": seconds}``.
    """
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    gc.freeze()  # or the first collection would copy every page
    child = os.fork()
    if child == 0:
        _live(work, theirs, parent)
    theirs.close()
    answers: list[Answer] = []
    try:
        while len(answers) < len(work):
            if not select.select([ours], [], [], timeout)[0]:
                answers.append(({"timeout": timeout}, {}))
                break
            answers.append(wire.receive(ours))
    except (EOFError, ConnectionError):
        _, status = os.waitpid(child, 0)
        child = 0
        answers.append(({"died": os.waitstatus_to_exitcode(status)}, {}))
    finally:
        ours.close()
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return answers


def _live(work: Sequence[Callable[[], Answer]], connection: socket.socket, parent: int) -> None:
    """All that the fork does; it ends with its parent, also in the middle of a call."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            for each in work:
                wire.send(connection, *each())
    finally:
        os._exit(1)
