"""Messages between processes arrive as they were sent, however large their arrays are."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from passes.isolation import messages
from passes.isolation.messages import Array, FileRange, Message
from passes.isolation.reused_memory import AnswerMemory, ReusedMemory

SMALL: dict[str, Array] = {
    "empty": np.zeros((0, 3), np.float32),
    "one byte": np.ones(1, np.int8),
    "scalar": np.array(3, np.int64),
    "transposed": np.arange(6.0).reshape(2, 3).T,
    "truth": np.array([True, False]),
    "narrow": np.ones(3, ml_dtypes.bfloat16),
    "last and empty": np.zeros(0),
}
LARGE: dict[str, Array] = {**SMALL, "large": np.arange(100_000)}


def sent(message: Mapping[str, object], arrays: Mapping[str, Array | FileRange]) -> Message:
    ours, theirs = messages.connect()
    with ours, theirs:
        sender = threading.Thread(target=messages.send, args=(ours, message, arrays))
        sender.start()
        received = messages.receive(theirs)
        sender.join()
        return received


@pytest.mark.parametrize("arrays", [{}, SMALL, LARGE], ids=["none", "small", "large"])
def test_arrays(arrays: dict[str, Array]) -> None:
    message, found = sent({"text": "é", "list": [1, None]}, arrays)
    assert message == {"text": "é", "list": [1, None]}
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert np.array_equal(found[name], array)
        assert not found[name].flags.writeable
        assert array.size == 0 or found[name].ctypes.data % 64 == 0


@pytest.mark.parametrize(
    "value",
    [float("inf"), 2**70, "caf\udce9", "\0", b"\xff".decode(errors="surrogateescape"), "text" * 100_000, [1.5, True]],
    ids=["infinity", "long integer", "surrogate", "NUL", "byte", "long text", "list"],
)
@pytest.mark.parametrize("arrays", [SMALL, LARGE], ids=["small", "large"])
def test_json_values(value: object, arrays: dict[str, Array]) -> None:
    message, found = sent({"value": value}, arrays)
    assert message == {"value": value}
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())


class TestReusedMemory:
    def test_messages_of_any_size(self) -> None:
        ours, theirs = messages.connect()
        written, read = ReusedMemory(), AnswerMemory(1, lends=False)
        kept = []
        with ours, theirs:
            for arrays in (LARGE, SMALL, {"larger": np.arange(3_000_000.0)}, LARGE):
                sender = threading.Thread(target=messages.send, args=(ours, {}, arrays, written))
                sender.start()
                kept.append((arrays, messages.receive(theirs, read)[1]))
                sender.join()
        for arrays, found in kept:
            assert list(found) == list(arrays)
            for name, array in arrays.items():
                assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
                assert np.array_equal(found[name], array)

    def test_it_is_the_same_memory(self) -> None:
        ours, theirs = messages.connect()
        written, read = ReusedMemory(), ReusedMemory()
        with ours, theirs:
            found = []
            for number in range(2):
                messages.send(ours, {}, {"x": np.full(100_000, number)}, written, 7)
                found.append(messages.receive(theirs, read)[1]["x"])
                assert read.wanted == 7
                assert not found[-1].flags.writeable
            messages.send(ours, {}, {"x": np.full(100_000, 5)})
            assert messages.receive(theirs, read)[1]["x"][0] == 5
            assert not read.wanted
        assert found[0].ctypes.data == found[1].ctypes.data
        assert np.array_equal(found[0], np.full(100_000, 1))

    def test_of_a_message_like_the_last_only_its_arrays_are_written(self) -> None:
        """Also where others come between, and whatever makes it different."""
        ours, theirs = messages.connect()
        written, read = ReusedMemory(), AnswerMemory(1, lends=False)
        zeros, ones = np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32)
        sent = [
            ({"n": 1}, {"x": zeros}, written),
            ({"n": 1}, {"x": ones}, written),  # the same
            ({"n": 2}, {"x": zeros}, None),
            ({"n": 1}, {"x": zeros}, written),  # the same
            ({"n": 2}, {"x": zeros}, written),
            ({"n": 2}, {"y": zeros}, written),
            ({"n": 2}, {"y": zeros.reshape(3, 2)}, written),
            ({"n": 2}, {"y": zeros.reshape(3, 2).astype(np.int32)}, written),
            ({"n": 2}, {"y": np.arange(1 << 20)}, written),
            ({"n": 2}, {"y": np.arange(1 << 20)[::-1]}, written),  # the same
            ({"n": 2}, {}, written),
            ({"n": 2}, {}, written),  # the same
        ]
        short, found = [], []
        with ours, theirs:
            for message, arrays, memory in sent:
                messages.send(ours, message, arrays, memory, len(found))
                short.append(len(theirs.recv(1 << 16, socket.MSG_PEEK)) == messages._HEADER.size)
                found.append(messages.receive(theirs, read))
                assert read.wanted == len(found) - 1
        assert [index for index, each in enumerate(short) if each] == [1, 3, 9, 11]
        for (message, arrays, _), (received, others) in zip(sent, found, strict=True):
            assert (received, list(others)) == (message, list(arrays))
            for array, other in zip(arrays.values(), others.values(), strict=True):
                assert (other.dtype, other.shape) == (array.dtype, array.shape)
                assert np.array_equal(other, array)

    def test_no_more_than_the_limit_is_held(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(messages, "MOST", 1 << 20)
        ours, theirs = messages.connect()
        written, read = ReusedMemory(), ReusedMemory()
        with ours, theirs:
            for size in (1 << 17, 1 << 18):
                messages.send(ours, {}, {"x": np.arange(size)}, written)
                assert np.array_equal(messages.receive(theirs, read)[1]["x"], np.arange(size))
        assert written.grow(1 << 20) is None

    def test_ranges_of_files_beside_it(self, tmp_path: Path) -> None:
        path = tmp_path / "weights"
        path.write_bytes(bytes(range(100)))
        ours, theirs = messages.connect()
        with ours, theirs, path.open("rb") as file:
            arrays = {"range": FileRange(file.fileno(), 10, 5), **LARGE}
            messages.send(ours, {}, arrays, ReusedMemory())
            found = messages.receive(theirs, ReusedMemory())[1]
        assert found["range"].tobytes() == bytes(range(10, 15))
        assert all(np.array_equal(found[name], array) for name, array in LARGE.items())


@pytest.mark.parametrize("arrays", [SMALL, LARGE], ids=["small", "large"])
def test_beside_ranges_of_files(arrays: dict[str, Array], tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(100)))
    with path.open("rb") as file:
        _, found = sent({}, {"range": FileRange(file.fileno(), 10, 5), **arrays})
    assert found["range"].tobytes() == bytes(range(10, 15))
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())


def test_messages_in_a_row() -> None:
    ours, theirs = messages.connect()
    with ours, theirs:
        for number in range(3):
            messages.send(ours, {"number": number}, {"x": np.full(5, number)})
        for number in range(3):
            message, arrays = messages.receive(theirs)
            assert message["number"] == number
            assert set(arrays["x"].tolist()) == {number}


@pytest.mark.parametrize(("behind", "files"), [(64, 0), (0, 1)], ids=["before its arrays", "before its files"])
def test_the_other_side_is_gone(behind: int, files: int) -> None:
    ours, theirs = messages.connect()
    with theirs:
        body = b'{"message": {}, "in_files": []}'
        ours.send((messages._HEADER.pack(len(body), behind, 0, files) + body).ljust(64, b"\0"))
        ours.close()
        with pytest.raises(EOFError):
            messages.receive(theirs)


def test_nothing_stays_open_where_not_all_files_of_a_message_can_be(tmp_path: Path) -> None:
    ours, theirs = messages.connect()
    with contextlib.ExitStack() as stack:
        stack.enter_context(ours)
        stack.enter_context(theirs)
        (tmp_path / "file").write_bytes(b"bytes")
        files = [stack.enter_context((tmp_path / "file").open("rb")).fileno() for _ in range(3)]
        messages.send(ours, {}, {str(each): FileRange(each, 0, 5) for each in files})
        before = set(Path("/proc/self/fd").iterdir())
        next_one = os.dup(files[0])
        os.close(next_one)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_one + 2, limits[1]))
        try:
            with pytest.raises(OSError, check=lambda error: error.errno == errno.EMFILE):
                messages.receive(theirs)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert set(Path("/proc/self/fd").iterdir()) == before


def test_nothing_stays_open_after_an_array_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(ReusedMemory, "write", fail)
    ours, theirs = messages.connect()
    with ours, theirs:
        before = set(Path("/proc/self/fd").iterdir())
        with pytest.raises(OSError):
            messages.send(ours, {}, {"x": np.zeros(1 << 20)}, ReusedMemory())
        assert set(Path("/proc/self/fd").iterdir()) == before
