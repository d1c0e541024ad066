"""The digest of the code that decides: what it covers is found in the sources, and nothing that runs is missing."""

from __future__ import annotations

import ast
import functools
import json
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import onnx_bridge
from onnx_bridge.core.files import code_digest as subject
from onnx_bridge.core.files.code_digest import LIBRARIES, code_digest, modules

ROOT = Path(onnx_bridge.__file__).parents[1]
VERDICTS = "onnx_bridge.verdicts.probed_runtime"
CLEANING = ("passes", "onnx_bridge.conversion.steps.clean")
SERVERS = ("onnx_bridge.reference.server", "onnx_bridge.migraphx.server")
COMPUTE_NOTHING = {"PIL", "filelock", "google", "msgspec", "onnx_graphsurgeon", "platformdirs", "rich", "torch"}
"""Libraries that do not decide on numbers, or are called by scripts that users name."""

OUTERMOST = {"onnx_bridge.core.version", "passes.pipelines"}
"""What the outermost packages import, which only list what there is."""


def run(code: str, *arguments: str, folder: Path = ROOT) -> str:
    command = [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def loaded(code: str, *arguments: str) -> set[str]:
    """The project's modules that a new process has imported in the end."""
    found = json.loads(run(f"{code}\nimport json; print(json.dumps(list(sys.modules)))", *arguments).splitlines()[-1])
    return {name for name in found if name.startswith(("onnx_bridge.", "passes."))} - OUTERMOST


@functools.cache
def imports(module: str) -> list[str]:
    """The modules that a source imports, by its syntax tree."""
    names: list[str] = []
    path = ROOT.joinpath(*module.split("."))
    source = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None and not node.level, f"{module} has a relative import"
            names += [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
    return names


@pytest.mark.parametrize("roots", [(VERDICTS,), CLEANING, ("onnx_bridge.conversion",), ()])
@pytest.mark.slow
def test_no_import_leads_out_of_it(roots: tuple[str, ...]) -> None:
    """The search in the text finds what a parser does."""
    known = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in ROOT.glob("[op]*/**/*.py")}
    covered = modules(*roots)
    missed = {(module, name) for module in covered for name in imports(module) if name in known and name not in covered}
    assert not missed


def test_modules_that_decide_on_verdicts() -> None:
    assert {
        VERDICTS,
        *SERVERS,
        "onnx_bridge.verdicts.index_tables",
        "onnx_bridge.verdicts.race_conditions",
        "onnx_bridge.migraphx.c_api",
        "onnx_bridge.reference.missing_kernels.half_emulation",
        "passes.shapes.inference",
        "passes.graphs.scopes",
    } <= modules(VERDICTS)
    others = ("onnx_bridge.cli", "onnx_bridge.batch", "passes.legalize.driver", "passes.legalize.nn")
    assert not any(name.startswith(others) for name in modules(VERDICTS))


def test_modules_that_decide_on_cleaning() -> None:
    everything = {name for name in modules() if name.startswith("passes")}
    assert everything | modules(VERDICTS) <= modules(*CLEANING)
    assert "onnx_bridge.model.writer" in modules(*CLEANING)


@pytest.mark.parametrize("server", SERVERS)
def test_what_a_child_process_loads(server: str) -> None:
    assert loaded(f"import {server}") <= modules(VERDICTS)


@pytest.mark.runtime
def test_what_a_verdict_loads() -> None:
    """Also modules that are imported within functions: two probes, one right and one rejected, with a cold cache."""
    probing = """
import onnx_ir as ir
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.verdicts.probed_runtime import ProbedRuntime
from passes.graphs.scopes import Scope
from passes.probing.probe import Probe
model = ir.from_onnx_text(
    '<ir_version: 9, opset_import: ["": 17]> f (float[2,2] x) => (float y) { h = Relu(x)   y = Det(h) }'
)
scope = Scope(model, model.graph)
target = ProbedRuntime(next(each for each in runtimes.installed() if each.kind == "private"), cache=False)
print([each.status.value for each in target.verdicts([Probe.of([node], scope) for node in model.graph])])
"""
    found = loaded(probing)
    assert VERDICTS in found
    assert found <= modules(VERDICTS)


@pytest.mark.parametrize("roots", [(VERDICTS,), CLEANING])
def test_versions_of_what_computes(roots: tuple[str, ...]) -> None:
    third_party = {name.partition(".")[0] for module in modules(*roots) for name in imports(module)}
    third_party -= {*sys.stdlib_module_names, "onnx_bridge", "passes"}
    assert third_party <= {name.replace("-", "_") for name in LIBRARIES} | COMPUTE_NOTHING


def test_another_version_of_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {subject.code_digest.__wrapped__(VERDICTS)}
    real = metadata.version
    for library in ("onnx", "onnxruntime", "onnx-ir", "numpy"):
        monkeypatch.setattr(metadata, "version", lambda name, of=library: "0" if name == of else real(name))
        digests.add(subject.code_digest.__wrapped__(VERDICTS))
    assert len(digests) == 5
    assert code_digest(VERDICTS) in digests


@pytest.mark.parametrize(
    ("changed", "verdicts", "cleaning"),
    [
        ("onnx_bridge/verdicts/race_conditions.py", True, True),
        ("onnx_bridge/migraphx/server.py", True, True),
        ("passes/shapes/inference.py", True, True),
        ("passes/legalize/nn/__init__.py", False, True),
        ("onnx_bridge/model/writer.py", True, True),
        ("onnx_bridge/cli/models/clean.py", False, False),
    ],
)
def test_another_version_of_a_module(
    copied: tuple[Path, list[str]], changed: str, verdicts: bool, cleaning: bool
) -> None:
    folder, before = copied
    source = folder / changed
    text = source.read_text()
    try:
        source.write_text(f"{text}\n# changed\n")
        after = digests(folder)
    finally:
        source.write_text(text)
    assert [one != other for one, other in zip(before, after, strict=True)] == [verdicts, cleaning, True]


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The project's sources, to be changed, and their digests."""
    folder = tmp_path_factory.mktemp("project")
    for package in ("onnx_bridge", "passes"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder, digests(folder)


def digests(folder: Path) -> list[str]:
    """Return the digests of verdicts, of cleaning, and of the whole project in a folder."""
    code = (
        "from onnx_bridge.core.files.code_digest import code_digest as d\nprint(d(sys.argv[1]), d(*sys.argv[2:]), d())"
    )
    return run(code, VERDICTS, *CLEANING, folder=folder).split()


def test_a_module_that_there_is_not() -> None:
    with pytest.raises(ValueError, match=r"onnx_bridge\.nothing"):
        modules("onnx_bridge.nothing")
