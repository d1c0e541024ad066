"""The help of verbs: groups of options, and examples that the verb takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml

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


@pytest.mark.parametrize("verb", main.VERBS)
def test_every_verb_has_an_example(verb: str) -> None:
    command = _command(verb)
    for part in (command, *getattr(command, "commands", {}).values()):
        assert "Example: onnx-bridge " in part.help, part.name
        assert part.help.split()[0] not in ("What", "Whether", "How", "Which")


@pytest.mark.parametrize("verb", main.VERBS)
def test_options_are_no_questions(verb: str) -> None:
    command = _command(verb)
    for part in (command, *getattr(command, "commands", {}).values()):
        for parameter in part.params:
            assert (parameter.help or "").split()[:1] not in (["What"], ["Whether"], ["How"], ["Which"]), parameter


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("convert --precision ", {"fp32", "fp16", "bf16", "int8", "fp8"}),
        ("bench m.onnx --precision fp32,f", {"fp32,fp32", "fp32,fp16", "fp32,fp8"}),
        ("doctor m.onnx --target gpu:gfx94", {"gpu:gfx942"}),
        ("quantize --scheme int8", {"int8", "int8-pow2"}),
        ("convert --prove a", {"auto", "always"}),
        ("convert m.onnx --dim ", {"batch=", "height="}),
        ("check m.onnx --dim h", {"height="}),
    ],
)
def test_values_are_completed(line: str, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "(float[batch, height] x) => (float[batch, height] y) { y = Relu(x) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}'), "m.onnx")
    verb, *arguments, incomplete = line.split(" ")
    command = _command(verb)
    context = command.make_context(verb, arguments[:-1], resilient_parsing=True)
    option = next(parameter for parameter in command.params if arguments[-1] in parameter.opts)
    assert {item.value for item in option.shell_complete(context, incomplete)} == expected


def test_the_action_and_the_hook_call_check_as_it_is() -> None:
    root = Path(__file__).resolve().parents[2]
    action = yaml.safe_load((root / "action.yml").read_text())
    (hook,) = yaml.safe_load((root / ".pre-commit-hooks.yaml").read_text())
    line = shlex.split(action["runs"]["steps"][-1]["run"])
    assert {*action["runs"]["steps"][-1]["env"]} == {word[1:] for word in line if word.startswith("$")}
    assert {*action["inputs"]} == {"model", "arguments", "report", "junit"}
    called = re.search(r"onnx-bridge (\w+) \S+", hook["entry"])
    assert called is not None
    for verb, arguments in ((called[1], ["m.onnx"]), (line[1], [word.lstrip("$") for word in line[2:-1]])):
        _command(verb).make_context(verb, arguments)
