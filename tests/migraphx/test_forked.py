"""Tasks in forks: what each answers, who is to blame when a fork ends, and that several run at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from onnx_bridge.migraphx.process.forked import Task, run_in_forks
from onnx_bridge.migraphx.process.protocol import TensorMessage
from onnx_bridge.migraphx.program import Tensor


def answering(number: int) -> Task:
    def task() -> TensorMessage:
        return {"number": number}, {"array": Tensor.of(np.full(3, number, np.float32))}

    return task


def dying(how: Callable[[], object], printed: str = "") -> Task:
    def task() -> TensorMessage:
        os.write(2, printed.encode())
        how()
        return {}, {}

    return task


def end() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleep() -> None:
    time.sleep(60)


def numbers(answers: list[TensorMessage]) -> list[object]:
    return [answer.get("number", answer) for answer, _ in answers]


def test_answers_are_in_the_order_of_the_tasks() -> None:
    found = run_in_forks([[answering(n) for n in group] for group in ((0, 3), (1,), (2, 4, 5))], 30.0, 2)
    assert [numbers(each) for each in found] == [[0, 3], [1], [2, 4, 5]]
    assert found[2][1][1]["array"].numpy().tolist() == [4, 4, 4]


def test_nothing_to_do() -> None:
    assert run_in_forks([], 30.0, 2) == []


def test_a_death_ends_its_own_fork_only() -> None:
    groups = [
        [answering(0), dying(end, "first\n"), answering(1)],
        [answering(2), answering(3)],
        [dying(end, "second\n")],
    ]
    first, second, third = run_in_forks(groups, 30.0, 2)
    assert numbers(first) == [0, {"died": -signal.SIGKILL, "printed": "first\n"}]
    assert numbers(second) == [2, 3]
    assert numbers(third) == [{"died": -signal.SIGKILL, "printed": "second\n"}]


@pytest.mark.parametrize("at_a_time", [1, 2])
def test_time_is_that_of_each_task(at_a_time: int) -> None:
    first, second = run_in_forks([[answering(0), dying(sleep), answering(1)], [answering(2)]], 2.0, at_a_time)
    assert numbers(first) == [0, {"timeout": 2.0, "idle": True}]
    assert numbers(second) == [2]


def test_several_at_a_time() -> None:
    """Each waits for the other."""
    pipes = [os.pipe(), os.pipe()]

    def meeting(own: int, other: int) -> Task:
        def task() -> TensorMessage:
            os.write(pipes[own][1], b"x")
            return {"number": len(os.read(pipes[other][0], 1))}, {}

        return task

    try:
        found = run_in_forks([[meeting(0, 1)], [meeting(1, 0)]], 30.0, 2)
        assert [numbers(each) for each in found] == [[1], [1]]
    finally:
        for ends in pipes:
            for end in ends:
                os.close(end)


def test_no_process_is_left() -> None:
    before = children()
    run_in_forks([[answering(0)], [dying(end)], [dying(sleep)]], 2.0, 3)
    assert children() == before


def children() -> set[str]:
    """The ids of this process's children."""
    return {pid for each in Path("/proc/self/task").glob("*/children") for pid in each.read_text().split()}


def test_a_task_that_others_keep_from_the_processors_is_not_late() -> None:
    """Other processes compute on all processors, and have nine times the share of a task."""

    def task() -> TensorMessage:
        os.nice(10)
        start = time.process_time()
        while time.process_time() - start < 0.03:
            pass
        return {"number": 1}, {}

    def computing() -> TensorMessage:
        while True:
            pass

    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        late = [[task], [task], [dying(computing)], [dying(sleep)]]
        timeouts = [[{"timeout": 0.05, "idle": idle}] for idle in (False, True)]
        assert [numbers(answers) for answers in run_in_forks(late, 0.05, 4)] == [[1], [1], *timeouts]
    finally:
        for process in busy:
            process.kill()
            process.wait()
