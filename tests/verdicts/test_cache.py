"""The cache of verdicts: files that other processes append to, remove and replace."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from onnx_bridge.verdicts.cache import CachedVerdict, VerdictCache
from passes.rewriting.base import Obstacle, Proof, Status, Unproven, Verdict


def test_removed_file(tmp_path: Path) -> None:
    file, known = tmp_path / "cache.jsonl", CachedVerdict(Verdict(Status.OK), 1.0)
    cache = VerdictCache(file)
    for remove in (file.unlink, lambda: file.write_bytes(b"")):
        cache.add({"one": known, "two": known})
        cache.refresh()
        assert cache.get("one", 1.0) == known
        remove()
        cache.refresh()
        assert cache.get("one", 1.0) is cache.get("two", 1.0) is None


def test_removed_file_that_was_never_read(tmp_path: Path) -> None:
    file = tmp_path / "cache.jsonl"
    cache = VerdictCache(file)
    cache.refresh()
    cache.add({"one": CachedVerdict(Verdict(Status.OK), 1.0)})
    file.unlink()
    cache.refresh()
    assert cache.get("one", 1.0) is None


@pytest.mark.parametrize("replaced", [True, False], ids=["replaced", "written anew"])
def test_replaced_file_is_read_from_the_start(tmp_path: Path, replaced: bool) -> None:
    """However long the other one is."""
    file, other, known = tmp_path / "cache.jsonl", tmp_path / "other.jsonl", CachedVerdict(Verdict(Status.OK), 1.0)
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
    assert cache.get("one", 1.0) is None
    assert all(cache.get(name, 1.0) == known for name in names)


TOO_LARGE = Verdict(Status.OK, error=1e-6, proof=Proof.WITNESS, unproven=Unproven(Obstacle.SIZE, "why"))


def test_verdict_of_the_largest_budget_takes_precedence(tmp_path: Path) -> None:
    file = tmp_path / "cache.jsonl"
    for budget in (1.0, 3.0, 2.0):
        VerdictCache(file).add({"one": CachedVerdict(replace(TOO_LARGE, message=str(budget)), budget)})
    cache = VerdictCache(file)
    cache.refresh()
    assert cache.get("one", 1.0) == cache.get("one", 3.0) == CachedVerdict(replace(TOO_LARGE, message="3.0"), 3.0)
    assert cache.get("one", 4.0) is None


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(Status.OK, proof=Proof.RUN),
        Verdict(Status.REJECTED, "no"),
        replace(TOO_LARGE, status=Status.CRASHES),
        Verdict(Status.OK, unproven=Unproven(Obstacle.REFERENCE)),
    ],
    ids=["run", "rejected", "crashes", "no reference"],
)
def test_verdict_that_no_budget_would_change(tmp_path: Path, verdict: Verdict) -> None:
    cache = VerdictCache(tmp_path / "cache.jsonl")
    cache.add({"one": CachedVerdict(verdict, 0.0)})
    cache.refresh()
    assert cache.get("one", 1e9) == CachedVerdict(verdict, 0.0)


def test_unwritable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = VerdictCache(tmp_path / "file" / "cache.jsonl")
    cache.add({"s": CachedVerdict(Verdict(Status.OK), 1.0)})
    cache.refresh()
    assert cache.get("s", 1.0) == CachedVerdict(Verdict(Status.OK), 1.0)


def test_concurrent_writers(tmp_path: Path) -> None:
    file = tmp_path / "cache.jsonl"
    code = """
        import sys
        from pathlib import Path
        from onnx_bridge.verdicts.cache import CachedVerdict, VerdictCache
        from passes.rewriting.base import Status, Verdict
        cache = VerdictCache(Path(sys.argv[1]))
        for turn in range(200):
            verdicts = [CachedVerdict(Verdict(Status.OK, "x" * n), 1.0) for n in range(20)]
            cache.add({f"{sys.argv[2]}-{turn}-{n}": each for n, each in enumerate(verdicts)})
    """
    arguments = [sys.executable, "-c", textwrap.dedent(code), str(file)]
    running = [subprocess.Popen([*arguments, str(number)]) for number in range(4)]
    assert [process.wait() for process in running] == [0] * 4
    assert all(json.loads(line) for line in file.read_bytes().split(b"\n") if line)
    cache = VerdictCache(file)
    cache.refresh()
    assert (
        sum(cache.get(f"{p}-{t}-{n}", 1.0) is not None for p in range(4) for t in range(200) for n in range(20))
        == 16000
    )


@pytest.mark.parametrize("rest", ["", "1]", "[" * 100_000, '"ok", "", 1e999, "run", null, "", {}]', "\xff"])
def test_damaged_lines_are_no_verdicts(tmp_path: Path, rest: str) -> None:
    path = tmp_path / "verdicts"
    path.write_bytes(f'["abc", {rest}\n'.encode("latin-1"))
    cache = VerdictCache(path)
    cache.refresh()
    assert cache.get("abc", 1.0) is None
