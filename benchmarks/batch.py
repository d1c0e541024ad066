"""Batches beside themselves: two jobs at a time against one, what a job costs beyond its conversion, going on again
when all is done, and again with another tolerance, which is to be compared anew and not compiled.

python -m benchmarks.batch --models 200
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

from fixtures.chaos import make
from onnx_bridge.conversion import journal as journals
from onnx_bridge.conversion.batch import convert_all
from onnx_bridge.conversion.jobs import Settings


def _timed(folder: Path, out: Path, jobs: int, settings: Settings | None = None) -> float:
    started = time.perf_counter()
    outcome = convert_all([folder / "jobs.toml"], out, settings, jobs=jobs)
    assert outcome.passed, outcome.to_json()
    return time.perf_counter() - started


def _events(out: Path) -> Counter[str]:
    """How often each thing happened, by the journal."""
    records, _, _ = journals.read(out / journals.STATE)
    return Counter(each["event"] for each in records)


def main() -> None:
    """The command."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--models", type=int, default=200)
    count = options.parse_args().models
    with tempfile.TemporaryDirectory(prefix="batch-") as name:
        folder = Path(name)
        make(folder, count, 0)
        _timed(folder, folder / "warm", 2)  # MIGraphX's verdicts on the nodes are known from here on
        one, two = _timed(folder, folder / "one", 1), _timed(folder, folder / "two", 2)
        again = _timed(folder, folder / "two", 2)
        records, _, _ = journals.read(folder / "one" / journals.STATE)
        converting = sum(each["seconds"] for each in records if each["event"] == "done")
        _timed(folder, folder / "two", 2, Settings(check=True))
        before = _events(folder / "two")
        checking = _timed(folder, folder / "two", 2, Settings(check=True, atol=1e-3, rtol=1e-3))
        did = _events(folder / "two") - before
    print(f"{count} models, one at a time: {one:.1f} s; two at a time: {two:.1f} s; again: {again:.2f} s")
    print(f"two jobs against one: {one / two:.2f} × (wanted: 1.7 ×)")
    print(f"beyond its conversion, a job takes {(one - converting) / count:.3f} s (wanted: less than 0.3 s)")
    print(f"going on when all are done takes {again / one:.4f} of doing them: {again:.2f} s (wanted: less than 3 s)")
    print(
        f"with another tolerance {did['checked']} of {count} are compared again and {did['done']} compiled (wanted: "
        f"{count} and 0), in {checking:.1f} s"
    )


if __name__ == "__main__":
    main()
