"""The page of operators: how the tests of the ONNX standard for each of them went, as `make conformance` found it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.generator.markdown import code, table

DATA = Path(__file__).resolve().parents[2] / "docs" / "data" / "operators.json"
"""What ``python -m fixtures.suites.conformance.by_operator`` writes."""
_HEAD = """# Operators

Of each operator of ONNX, how many of the standard's own tests are right after `convert`, by where they run. A test
belongs to each operator in its model. *Wholly*: every node runs on MIGraphX. *Frozen*: wholly, after inputs that
MIGraphX wants constant were made so (`--freeze`). *Host*: a part runs on ONNX Runtime, as a host partition.
*Refused*: an error says why. *Stock*: how many are right with MIGraphX alone, without this project. An operator that
is not here has no test in the standard's suite.

There is no table of supported operators in the code: MIGraphX itself is asked about each node ([Verdicts and
proofs](../concepts/verdicts.md)). `onnx-bridge doctor MODEL` says it of a model.

"""
COLUMNS = ("wholly", "frozen", "host", "wrong", "refused", "crashed")


def page() -> str:
    """The page."""
    return _HEAD + "\n\n".join(_parts(json.loads(DATA.read_text())))


def _parts(data: dict[str, Any]) -> Iterator[str]:
    versions = f"MIGraphX {data['migraphx']}, ONNX Bridge {data['onnx_bridge']}"
    yield f"Found with {versions}, and {data['tests']:,} tests of ONNX {data['onnx']}."
    shown = [name for name in COLUMNS if any(each.get(name) for each in data["operators"].values())]
    rows = [
        (code(name), each["tests"], each["stock"] or "–", *(each.get(column) or "–" for column in shown))
        for name, each in data["operators"].items()
    ]
    yield table(["operator", "tests", "stock", *shown], rows)
