"""The processes that perform jobs, seen from the program that gives them out.

What they tell comes out of one queue, in the order in which it came in; the end of a process is told like everything
else. None outlives the program: the kernel ends them when the lifeline, which the program alone holds, is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_BOOT = "import sys; sys.path.insert(0, {root!r}); from onnx_bridge.conversion import performer; performer.main{ends!r}"

Told = tuple["Performer", dict[str, Any]]


class Performer:
    """One process.

    Args:
        told: where its events go, each with the performer; ``ended`` is the last.
        lock: a descriptor that it is to hold as long as it lives.
        temporary: the folder for its temporary files.
        output: a file for what it prints while it has no job.

    Attributes:
        task: what it is at; None while it has nothing to do.
    """

    def __init__(self, told: queue.SimpleQueue[Any], lock: int, temporary: Path, output: Path) -> None:
        self._told = told
        self.task: Any = None
        ours, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe2(os.O_CLOEXEC)
        code = _BOOT.format(root=str(_ROOT), ends=(theirs.fileno(), lifeline))
        try:
            with output.open("ab") as file:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", code],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    pass_fds=(theirs.fileno(), lifeline, lock),
                    env={**os.environ, "TMPDIR": str(temporary)},
                    start_new_session=True,  # the terminal's Ctrl-C is for the program to handle
                )
        finally:
            theirs.close()
            os.close(lifeline)
        self._events, self._tasks = ours.makefile("r", encoding="utf-8"), ours.makefile("w", encoding="utf-8")
        ours.close()  # the streams hold it
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def give(self, task: Any, message: Mapping[str, Any]) -> None:
        """Give it something to do; if it has ended meanwhile, that is told."""
        self.task = task
        with contextlib.suppress(OSError):
            self._tasks.write(json.dumps(message) + "\n")
            self._tasks.flush()

    def close(self) -> None:
        """End it, whatever it is doing."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._events, self._tasks):
            with contextlib.suppress(OSError):
                stream.close()
        os.close(self._lifeline)

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            for line in self._events:
                self._told.put((self, json.loads(line)))
        if self._process.poll() is None:
            self._process.kill()  # it has closed its end, and is of no more use
        self._told.put((self, {"event": "ended", "status": self._process.wait()}))
