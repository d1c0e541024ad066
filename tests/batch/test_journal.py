"""The journal: whatever is done to its end or to a line of it, the other lines are read."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnx_bridge.batch import journal as journals
from onnx_bridge.batch.journal import decode_record, encode_record, locked, read
from onnx_bridge.core.errors import InputError

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
RECORDS = st.dictionaries(st.text(min_size=1).filter(lambda key: key != "sum"), JSON, min_size=1, max_size=4)


@settings(deadline=None)
@given(RECORDS)
def test_records_round_trip(record: dict[str, Any]) -> None:
    line = encode_record(record)
    assert "\n" not in line
    assert decode_record(line) == record


@settings(deadline=None)
@given(RECORDS, st.data())
def test_a_damaged_line_is_never_taken_for_another(record: dict[str, Any], data: st.DataObject) -> None:
    line = encode_record(record).encode()
    at = data.draw(st.integers(0, len(line) - 1))
    byte = data.draw(st.integers(0, 255))
    assert decode_record(line[:at]) is None
    assert decode_record(line[:at] + bytes([byte]) + line[at + 1 :]) in (None, record)


@pytest.mark.parametrize("cut", [1, 7, 40])
def test_a_truncated_line(tmp_path: Path, cut: int) -> None:
    """A truncated last line is ignored, and the next record begins a new line."""
    with locked(tmp_path) as journal:
        journal.add("one", n=1)
        journal.add("two", n=2)
    file = tmp_path / journals.STATE_FOLDER / "journal.jsonl"
    os.truncate(file, file.stat().st_size - cut)
    with locked(tmp_path) as journal:
        events = [each["event"] for each in journal.records]
        assert events == (["one", "two"] if cut == 1 else ["one"])
        journal.add("three", n=3)
    records, damaged, incomplete = read(tmp_path / journals.STATE_FOLDER)
    assert [each["event"] for each in records] == [*events, "three"]
    assert (damaged, incomplete) == (0 if cut == 1 else 1, False)


def test_one_program_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "_LOCK_SECONDS", 0.0)
    with locked(tmp_path) as journal:
        journal.add("one")
        with pytest.raises(InputError, match="another batch"), locked(tmp_path):
            pass
    with locked(tmp_path) as journal:
        assert len(journal.records) == 1


def test_the_lock_is_inherited(tmp_path: Path) -> None:
    """A process that inherited the lock holds it after the program that took it has exited."""
    with locked(tmp_path) as journal:
        journal.add("one")
        command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[journal.lock])
    descriptor = os.open(tmp_path / journals.STATE_FOLDER, os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)
    child.communicate()
    with locked(tmp_path) as journal:
        assert journal.records


def test_unused_folders_are_removed(tmp_path: Path) -> None:
    with locked(tmp_path / "new" / "out"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_full_disk(tmp_path: Path) -> None:
    """Simulated by a limit of the file size: the record that does not fit is an error, earlier ones are intact."""
    code = (
        "import pathlib, resource, signal, sys\n"
        "from onnx_bridge.batch.journal import locked\n"
        "from onnx_bridge.core.errors import InputError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))\n"
        "with locked(pathlib.Path(sys.argv[1])) as journal:\n"
        "    journal.add('one')\n"
        "    try: journal.add('two', text='x' * 500)\n"
        "    except InputError as error: print(error)\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "    journal.add('three')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert "the journal cannot be written" in done.stdout
    records, damaged, _ = read(tmp_path / journals.STATE_FOLDER)
    assert [each["event"] for each in records] == ["one", "three"]
    assert damaged == 1


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"sum": ' + b"[" * 100_000, b"7", b'{"sum": 7}', b"\xff"])
def test_lines_that_are_no_records(line: bytes) -> None:
    assert journals.decode_record(line) is None
