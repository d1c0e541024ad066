"""The layout that docs/architecture.md describes, as far as import-linter and ruff do not hold it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for package in ("onnx_bridge", "passes") for path in (ROOT / package).rglob("*.py"))
HEAVY = {
    "PIL",
    "diffusers",
    "fsspec",
    "jinja2",
    "markupsafe",
    "ml_dtypes",
    "onnx_graphsurgeon",
    "onnxruntime",
    "onnxscript",
    "polygraphy",
    "quark",
    "ray",
    "rich",
    "scipy",
    "sklearn",
    "tokenizers",
    "torch",
    "torchao",
    "transformers",
    "yaml",
}
"""Third-party libraries that take long to import, or are optional: functions may import them."""
NEED_THEM = {
    "onnx_bridge.parity.polygraphy.runner",
    "onnx_bridge.quantization.torch.quantize_module",
    "onnx_bridge.torch.export.try_exporters",
    "onnx_bridge.torch.lowering.lower_module",
    "onnx_bridge.views.terminal.batch_progress",
    "onnx_bridge.views.terminal.conversion",
    "onnx_bridge.views.terminal.tables",
    "onnx_bridge.views.terminal.view",
    "passes.rewriting.rewrite",
    "passes.surgeon.operation",
}
"""Modules that import such a library at their top: functions may import these, too."""
NOT_ALWAYS = {
    "onnx_bridge.batch.convert_all",
    "onnx_bridge.batch.engines.ray",
    "onnx_bridge.conversion.sizes.observed_shapes.observe_shapes",
    "onnx_bridge.conversion.sizes.open_sizes.ChosenSizes",
    "onnx_bridge.conversion.sizes.unfit_branches.close_unfit_branches",
    "onnx_bridge.conversion.sizes.unfit_branches.closed_branches",
    "onnx_bridge.conversion.verify_passes.Verifier",
    "onnx_bridge.parity.checking.check",
    "passes.legalize.driver.legalize",
}
"""What cleaning or converting one model does without, and would take a twentieth longer with: functions may, too."""
NOT_FOR_HELP = {
    "onnx_bridge.reference.comparison.tolerances.Tolerances",
    "passes.graphs.limits.MAX_ELEMENTS",
    "passes.isolation.numpy_files.read_npz",
    "passes.rewriting.spec",
}
"""What options are read with, and imports numpy or onnx, which the help of a verb does without: functions may."""
LATER = NEED_THEM | NOT_ALWAYS | NOT_FOR_HELP


def functions(tree: ast.AST) -> Iterator[ast.AST]:
    yield from (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))


def imported(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Import):
            yield from (alias.name for alias in each.names)
        elif isinstance(each, ast.ImportFrom):
            modules = {f"{each.module}.{alias.name}" for alias in each.names}
            yield from modules & LATER or {each.module or ""}


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if "cli" not in path.parts], ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_functions_import_heavy_libraries_only(path: Path) -> None:
    """Those of verbs import what they run as well: their help is shown without it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {name for function in functions(tree) for name in imported(function)}
    assert {name for name in found - LATER if name.partition(".")[0] not in HEAVY} == set()


def test_the_root_of_a_package_holds_no_other_modules() -> None:
    assert {path.name for path in (ROOT / "onnx_bridge").glob("*.py")} == {"__init__.py", "__main__.py"}
    assert {path.name for path in (ROOT / "passes").glob("*.py")} == {"__init__.py", "operators.py", "pipelines.py"}


@pytest.mark.parametrize("package", ["onnx_bridge", "passes"])
def test_every_package_is_in_the_architecture(package: str) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = {path.name for path in (ROOT / package).iterdir() if (path / "__init__.py").exists()}
    assert {name for name in folders if f"{name}/" not in text} == set()


def test_no_folder_has_more_than_sixteen_files() -> None:
    counts = Counter(path.parent.relative_to(ROOT).as_posix() for path in SOURCES)
    assert {folder: count for folder, count in counts.items() if count > 16} == {}
