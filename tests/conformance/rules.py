"""How often each rule of legalization is applied over the conformance suite, by MIGraphX: ``make rules``.

Reads what ``make conformance`` wrote for each runtime. A rule that a version does not need is not in its column.
"""

from __future__ import annotations

import collections
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.conformance.run import RESULTS


def table(counts: Mapping[str, Mapping[str, int]]) -> str:
    """The applications of each rule, a column a runtime; the rules that no longer occur in one come first."""
    names = {name for column in counts.values() for name in column}
    rows = sorted(names, key=lambda name: (all(name in column for column in counts.values()), name))
    width = max(map(len, (*rows, "rule")))
    lines = [f"{'rule':{width}}  " + "  ".join(f"{runtime:>14}" for runtime in counts)]
    lines += [
        f"{name:{width}}  " + "  ".join(f"{column.get(name, 0):14}" for column in counts.values()) for name in rows
    ]
    total = "  ".join(f"{sum(column.values()):14}" for column in counts.values())
    return "\n".join([*lines, f"{'all':{width}}  {total}"])


def applied(results: Path) -> collections.Counter[str]:
    """The applications of each rule in one run of the suite."""
    rows = json.loads(results.read_text())
    return sum((collections.Counter(row["ours"]["rules"]) for row in rows), collections.Counter[str]())


def main() -> int:
    """Print the table; exit code 2 where the suite has not been run."""
    found = {
        file.stem.removeprefix("conformance-"): applied(file) for file in sorted(RESULTS.glob("conformance-*.json"))
    }
    if not found:
        print("there are no results: run make conformance, and make conformance RUNTIME=PATH for another MIGraphX")
        return 2
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
