"""Only regular files are opened: a named pipe would block its reader, a device would never end."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from onnx_bridge.core.files.regular_file import LARGE, open_regular, read_regular


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_a_file_and_a_link_to_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link") == b"content"
    with open_regular(tmp_path / "file") as file:
        assert file.read(3) == b"con"


def test_others_are_refused_at_once(pipe: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in (pipe, tmp_path / "link", tmp_path):
        with pytest.raises(OSError, match=r"regular|directory"):
            read_regular(path)


def test_a_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_regular(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="more than"):
        read_regular(tmp_path / "file", 4)


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    tracemalloc.start()
    read_regular(tmp_path / "file", LARGE)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_a_file_that_grows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It has 5 bytes when its size is asked for, and 100 when it is read."""
    (tmp_path / "file").write_bytes(b"12345")
    earlier = (tmp_path / "file").stat()
    (tmp_path / "file").write_bytes(b"12345" * 20)
    monkeypatch.setattr(os, "fstat", lambda descriptor: earlier)
    assert read_regular(tmp_path / "file", 100) == b"12345" * 20
    with pytest.raises(OSError, match="more than"):
        read_regular(tmp_path / "file", 99)
