"""Tasks in a fork of the worker process: a task that corrupts its memory does not affect the next fork.

A fork takes about 5 ms, a new worker process 300 ms. A failure of a task that is alone in its fork is its own; many
tasks in one fork are a hundred times as fast, but those without an answer have to be run again.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import socket
from collections.abc import Callable, Sequence

from onnx_bridge.migraphx.protocol import TensorMessage, pack, unpack
from passes.core.isolation import messages

_PR_SET_PDEATHSIG = 1


def run_in_fork(tasks: Sequence[Callable[[], TensorMessage]], timeout: float) -> list[TensorMessage]:
    """Run tasks one after the other in a fork of this process, which must have no thread that holds a lock.

    Args:
        tasks: none may raise.
        timeout: seconds for each.

    Returns:
        What they returned, in order. Where the fork ended before all were done, the last answer is that of the task
        that it was running: ``{"died": returncode}``, as `subprocess.Popen.returncode`, or ``{"timeout": seconds}``.
    """
    ours, theirs = socket.socketpair()
    parent = os.getpid()
    gc.freeze()  # or the first collection would copy every page
    child = os.fork()
    if child == 0:
        _run(tasks, theirs, parent)
    theirs.close()
    answers: list[TensorMessage] = []
    try:
        while len(answers) < len(tasks):
            if not select.select([ours], [], [], timeout)[0]:
                answers.append(({"timeout": timeout}, {}))
                break
            answers.append(unpack(*messages.receive(ours)))
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


def _run(tasks: Sequence[Callable[[], TensorMessage]], connection: socket.socket, parent: int) -> None:
    """Everything that the fork does; it ends with its parent, also in the middle of a call."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            for task in tasks:
                messages.send(connection, *pack(*task()))
    finally:
        os._exit(1)
