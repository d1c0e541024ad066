"""The registry of passes: names without imports, classes and descriptions when asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir
import pytest

import passes
from passes.core.errors import InputError
from passes.rewriting.base import Context, Pass, Result


@dataclass(frozen=True)
class Nothing(Pass):
    """Do nothing.

    At all.
    """

    name = "do-nothing"

    def run(self, model: ir.Model, context: Context) -> Result:
        return Result(model)


@pytest.fixture
def registered() -> Iterator[type[Pass]]:
    yield passes.register(Nothing)
    del passes._registered[Nothing.name]


def test_listing_and_describing_import_nothing_heavy() -> None:
    code = (
        "import sys, passes\n"
        "assert passes.names()\n"
        "assert all(passes.describe(name) for name in passes.names())\n"
        "heavy = {'numpy', 'onnx', 'onnx_ir', 'onnxruntime'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", passes.names())
def test_every_pass_is_what_its_name_says(name: str) -> None:
    cls = passes.get(name)
    assert issubclass(cls, Pass)
    assert cls.name == name
    assert passes.describe(name) == (cls.__doc__ or "").partition("\n")[0]
    assert passes.describe(name).endswith(".")
    assert cls() == cls()


def test_unknown_names_get_the_nearest() -> None:
    with pytest.raises(InputError, match="fold-constnats.*did you mean fold-constants?"):
        passes.get("fold-constnats")
    with pytest.raises(InputError, match="did you mean default?"):
        passes.get("defualt")
    with pytest.raises(InputError, match="there are .*remove-dead"):
        passes.describe("zzzzzzzz")


def test_a_pass_of_ones_own(registered: type[Pass]) -> None:
    assert registered is Nothing
    assert "do-nothing" in passes.names()
    assert passes.get("do-nothing") is Nothing
    assert passes.describe("do-nothing") == "Do nothing."
    assert passes.register(Nothing) is Nothing


@pytest.mark.parametrize("taken", ["remove-dead", "default", "do-nothing"])
def test_names_are_taken_once(registered: type[Pass], taken: str) -> None:
    @dataclass(frozen=True)
    class Another(Nothing):
        name = taken

    with pytest.raises(InputError, match=f"already a pass or a pipeline {taken}"):
        passes.register(Another)
