"""Recorded digests: valid for the state of the file that they were read from, and never an error."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onnx_bridge.core.files import known_digests
from onnx_bridge.core.files.known_digests import known_digest


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def file(monkeypatch: Any, tmp_path: Path) -> Iterator[Path]:
    """A file; that it was just written is no reason not to record its digest."""
    monkeypatch.setattr(known_digests, "cache_dir", lambda: tmp_path / "cache")
    monkeypatch.setattr(known_digests, "_TIMESTAMP_NANOSECONDS", 0)
    path = tmp_path / "file"
    path.write_bytes(b"one")
    yield path


def test_a_restored_time_of_modification_hides_nothing(file: Path) -> None:
    before = file.stat()
    assert known_digest(file) == sha256(b"one")
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert known_digest(file) == sha256(b"two")


def test_a_file_in_its_place(file: Path) -> None:
    assert known_digest(file) == sha256(b"one")
    other = file.with_name("other")
    other.write_bytes(b"two")
    other.replace(file)
    assert known_digest(file) == sha256(b"two")


@pytest.mark.parametrize("damage", [b"", b"[", b"7", b"[[], 7]", b"\xff\xfe", b"[" * 9000, None])
def test_a_damaged_record_is_replaced(file: Path, damage: bytes | None) -> None:
    assert known_digest(file) == sha256(b"one")
    (record,) = (file.parent / "cache/digests").iterdir()
    good = record.read_bytes()
    record.write_bytes(good[:-1] if damage is None else damage)
    assert known_digest(file) == sha256(b"one")
    assert record.read_bytes() == good


def test_a_cache_that_cannot_be_written(file: Path) -> None:
    (file.parent / "cache").write_bytes(b"a file")
    assert known_digest(file) == sha256(b"one")


def test_a_recent_file_is_not_recorded(file: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(known_digests, "_TIMESTAMP_NANOSECONDS", 10**12)
    assert known_digest(file) == sha256(b"one")
    assert not (file.parent / "cache").exists()


def test_a_missing_file(file: Path) -> None:
    file.unlink()
    with pytest.raises(FileNotFoundError):
        known_digest(file)
