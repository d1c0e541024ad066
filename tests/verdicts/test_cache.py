"""The cache of verdicts: files that other processes append to, remove and replace."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from onnx_bridge.verdicts.cache import CachedVerdict, VerdictCache
from passes.core.base import Status, Verdict


def test_removed_file(tmp_path: Path) -> None:
    file, known = tmp_path / "cache.jsonl", CachedVerdict(Verdict(Status.OK), True)
    cache = VerdictCache(file)
    for remove in (file.unlink, lambda: file.write_bytes(b"")):
        cache.add({"one": known, "two": known})
        cache.refresh()
        assert cache.get("one", run=True) == Verdict(Status.OK)
        remove()
        cache.refresh()
        assert cache.get("one", run=True) is cache.get("two", run=True) is None


def test_removed_file_that_was_never_read(tmp_path: Path) -> None:
    file = tmp_path / "cache.jsonl"
    cache = VerdictCache(file)
    cache.refresh()
    cache.add({"one": CachedVerdict(Verdict(Status.OK), True)})
    file.unlink()
    cache.refresh()
    assert cache.get("one", run=True) is None


@pytest.mark.parametrize("replaced", [True, False], ids=["replaced", "written anew"])
def test_replaced_file_is_read_from_the_start(tmp_path: Path, replaced: bool) -> None:
    """However long the other one is."""
    file, other, known = tmp_path / "cache.jsonl", tmp_path / "other.jsonl", CachedVerdict(Verdict(Status.OK), True)
    cache = VerdictCache(file)
    cache.add({"one": known})
    cache.refresh()
    names = ["two", "three", "four"]
    VerdictCache(other).add(dict.fromkeys(names, known))
    if replaced:
        other.replace(file)
    else:
        file.write_bytes(other.read_bytes())
    cache.refresh()
    assert cache.get("one", run=True) is None
    assert all(cache.get(name, run=True) == known.verdict for name in names)


def test_verdict_of_a_run_takes_precedence(tmp_path: Path) -> None:
    file = tmp_path / "cache.jsonl"
    for ran in (False, True, False):
        VerdictCache(file).add({"one": CachedVerdict(Verdict(Status.OK, str(ran)), ran)})
    cache = VerdictCache(file)
    cache.refresh()
    assert cache.get("one", run=True) == Verdict(Status.OK, "True")


def test_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = VerdictCache(tmp_path / "file" / "cache.jsonl")
    cache.add({"s": CachedVerdict(Verdict(Status.OK), True)})
    cache.refresh()
    assert cache.get("s", run=True) == Verdict(Status.OK)


def test_concurrent_writers(tmp_path: Path) -> None:
    file = tmp_path / "cache.jsonl"
    code = """
        import sys
        from pathlib import Path
        from onnx_bridge.verdicts.cache import CachedVerdict, VerdictCache
        from passes.core.base import Status, Verdict
        cache = VerdictCache(Path(sys.argv[1]))
        for turn in range(200):
            verdicts = [CachedVerdict(Verdict(Status.OK, "x" * n), True) for n in range(20)]
            cache.add({f"{sys.argv[2]}-{turn}-{n}": each for n, each in enumerate(verdicts)})
    """
    arguments = [sys.executable, "-c", textwrap.dedent(code), str(file)]
    running = [subprocess.Popen([*arguments, str(number)]) for number in range(4)]
    assert [process.wait() for process in running] == [0] * 4
    assert all(json.loads(line) for line in file.read_bytes().split(b"\n") if line)
    cache = VerdictCache(file)
    cache.refresh()
    assert (
        sum(cache.get(f"{p}-{t}-{n}", run=True) is not None for p in range(4) for t in range(200) for n in range(20))
        == 16000
    )
