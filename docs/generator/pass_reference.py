"""The pages of the passes and of the rules of legalization, made from their classes and docstrings."""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import passes
from docs.generator.markdown import code, documentation, operator, table, without_summary
from onnx_bridge.conversion.diagnosis.explain import catalogue
from passes.legalize import FAMILIES, rules_of
from passes.rewriting.base import Exactness

_PASSES = """# Passes

A pass rewrites a model. `onnx-bridge passes list` shows them all; `--pipeline` chooses which run, in which order and
with which options: `fold-constants,fold-qdq{max-bytes=64MiB}`. The exactness says how far a pass may change numbers:

"""
_RULES = """# Rules of legalization

The pass [`legalize`](passes.md#legalize) applies a rule only where MIGraphX rejects a node, crashes on it or computes
it wrongly, and commits what the rule proposes only if MIGraphX then computes the same as before. `onnx-bridge passes
explain legalize MODEL --node NAME` says which rule was applied, or why none. Where several rules know an operator,
those that come first here are tried first.

"""


def passes_page() -> str:
    """The page of the passes, in the order of their names, and of the named pipelines."""
    exactness = table(["exactness", "meaning"], [(code(kind.value), _meaning(kind)) for kind in Exactness])
    return _PASSES + "\n\n".join([exactness, *_pipelines(), *itertools.chain(*map(_pass, catalogue().passes))])


def _meaning(member: Exactness) -> str:
    """Return what stands below a member of the enumeration."""
    lines = inspect.getsource(Exactness).splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip().startswith(f"{member.name} ="))
    return lines[at + 1].strip().strip('"')


def _pipelines() -> Iterator[str]:
    yield "## Pipelines"
    yield "A pipeline is a list of passes, or the name of one. `default` is what `convert`, `clean` and `doctor` run."
    rows = [
        (code(name), ", ".join(f"[{step}](#{step})" for step in spec.split(",") if step) or "(nothing)")
        for name, spec in catalogue().pipelines.items()
    ]
    yield table(["pipeline", "passes"], rows)


def _pass(info: Any) -> Iterator[str]:
    cls = passes.get(info.name)
    yield f"## {info.name}"
    yield info.does
    rows = [("exactness", code(info.exactness))]
    rows += [("operators", ", ".join(operator(each) for each in sorted(cls.operators)))] if _operators(cls) else []
    rows += [
        (f"option {code(name)}", f"default {code(value)}" if value else "") for name, value in info.options.items()
    ]
    yield table(["property", "value"], rows)
    yield without_summary(inspect.getdoc(importlib.import_module(cls.__module__)) or "")
    options = inspect.getdoc(cls) or ""
    if "Attributes:" in options:
        yield f"```text\n{options[options.index('Attributes:') :].replace('Attributes:', 'Options:')}\n```"


def _operators(cls: Any) -> bool:
    return isinstance(getattr(cls, "operators", None), frozenset) and 0 < len(cls.operators) <= 12


def rules_page() -> str:
    """The page of the rules, by family."""
    return _RULES + "\n\n".join(itertools.chain(*map(_family, FAMILIES)))


def _family(name: str) -> Iterator[str]:
    module = importlib.import_module(f"passes.legalize.{name}")
    text = inspect.getdoc(module) or ""
    yield f"## {name}"
    yield text
    rows = [
        (code(rule.name), documentation(type(rule)), _some(sorted(rule.operators)), code(_exactness(rule)))
        for rule in rules_of(name)
    ]
    yield table(["rule", "what it does", "operators", "exactness"], rows)


def _some(operators: list[tuple[str, str]], most: int = 16) -> str:
    shown = ", ".join(operator(each) for each in operators[:most])
    return f"{shown} and {len(operators) - most} more" if len(operators) > most else shown


def _exactness(rule: Any) -> str:
    return rule.exactness.value if isinstance(rule.exactness, Exactness) else "by its options"
