"""The page of versions: what the project is tested with, made from pyproject.toml and constraints.txt."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docs.generator.markdown import code, table

ROOT = Path(__file__).resolve().parents[2]
_HEAD = """# Versions

`pyproject.toml` has the versions that are accepted, `constraints.txt` those that the tests run with, which `make` and
the Dockerfiles install: `pip install -c constraints.txt .` does the same. What was found with which MIGraphX is in
[MIGraphX versions](../runtimes.md).

"""
_REQUIREMENT = re.compile(r"([\w.-]+)(?:\[[\w,]+\])?\s*(.*)")


def page() -> str:
    """The page."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return _HEAD + "\n\n".join(_parts(project))


def _parts(project: dict[str, Any]) -> Iterator[str]:
    named = [classifier.rpartition(" ")[2] for classifier in project["classifiers"] if "Python :: 3." in classifier]
    yield f"Python {', '.join(named)}, each in continuous integration; Linux on x86-64 with glibc."
    yield "## Required"
    yield _table(project["dependencies"])
    for extra in ("torch", "quark", "ray", "surgeon", "polygraphy", "images"):
        yield f"## Extra {extra}"
        yield _table(project["optional-dependencies"][extra])


def _table(requirements: list[str]) -> str:
    tested = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
    )
    exact = {_normal(name): version for name, version in tested.items()}
    rows = []
    for each in requirements:
        found = _REQUIREMENT.match(each)
        assert found is not None
        rows.append((code(found[1]), found[2].replace(">=", "≥ ") or "any", exact[_normal(found[1])]))
    return table(["package", "accepted", "tested"], rows)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
