"""The programs of a module are made once, and found again while it computes the same."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.torch.lowering.build_programs import LoweringCall
from onnx_bridge.torch.lowering.lower import lower
from onnx_bridge.torch.lowering.lowered import Lowered
from onnx_bridge.torch.modules.fingerprint import fingerprint
from passes.core.doubts import Doubts

FACTOR = 2.0


def scaled(x: torch.Tensor) -> torch.Tensor:
    """A function elsewhere that ``forward`` calls."""
    return x * FACTOR


class Net(nn.Module):
    def __init__(self, limit: float = 6.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(4, 4)
        self.limit = limit
        self.tags = {"b", "a", "c"}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scaled(self.inner(x)).clamp(max=self.limit)


def x() -> torch.Tensor:
    return torch.linspace(-1, 1, 8).reshape(2, 4)


def entries(cache: Path) -> set[str]:
    return {each.name for each in cache.iterdir() if each.is_dir()}


def _lowered(runtime: Runtime, cache: Path, module: nn.Module | None = None) -> Lowered:
    return lower(module or Net().eval(), x(), target="ref", runtime=str(runtime.path), cache=cache)


def test_cached_programs_are_found(runtime: Runtime, tmp_path: Path) -> None:
    stages: list[str] = []
    module = Net().eval()
    for _ in range(2):
        stages.clear()
        lowered = lower(module, x(), target="ref", runtime=str(runtime.path), cache=tmp_path, progress=stages.append)
    assert stages == ["check", "load"]
    assert_close(lowered(x()), module(x()), check_stride=False)
    assert len(entries(tmp_path)) == 1
    assert not list(tmp_path.glob(".writing-*"))


def test_programs_in_doubt_are_made_again(runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lacked time or memory, also while the module was exported, may be better the next time."""
    builds: list[int] = []
    build = LoweringCall.build

    def unlucky(*args: Any) -> Any:
        builds.append(len(builds))
        if len(builds) == 1:
            Doubts.add()
        return build(*args)

    monkeypatch.setattr(LoweringCall, "build", unlucky)
    for expected in (1, 2, 2):
        _lowered(runtime, tmp_path)
        assert len(builds) == expected


def test_other_weights_attributes_shapes_and_options_are_others(runtime: Runtime, tmp_path: Path) -> None:
    other = Net().eval()
    with torch.no_grad():
        other.inner.weight[0, 0] += 1
    _lowered(runtime, tmp_path)
    for module in (other, Net(limit=100.0).eval()):
        assert_close(_lowered(runtime, tmp_path, module)(x()), module(x()))
    lower(Net().eval(), x()[:1], target="ref", runtime=str(runtime.path), cache=tmp_path)
    lower(Net().eval(), x(), target="ref", runtime=str(runtime.path), cache=tmp_path, exporter="torchscript")
    assert len(entries(tmp_path)) == 5


def test_changes_without_a_fingerprint_are_found_by_running_the_module(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _lowered(runtime, tmp_path)
    monkeypatch.setattr(f"{__name__}.FACTOR", 3.0)
    module = Net().eval()
    assert_close(_lowered(runtime, tmp_path, module)(x()), module(x()))


@pytest.mark.parametrize("harm", ["program", "entry", "samples", "missing"])
def test_a_damaged_entry_is_rebuilt(runtime: Runtime, tmp_path: Path, harm: str) -> None:
    _lowered(runtime, tmp_path)
    (entry,) = entries(tmp_path)
    folder = tmp_path / entry
    program = next(folder.glob("*.mxr"))
    match harm:
        case "program":
            program.write_bytes(program.read_bytes()[:-10])
        case "entry":
            (folder / "manifest.json").write_text("{")
        case "samples":
            (folder / "samples.pt").write_bytes(b"no archive")
        case "missing":
            program.unlink()
    lowered = _lowered(runtime, tmp_path)
    assert_close(lowered(x()), Net().eval()(x()))
    assert entries(tmp_path) == {entry}


def _child(path: str, cache: str, queue: multiprocessing.Queue[tuple[list[str], list[list[float]]]]) -> None:
    stages: list[str] = []
    lowered = lower(Net().eval(), x(), target="ref", runtime=path, cache=cache, progress=stages.append)
    queue.put((stages, lowered(x()).tolist()))


def test_two_processes_build_an_entry_once(runtime: Runtime, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    children = [context.Process(target=_child, args=(str(runtime.path), str(tmp_path), queue)) for _ in range(2)]
    for child in children:
        child.start()
    found = [queue.get(timeout=120) for _ in children]
    for child in children:
        child.join()
    assert sorted(stages == ["check", "load"] for stages, _ in found) == [False, True]
    for _, output in found:
        assert_close(torch.tensor(output), Net().eval()(x()), check_stride=False)
    assert len(entries(tmp_path)) == 1


def test_without_a_cache_nothing_is_written(runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = lower(Net().eval(), x(), target="ref", runtime=str(runtime.path), cache=False)
    folder = lowered.programs.folder.path
    assert folder.is_dir()
    assert_close(lowered(x()), Net().eval()(x()))
    del lowered
    assert not folder.exists()
    (tmp_path / "file").touch()  # where no folder can be made
    assert_close(_lowered(runtime, tmp_path / "file" / "cache")(x()), Net().eval()(x()))


def test_a_bert_is_loaded_from_the_cache(runtime: Runtime, tmp_path: Path) -> None:
    """Nothing is exported or compiled again."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=50)
    bert = BertModel(config).eval()
    sample = {"input_ids": torch.randint(0, 50, (2, 6)), "attention_mask": torch.tensor([[1] * 6, [1] * 4 + [0] * 2])}
    programs = []
    for _ in range(2):
        lowered = lower(bert, sample, target="ref", runtime=str(runtime.path), cache=tmp_path)
        programs.append({path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.mxr")})
    assert programs[0] == programs[1]
    assert len(programs[0]) == 1
    with torch.no_grad():
        found, expected = lowered(**sample), bert(**sample)
    assert type(found) is type(expected)
    assert_close(found.last_hidden_state, expected.last_hidden_state)
    assert_close(found.pooler_output, expected.pooler_output)


def test_a_fingerprint_depends_only_on_the_module() -> None:
    def net(**attributes: object) -> Net:
        made = Net()
        for name, value in attributes.items():
            setattr(made, name, value)
        return made

    assert fingerprint(net()) == fingerprint(net())
    assert fingerprint(net(tags={"c", "a", "b"})) == fingerprint(net())
    others = [
        net(),
        net(tags={"c"}),
        net(limit=5),
        net(limit=5.0),
        net(limit="5"),
        net(act=torch.relu),
        net(act=lambda x: x + 1),
        net(act=lambda x: x + 2),
        net(act=nn.ReLU()),
        net(shape=(1, 2)),
        net(shape=[1, 2]),
        net().half(),
        net().eval(),
    ]
    assert len({fingerprint(each) for each in others}) == len(others)
    ring = net()
    ring.self_reference = [ring]
    assert fingerprint(ring) is not None
    assert fingerprint(net(handle=(each for each in ()))) is None
