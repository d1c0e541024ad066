"""Options that would have no effect on a single model, on a bundle, or without another option: an error, or a word."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser

import onnx_bridge
from onnx_bridge.bundle.manifest.text import manifest_path
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.install.install import install
from onnx_bridge.migraphx.runtime import Runtime


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("no_effect") / "m.onnx"
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[n, 2] x) => (float[n, 2] y) { y = Erf(x) }'
    onnx.save(parser.parse_model(text), path)
    return path


@pytest.fixture(scope="module")
def bundle(runtime: Runtime, model: Path) -> Path:
    onnx_bridge.convert(model, model.parent / "bundle", target="ref", prove="never")
    return model.parent / "bundle"


def test_a_single_model(bundle: Path, model: Path) -> None:
    """What is only for many models is said, since a glob may match one; --fresh keeps nothing of the bundle."""
    command = [sys.executable, "-m", "onnx_bridge", "convert", str(model), "-o", str(bundle), "--target", "ref"]
    options, before = ["--prove", "never", "--jobs", "2", "--retry", "--verify"], manifest_path(bundle).read_text()
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    notes = [line for line in done.stderr.splitlines() if "no effect" in line]
    assert [line.split()[1] for line in notes] == ["--jobs", "--retry", "--verify"]
    assert manifest_path(bundle).read_text() == before
    options = ["--prove", "never", "--fresh", "--quiet"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert manifest_path(bundle).read_text() != before


SETTINGS: list[dict[str, Any]] = [
    {"pipeline": "minimal"},
    {"dims": {"n": 3}},
    {"shapes": {"x": [3, 2]}},
    {"freeze": {"x": "[[1, 2]]"}},
    {"target": "gpu"},
    {"host": False},
    {"options": {"fast_math": False}},
    {"keep_fp32": ["Erf"], "precisions": ["fp16"]},
]
VERBS: list[tuple[Callable[..., Any], tuple[str, ...]]] = [
    (onnx_bridge.check, ("pipeline", "dims", "shapes", "freeze", "target", "host")),
    (onnx_bridge.bisect, ("pipeline", "dims", "shapes", "freeze", "target")),
    (onnx_bridge.bench, ("pipeline", "dims", "target", "options", "keep_fp32")),
]


@pytest.mark.parametrize(
    ("verb", "given"),
    [(verb, given) for verb, names in VERBS for given in SETTINGS if next(iter(given)) in names],
    ids=lambda value: str(getattr(value, "__name__", next(iter(value), "") if isinstance(value, dict) else "")),
)
def test_the_settings_of_a_bundle(verb: Callable[..., Any], given: dict[str, Any], bundle: Path) -> None:
    """It is converted already; those that it was converted with may be given again."""
    with pytest.raises(InputError, match="bundle has"):
        verb(bundle, **given)


def test_the_target_of_a_bundle(bundle: Path) -> None:
    assert onnx_bridge.check(bundle, target="ref").passed


def test_a_tie_without_buckets(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="tied"):
        onnx_bridge.convert(model, tmp_path / "out", buckets={"n": "m + 1"})


@pytest.mark.parametrize("given", [{"update": True}, {"suite": "trixie"}])
def test_a_folder_of_packages(tmp_path: Path, given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="no effect"):
        install(source=tmp_path, **given)
