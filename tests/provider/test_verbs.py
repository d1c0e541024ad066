"""What takes ``--for onnxruntime`` like any other option: batches, modules of PyTorch, decoders."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import onnx
import pytest
import torch
from onnx import parser

import onnx_bridge
from fixtures.models import decoder
from onnx_bridge.conversion import keys
from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.provider.environment import installed
from tests.batch.inline import Inline


def test_a_batch_converts_keeps_and_converts_again_for_another_wheel(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[N,4] x) => (float[N,4] y) { y = Erf(x) }'
    onnx.save(parser.parse_model(text), tmp_path / "models/good.onnx")
    (tmp_path / "models/bad.onnx").write_bytes(b"no model")
    (tmp_path / "models/twin.onnx").write_bytes((tmp_path / "models/good.onnx").read_bytes())

    def statuses() -> dict[str, str]:
        options = {"application": "onnxruntime", "dims": {"N": 2}, "layout": "triton"}
        run = onnx_bridge.convert_all([tmp_path / "models"], tmp_path / "out", engine=Inline(), **options)
        return {result.name: str(result.status) for result in run.jobs}

    first = statuses()
    assert first == {"good": "converted", "bad": "failed", "twin": "converted"}
    for name in ("good", "twin"):
        settings = json.loads((tmp_path / "out" / name / "session.json").read_text())
        assert all((tmp_path / "out" / name / entry["model"]).is_file() for entry in settings["models"])
    assert statuses() == {"good": "kept", "bad": "skipped", "twin": "kept"}
    (there, *_) = installed()
    other = replace(there, version="0.0.1")
    monkeypatch.setattr(keys.environments, "installed", lambda *_: [other])
    assert statuses()["good"] == "converted"
    assert (tmp_path / "out/good/triton").is_dir()


def test_a_module_runs_in_sessions(runtime: Runtime) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GELU()).eval()
    x = torch.randn(2, 4)
    lowered = onnx_bridge.lower(module, x, application="onnxruntime", cache=False)
    assert torch.allclose(lowered(x), module(x), atol=1e-5)
    partitions = lowered._programs.bundle.manifest.partitions
    assert all(partition.session is not None and partition.session.nodes for partition in partitions)
    with pytest.raises(InputError):
        onnx_bridge.lower(module, x, application="onnxruntime", in_process=True)


def test_a_decoder_has_sessions_for_prompts_and_for_tokens(
    runtime: Runtime, tmp_path: Path, with_wheel: Callable[[str, Path], CompletedProcess[str]]
) -> None:
    onnx.save(decoder.decoder(), tmp_path / "model.onnx")
    bundle = onnx_bridge.convert(
        tmp_path / "model.onnx", tmp_path / "out", application="onnxruntime", max_length=8, prefill=(4,)
    )
    settings = json.loads((bundle.path / "session.json").read_text())
    widths = {entry["inputs"]["input_ids"][1] for entry in settings["models"]}
    assert widths == {1, 4} and settings["decoder"]["max_length"] == 8
    ran = with_wheel('import runpy; print(len(runpy.run_path("run.py")["sessions"]))', bundle.path)
    assert ran.stdout.split() == ["2"], ran.stderr
    plain = onnx_bridge.convert(tmp_path / "model.onnx", tmp_path / "plain", max_length=8, prefill=(4,))
    tokens = [onnx_bridge.generate(folder.path, [1, 2, 3], 4).tokens for folder in (bundle, plain)]
    assert tokens[0] == tokens[1] and len(tokens[0])
