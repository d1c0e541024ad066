"""All benchmarks, one part after the other: ``make bench``, or ``python -m benchmarks clean batch``.

A part is a process of its own. ``build/bench.json`` has every bound with what was measured, by part; the last line
counts them. Exit code 1 if one is missed, or if a part fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.bounds import RESULTS
from fixtures import BUILD

_PEERS = ("cp", "onnx-bridge", "ort-basic", "onnxslim")
"""The tools that bounds are relative to, with ours; `python -m benchmarks.clean` takes all."""
PARTS: dict[str, tuple[str, ...]] = {
    "traps": (),
    "clean": ("--tools", *_PEERS),
    "equality": (),
    "convert": (),
    "start": (),
    "calls": (),
    "overhead": (),
    "batch": ("--models", "40"),
    "precision": ("resnet", "bert", "--precision", "fp16,int8"),
}
"""The arguments with which each part takes minutes."""


def main() -> int:
    """Run the parts, write the figures, and print how many bounds are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: {' '.join(PARTS)}")
    parser.add_argument("--json", type=Path, default=BUILD / "bench.json", help="where the figures go")
    options = parser.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no part {unknown[0]}; there are {', '.join(PARTS)}")
    results: dict[str, Any] = {}
    for part in options.parts or PARTS:
        print(f"\n== {part}", flush=True)
        started = time.monotonic()
        with tempfile.NamedTemporaryFile(prefix="bounds-") as file:
            command = [sys.executable, "-m", f"benchmarks.{part}", *PARTS[part]]
            done = subprocess.run(command, env={**os.environ, RESULTS: file.name}, check=False)
            bounds = [json.loads(line) for line in Path(file.name).read_text().splitlines()]
        failed = done.returncode != 0 and all(bound["kept"] for bound in bounds)
        results[part] = {"seconds": round(time.monotonic() - started), "failed": failed, "bounds": bounds}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=1))
    bounds = [bound for part in results.values() for bound in part["bounds"]]
    failed_parts = [part for part, result in results.items() if result["failed"] or not result["bounds"]]
    missed = sum(not bound["kept"] for bound in bounds)
    for part in failed_parts:
        print(f"the part {part} failed")
    print(f"bench: kept {len(bounds) - missed}, missed {missed}, of {len(bounds)}")
    return 1 if missed or failed_parts else 0


if __name__ == "__main__":
    sys.exit(main())
