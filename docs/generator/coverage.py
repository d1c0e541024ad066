"""The page of operators: how the standard's tests of each went, in the last whole run of the suite `conformance`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.generator.markdown import code, table

DATA = Path(__file__).resolve().parents[1] / "data" / "operators.json"
"""What a whole run of the suite ``conformance`` writes."""
_HEAD = """# Operators

Of each operator of ONNX, how many of the standard's own tests are right after `convert`, by where they run. A test
belongs to each operator in its model. *Wholly*: every node runs on MIGraphX. *Frozen*: wholly, after inputs that
MIGraphX wants constant were made so (`--freeze`). *Host*: a part runs on ONNX Runtime, as a host partition.
*Refused*: an error says why. *Stock*: how many are right with MIGraphX alone, without this project. An operator that
is not here has no test in the standard's suite.

<picture>
<source media="(max-width: 45em)" srcset="../assets/operators-narrow.svg">
<img src="../assets/operators.svg" alt="The share of each operator's tests that are right; the line is MIGraphX alone">
</picture>

There is no table of supported operators in the code: MIGraphX itself is asked about each node ([Verdicts and
proofs](../concepts/verdicts.md)). `onnx-bridge doctor MODEL` says it of a model.

"""
COLUMNS = ("wholly", "frozen", "host", "wrong", "refused", "crashed")


def page() -> str:
    """Return the page."""
    return _HEAD + "\n\n".join(_parts(json.loads(DATA.read_text())))


def _parts(data: dict[str, Any]) -> Iterator[str]:
    versions = f"MIGraphX {data['migraphx']}, ONNX Bridge {data['onnx_bridge']}, which requires ONNX {data['onnx']}"
    yield f"Found with {versions}, and the {data['tests']:,} tests that come with ONNX {data['onnx_of_tests']}."
    shown = [name for name in COLUMNS if any(counts.get(name) for counts in data["operators"].values())]
    rows = [
        (code(name), each["tests"], each["stock"] or "–", *(each.get(column) or "–" for column in shown))
        for name, each in data["operators"].items()
    ]
    yield table(["operator", "tests", "stock", *shown], rows)
