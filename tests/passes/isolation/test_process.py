"""Child processes: messages with arrays, and every way in which a child fails to answer."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from passes.isolation.limits import Limits
from passes.isolation.process import Child, ChildFailure, Reason

MODULE = """
import ctypes, os, sys, time
from passes.isolation import messages
from passes.isolation.child import TOLD, serve

kept = []

def main(connection, greeting):
    def answer(message, arrays):
        print(greeting, file=sys.stderr, flush=True)
        match message:
            case {"do": "abort"}:
                os.abort()
            case {"do": "exit"}:
                os._exit(3)
            case {"do": "sleep"}:
                time.sleep(60)
            case {"do": "allocate"}:
                memory = [bytearray(b"x") * (1 << 20) for _ in range(message["MiB"])]
            case {"do": "tell"}:
                for count in range(message["times"]):
                    messages.send(connection, {TOLD: count}, {})
            case {"do": "keep"}:
                kept.append(bytearray(message["MiB"] << 20))
        return {"echo": message}, arrays
    serve(connection, answer)
"""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    """A child that echoes what it gets."""
    (tmp_path / "echo_for_tests.py").write_text(MODULE)
    found = Child("echo_for_tests", ["hello"], environment={**os.environ, "PYTHONPATH": str(tmp_path)})
    yield found
    found.kill()


def test_what_a_child_tells_before_it_answers(child: Child) -> None:
    told: list[int] = []
    message, arrays = child.exchange({"do": "tell", "times": 3}, {"a": np.ones(3)}, told=told.append)
    assert told == [0, 1, 2]
    assert message == {"echo": {"do": "tell", "times": 3}}
    assert arrays["a"].tolist() == [1, 1, 1]
    assert child.exchange({"do": "tell", "times": 2}, {})[0] == {"echo": {"do": "tell", "times": 2}}


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint64", "float16", "float64", "bfloat16", "int4", "float8_e4m3fn", "complex64"]
)
def test_arrays_keep_their_bits(child: Child, dtype: str) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(getattr(ml_dtypes, dtype, dtype))
    given = {"a": array, "scalar": array[0, 1], "empty": array[:0], "transposed": array.T}
    message, arrays = child.exchange({"text": "é"}, given)
    assert message == {"echo": {"text": "é"}}
    for name, expected in given.items():
        assert (arrays[name].dtype, arrays[name].shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(arrays[name], expected)


def test_output_begins_anew_with_each_request(child: Child) -> None:
    for _ in range(2):
        child.exchange({}, {})
        assert child.printed() == "hello\n"


@pytest.mark.parametrize(("do", "returncode"), [("abort", -signal.SIGABRT), ("exit", 3)])
def test_a_child_that_dies(child: Child, do: str, returncode: int) -> None:
    with pytest.raises(ChildFailure) as caught:
        child.exchange({"do": do}, {})
    assert (caught.value.reason, caught.value.returncode) == (Reason.DIED, returncode)
    assert caught.value.output == "hello\n"
    assert child.ended


def test_timeout(child: Child) -> None:
    child.exchange({}, {}, Limits(30))
    with pytest.raises(ChildFailure) as caught:
        child.exchange({"do": "sleep"}, {}, Limits(0.2))
    assert caught.value.reason is Reason.TIMEOUT
    assert child.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_memory(child: Child) -> None:
    """The allocation fails, which ends this child, or the parent ends it for the memory that it has."""
    limits = Limits(memory=1 << 30)
    child.exchange({"do": "allocate", "MiB": 50}, {}, limits)
    with pytest.raises(ChildFailure) as caught:
        child.exchange({"do": "allocate", "MiB": 2000}, {}, limits)
    assert caught.value.reason is Reason.MEMORY


def test_memory_for_the_request_itself(child: Child) -> None:
    """There is none to receive it in: that is no defect of what would have answered."""
    child.exchange({}, {})
    with pytest.raises(ChildFailure) as caught:
        child.exchange({"text": "x" * (32 << 20)}, {}, Limits(memory=1 << 20))
    assert caught.value.reason is Reason.MEMORY


def test_memory_on_top_of_what_it_has(child: Child) -> None:
    child.exchange({"do": "keep", "MiB": 300}, {})
    child.exchange({"do": "allocate", "MiB": 50}, {}, Limits(growth=200 << 20))
    with pytest.raises(ChildFailure) as caught:
        child.exchange({"do": "allocate", "MiB": 300}, {}, Limits(growth=200 << 20))
    assert caught.value.reason is Reason.MEMORY


def test_a_module_that_cannot_be_imported() -> None:
    child = Child("no_such_module_for_tests")
    with pytest.raises(ChildFailure) as caught:
        child.exchange({}, {})
    assert "no_such_module_for_tests" in caught.value.output
    assert caught.value.returncode == 1


class TestAnswersInReusedMemory:
    """Arrays of a megabyte that nothing is copied into: they lie where the child has written them."""

    SIZE = 1 << 18

    def ask(self, child: Child, number: int) -> np.ndarray[Any, Any]:
        given = np.full(self.SIZE, number, np.int32)
        return child.exchange({}, {"x": given, "y": given}, reuse=True)[1]["x"]

    def test_all_that_are_kept_stay_valid_and_are_writable(self, child: Child) -> None:
        kept = [self.ask(child, number) for number in range(6)]
        for number, array in enumerate(kept):
            assert set(array.tolist()) == {number}
            array[0] = -1
        assert self.ask(child, 6)[0] == 6

    def test_a_view_keeps_the_memory(self, child: Child) -> None:
        view = self.ask(child, 1).view(np.uint8).reshape(-1, 4)[5:7]
        for number in range(2, 6):
            self.ask(child, number)
        assert view.tolist() == [[1, 0, 0, 0]] * 2

    def test_whoever_keeps_only_the_last_has_two_places(self, child: Child) -> None:
        places, array = set(), None
        for number in range(8):
            array = self.ask(child, number)
            assert not array.flags.owndata
            places.add(array.ctypes.data)
        assert len(places) == 2

    def test_what_was_kept_for_a_while_is_used_again(self, child: Child) -> None:
        kept = [self.ask(child, number) for number in range(5)]
        places = {array.ctypes.data for array in kept[:2]}
        kept.clear()
        assert self.ask(child, 6).ctypes.data in places

    def test_a_few_bytes_do_not_keep_it(self, child: Child) -> None:
        """Nor beside many."""
        kept = []
        for number in range(4):
            given = {"few": np.full(3, number), "many": np.zeros(self.SIZE)}
            _, arrays = child.exchange({}, given, reuse=True)
            assert not arrays["many"].flags.owndata
            kept.append(arrays.pop("few"))
        assert [array.tolist() for array in kept] == [[number] * 3 for number in range(4)]
        assert all(array.flags.owndata for array in kept)

    def test_sizes_that_change(self, child: Child) -> None:
        for size in (1, 1 << 20, 5, 3 << 20, 0, 1 << 20):
            found = child.exchange({}, {"x": np.arange(size)}, reuse=True)[1]["x"]
            np.testing.assert_array_equal(found, np.arange(size))

    def test_a_fork_keeps_what_its_parent_no_longer_needs(self, child: Child) -> None:
        array = self.ask(child, 1)

        def go_on() -> None:
            nonlocal array
            del array
            for number in range(2, 6):
                self.ask(child, number)

        assert in_a_fork(lambda: set(array.tolist()) == {1}, go_on)

    def test_a_fork_and_its_parent_change_what_is_their_own(self, child: Child) -> None:
        kept = [self.ask(child, number) for number in (1, 2, 3)]

        def change(value: int) -> bool:
            unchanged = [int(array[0]) for array in kept] == [1, 2, 3]
            for array in kept:
                array[:] = value
            return unchanged

        assert in_a_fork(lambda: change(7), lambda: None)
        assert in_a_fork(lambda: change(8), lambda: change(9))
        assert {int(array[0]) for array in kept} == {9}

    def test_forks_and_kept_outputs_hold_no_more_files(self, child: Child) -> None:
        """Than those of two outputs that are kept, and of the memory that others are copied from."""
        kept = []
        before = open_files()
        for number in range(6):
            kept.append(self.ask(child, number))
            assert in_a_fork(lambda: True, lambda: None)
        assert open_files() <= before + 3
        assert [int(array[-1]) for array in kept] == list(range(6))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def in_a_fork(holds: Callable[[], bool], meanwhile: Callable[[], object]) -> bool:
    """Return whether something holds in a fork, once this process has done something after forking."""
    (ours, theirs), (done, tell) = os.pipe(), os.pipe()
    fork = os.fork()
    if not fork:
        os.close(tell)
        os.read(done, 1)
        os.write(theirs, bytes([holds()]))
        os._exit(0)
    meanwhile()
    os.close(tell)
    os.waitpid(fork, 0)
    found = os.read(ours, 1) if select.select([ours], [], [], 0)[0] else b""
    for each in (ours, theirs, done):
        os.close(each)
    return found == b"\1"
