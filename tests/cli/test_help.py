"""The help of verbs: groups of options, and examples that the verb takes."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from onnx_bridge.cli import main


def _command(verb: str) -> Any:
    return main._loaded(verb)


def _help(verb: str) -> str:
    command = _command(verb)
    return str(command.get_help(command.context_class(command, info_name=verb)))


@pytest.mark.parametrize("verb", main.VERBS)
def test_no_type_stands_for_a_value(verb: str) -> None:
    assert re.findall(r"<[a-z ]+>|\[[0-9.]*<?=?x[<>]", _help(verb)) == []


@pytest.mark.parametrize("verb", main.VERBS)
def test_the_example_is_taken(verb: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    command = _command(verb)
    for example in re.findall(r"^ *Example: onnx-bridge (.+)$", command.help, re.MULTILINE):
        name, *arguments = shlex.split(example)
        assert name == verb
        command.make_context(verb, arguments)  # raises what the user would see


def test_options_are_listed_in_groups() -> None:
    headings = re.findall(r"^(\w[\w ]*):$", _help("convert"), re.MULTILINE)
    assert headings[:3] == ["Arguments", "Options", "Model"]
    assert headings[-1] == "Runtime"
    assert len(headings) == len(set(headings)) > 7
