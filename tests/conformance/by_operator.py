"""Outcomes by operator, from the result of a whole run: ``docs/data/operators.json``, for the page of operators.

`make conformance` runs it at its end.
"""

from __future__ import annotations

import argparse
import collections
import json
from collections.abc import Iterator
from pathlib import Path

import onnx

from fixtures.documentation.coverage import DATA
from onnx_bridge.core.version import VERSION
from tests.conformance import suite


def operators(graph: onnx.GraphProto) -> Iterator[str]:
    """The operators of a graph and its subgraphs, ``domain::name`` where the domain is not the standard's."""
    for node in graph.node:
        yield f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from operators(inner)


def main() -> None:
    """Count and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    newest = max(suite.ROOT.parent.glob("conformance-*.json"), key=lambda file: file.stat().st_mtime, default=None)
    parser.add_argument("result", type=Path, nargs="?", default=newest, help="of a whole run; default: the newest")
    options = parser.parse_args()
    rows = {row["name"]: row for row in json.loads(options.result.read_text())}
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for case in suite.cases():
        row = rows[case.name]
        for name in set(operators(onnx.load(case.model).graph)):
            counts[name].update(["tests", row["ours"]["outcome"]] + ["stock"] * (row["stock"]["outcome"] == "wholly"))
    data = {
        "migraphx": options.result.stem.removeprefix("conformance-").partition("-")[0],
        "onnx_bridge": VERSION,
        "onnx": suite.VERSION,
        "tests": len(rows),
        "outcomes": collections.Counter(row["ours"]["outcome"] for row in rows.values()),
        "stock": sum(row["stock"]["outcome"] == "wholly" for row in rows.values()),
        "operators": {name: {"stock": 0, **counts[name]} for name in sorted(counts, key=str.lower)},
    }
    DATA.parent.mkdir(parents=True, exist_ok=True)
    DATA.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
