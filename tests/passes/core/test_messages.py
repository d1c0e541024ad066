"""Messages between processes arrive as they were sent, however large their arrays are."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from passes.core.isolation import messages
from passes.core.isolation.messages import Array, FileRange, Message

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
    ours, theirs = socket.socketpair()
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


@pytest.mark.parametrize("arrays", [SMALL, LARGE], ids=["small", "large"])
def test_beside_ranges_of_files(arrays: dict[str, Array], tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(100)))
    with path.open("rb") as file:
        _, found = sent({}, {"range": FileRange(file.fileno(), 10, 5), **arrays})
    assert found["range"].tobytes() == bytes(range(10, 15))
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())


def test_messages_in_a_row() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for number in range(3):
            messages.send(ours, {"number": number}, {"x": np.full(5, number)})
        for number in range(3):
            message, arrays = messages.receive(theirs)
            assert message["number"] == number
            assert set(arrays["x"].tolist()) == {number}


def test_the_other_side_is_gone() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        body = b'{"message": {}, "arrays": []}'
        ours.sendall(messages._HEADER.pack(len(body), 64) + body)
        ours.close()
        with pytest.raises(EOFError):
            messages.receive(theirs)
