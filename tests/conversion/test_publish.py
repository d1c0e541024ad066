"""A bundle in the place of an earlier one, and a kill anywhere in between."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnx_bridge
from onnx_bridge.batch.output import intact_manifest
from onnx_bridge.bundle.manifest import FileInfo, manifest_path
from onnx_bridge.conversion.staging import adopt
from onnx_bridge.core.errors import BridgeError


class Killed(BaseException):
    """Stands for the end of the process."""


def model(path: Path, seed: int) -> Path:
    made = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[4, 16] x) => (float[4, 8] y) { y = MatMul(x, w) }'
    )
    weights = np.random.default_rng(seed).standard_normal((16, 8), np.float32)
    made.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(made, path)
    return path


@pytest.mark.parametrize("kept", range(4))
def test_a_killed_replacement_leaves_no_mixture(kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models whose programs have the same size: after a kill there is the one, the other, or none."""
    source, out = model(tmp_path / "m.onnx", 0), tmp_path / "out"
    first = onnx_bridge.convert(source, out, target="ref").manifest
    model(source, 1)
    second = onnx_bridge.convert(source, tmp_path / "elsewhere", target="ref").manifest
    assert [each.bytes for each in second.files] == [each.bytes for each in first.files]
    replaced: list[Path] = []
    replace = Path.replace

    def killed(self: Path, target: Path) -> Path:
        if target.parent == out:
            if len(replaced) == kept:
                raise Killed
            replaced.append(target)
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        try:
            onnx_bridge.convert(source, out, target="ref")
        except Killed:
            assert len(replaced) == kept
            assert intact_manifest(out, first.key or "") is intact_manifest(out, second.key or "") is None
            with pytest.raises(BridgeError, match=r"is missing|there is no"):
                onnx_bridge.load(out)
        else:
            assert kept == len(replaced) == 3  # the manifest, the model and the program
    onnx_bridge.convert(source, out, target="ref")
    assert intact_manifest(out, second.key or "") is not None
    assert onnx_bridge.check(onnx_bridge.load(out), reference=source).passed


def test_a_second_name_for_external_data(tmp_path: Path) -> None:
    """onnx takes a file of weights that has several names for an attack, so each bundle has its own."""
    source, out = model(tmp_path / "m.onnx", 0), tmp_path / "out"
    manifest = onnx_bridge.convert(source, out, target="ref").manifest
    cleaned = onnx.load(out / "m.onnx")
    onnx.save(cleaned, out / "m.onnx", save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    files = tuple(FileInfo.of(out / name) for name in ("m.onnx", "m.onnx.data"))
    replace(manifest, model=files).write(manifest_path(out))
    adopt(out, tmp_path / "other", tmp_path / "n.onnx")
    for each in (out, tmp_path / "other"):
        onnx.load(each / "m.onnx")
        assert onnx_bridge.check(onnx_bridge.load(each), reference=source).passed
    assert (out / "m.mxr").samefile(tmp_path / "other/m.mxr")
