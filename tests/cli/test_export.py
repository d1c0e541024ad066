"""``onnx-bridge export``: factories, arguments, and errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnx_bridge.cli import main
from onnx_bridge.core.errors import InputError
from onnx_bridge.requests import texts
from onnx_bridge.torch.modules import factories

CODE = """
import torch
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, 4)
    def forward(self, ids, scale):
        return {"rows": self.table(ids) * scale}

WHOLE = Two()
def bare(): return Two()
def arguments(): return {"ids": torch.tensor([[1, 2, 3], [4, 5, 6]]), "scale": torch.ones(1)}
def by_name(): return Two(), arguments()
def by_position(): return Two(), tuple(arguments().values())
def both(): return (torch.tensor([[1, 2]]),), {"scale": torch.ones(1)}
def three(): return 1, 2, 3
def broken(): raise ValueError("no such weights\\nthese lines\\nsay more")
def leaving(): raise SystemExit("enough")
def number(): return 3, ()
def kind(): return Two
def talking():
    print("loading weights")
    return by_name()
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the code above, and the current directory."""
    (tmp_path / "two_towers.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "two_towers", raising=False)
    return tmp_path


@pytest.fixture
def run(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """``run("two_towers:bare", …)``: exit code and both streams."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["onnx-bridge", "export", *arguments])
        with pytest.raises(SystemExit) as caught:
            main.main()
        printed = capsys.readouterr()
        return int(str(caught.value.code)), printed.out, printed.err

    return call


@pytest.mark.parametrize("factory", ["two_towers:by_name", "two_towers.py:by_position"])
def test_a_factory_that_gives_arguments(run: Callable[..., Any], home: Path, factory: str) -> None:
    code, out, _ = run(factory, "-o", "two.onnx", "--exporter", "torchscript", "--dynamic", "ids.0=batch")
    assert code == 0
    assert "int64[batch, 3]" in out
    assert "ONNX Runtime agrees with PyTorch on 2 samples" in out
    model = onnx.load(home / "two.onnx")
    assert [each.name for each in model.graph.input] == ["ids", "scale"]
    assert [each.name for each in model.graph.output] == ["rows"]


def test_arguments_by_shape_and_json(run: Callable[..., Any]) -> None:
    given = ("--args", "ids=2x5:int64", "--args", "scale=1")
    code, out, err = run(
        "two_towers:WHOLE", "-o", "two.onnx", "--exporter", "torchscript", "--json", "--opset", "17", *given
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["exporter"], found["opset"], found["samples"]) == ("torchscript", 17, 2)
    assert found["inputs"][0] == {"name": "ids", "dtype": "int64", "shape": [2, 5]}


def test_output_of_a_factory_is_not_part_of_the_result(run: Callable[..., Any]) -> None:
    code, out, err = run("two_towers:talking", "-o", "two.onnx", "--exporter", "torchscript", "--json")
    assert (code, err) == (0, "loading weights\n")
    assert json.loads(out)["exporter"] == "torchscript"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["two_towers:bare"], "the factory returns a module without arguments to call it with"),
        (["two_towers:bair"], "two_towers has no 'bair' (did you mean bare?)"),
        (["two_tower:bare"], "the module 'two_tower' does not exist"),
        (["nothing.py:bare"], "nothing.py: there is no such file"),
        (["two_towers"], "this is not the name of a factory"),
        (["two_towers:three"], "the factory returns a tuple of 3"),
        (["two_towers:broken"], "the factory fails: ValueError: no such weights"),
        (["two_towers:leaving"], "the factory fails: SystemExit: enough"),
        (["two_towers:number"], "the factory returns 3, not a torch.nn.Module (return the module"),
        (["two_towers:kind"], "the factory returns the class Two, not a torch.nn.Module"),
        (["two_towers:bare", "--args", "ids=axb"], "'ids=axb' is not KEY=SHAPE:DTYPE"),
        (["two_towers:bare", "--args", "float32[2,4]"], "--args: 'float32[2,4]' is not KEY=SHAPE:DTYPE"),
        (["two_towers:bare", "--args", "ids=2x3:int63"], "the dtype 'int63' does not exist"),
        (["two_towers:by_name", "--dynamic", "ids=batch"], "'ids=batch' is not INPUT.AXIS=NAME"),
        (["two_towers:bare", "--args", "idz=2x3:int64"], "the arguments do not fit"),
    ],
)
def test_errors_are_one_line(run: Callable[..., Any], home: Path, arguments: list[str], said: str) -> None:
    code, out, err = run(*arguments, "-o", "two.onnx")
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert not (home / "two.onnx").exists()


def test_arguments_from_a_function(home: Path) -> None:
    args, kwargs = factories.arguments(["two_towers.py:both"]) or ((), {})
    assert (len(args), list(kwargs)) == (1, ["scale"])
    assert factories.arguments([]) is None
    made = factories.arguments(["input_ids=2x4:int64", "attention_mask=2x4:int64", "position_ids=1x3:int32"])
    assert made is not None
    values = made[1]
    assert values["input_ids"].max() < 2
    assert values["attention_mask"][:, 0].all()
    assert values["position_ids"].tolist() == [[0, 1, 2]]


def test_open_sizes_by_name() -> None:
    assert texts.open_dimensions(["past.0.key.0=batch", "past.0.key.-2=past+1", "x.1=n"]) == {
        "past.0.key": {0: "batch", -2: "past+1"},
        "x": {1: "n"},
    }
    with pytest.raises(InputError, match=r"is not INPUT\.AXIS=NAME"):
        texts.open_dimensions(["x.y=n"])
