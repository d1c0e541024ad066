"""A PyTorch module as an ONNX model: names, open sizes, and the proof."""

from __future__ import annotations

import copy
import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from onnx_bridge.core.errors import InputError
from onnx_bridge.model import io as models
from onnx_bridge.model.provenance import SCOPE
from onnx_bridge.reference.reference import Reference
from onnx_bridge.torch.export.export import export
from onnx_bridge.torch.export.exported import Exported
from onnx_bridge.torch.export.samples import distinct_sizes, other_values
from onnx_bridge.torch.modules.structure import rebuild
from onnx_bridge.torch.modules.tensors import to_tensor

BOTH = pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.scale


@dataclass
class Result:
    total: Tensor
    parts: tuple[Tensor, Tensor]
    count: int = 2
    missing: Tensor | None = None


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(
        self, x: Tensor, others: Mapping[str, Any], factor: float = 1.0, unused: Tensor | None = None
    ) -> Result:
        left, right = others["pair"]
        return Result(self.block(x) * factor, (left + right, left - right))


def shapes(exported: Exported) -> dict[str, list[Any]]:
    values = (*exported.model.graph.inputs, *exported.model.graph.outputs)
    return {str(each.name): [d if isinstance(d, int) else d.value for d in each.shape or ()] for each in values}


def run(exported: Exported, **inputs: Tensor) -> dict[str, Any]:
    return Reference(exported.model).run({name: each.numpy() for name, each in inputs.items()})


@BOTH
def test_names_of_nested_values(exporter: Any) -> None:
    pair = (torch.randn(2, 4), torch.randn(2, 4))
    exported = export(Nested(), torch.randn(2, 4), {"others": {"pair": pair}, "factor": 3.0}, exporter=exporter)
    assert [value.name for value in exported.model.graph.inputs] == ["x", "others.pair.0", "others.pair.1"]
    assert [value.name for value in exported.model.graph.outputs] == ["total", "parts.0", "parts.1"]
    assert {"block.inner.0.bias"} <= set(exported.model.graph.initializers)
    assert "fixed in the graph: factor=3.0" in exported.notes
    assert exported.largest_error < 1e-5
    assert len(exported.comparisons) == 2
    tensors = {name: to_tensor(each) for name, each in exported.expected[1].items()}
    result = rebuild(exported.result, tensors)
    assert isinstance(result, Result)
    assert (result.count, result.missing) == (2, None)
    args, kwargs = exported.call.arguments({name: to_tensor(each) for name, each in exported.samples[1].items()})
    module = Nested()  # other weights, the same call
    module(*args, **kwargs)


@BOTH
def test_every_node_says_which_module_it_is_from(exporter: Any) -> None:
    exported = export(
        Nested(), torch.randn(2, 4), {"others": {"pair": (torch.ones(2, 4), torch.ones(2, 4))}}, exporter=exporter
    )
    nodes = list(exported.model.graph)
    relu = next(node for node in nodes if node.op_type == "Relu")
    assert relu.metadata_props == {SCOPE: "block.inner.1"}
    assert relu.name == "/block/inner/1/Relu"
    Nested().get_submodule(relu.metadata_props[SCOPE])
    assert len({node.name for node in nodes}) == len(nodes)
    assert not any("/" in text and ".py" in text for node in nodes for text in node.metadata_props.values())


class Sequences(nn.Module):
    """Attention of one sequence to another of a different size."""

    def forward(self, query: Tensor, memory: Tensor, mask: Tensor) -> dict[str, Tensor]:
        scores = (query @ memory.transpose(1, 2)).masked_fill(mask[:, None] == 0, -1e9)
        return {"mixed": scores.softmax(-1) @ memory, "pooled": query.mean(1), "both": torch.cat([query, memory], 1)}


@pytest.mark.parametrize(
    ("exporter", "sizes"),
    [("dynamo", (1, 1, 1)), ("torchscript", (1, 1, 1)), ("torchscript", (2, 2, 2)), ("torchscript", (3, 5, 4))],
)
def test_open_sizes_with_any_example(exporter: Any, sizes: tuple[int, int, int]) -> None:
    batch, queries, keys = sizes
    given = {
        "query": torch.randn(batch, queries, 4),
        "memory": torch.randn(batch, keys, 4),
        "mask": torch.ones(batch, keys, dtype=torch.int64),
    }
    dynamic = {
        "query": {0: "batch", 1: "queries"},
        "memory": {0: "batch", -2: "keys"},
        "mask": {0: "batch", 1: "keys"},
    }
    exported = export(Sequences(), (), given, dynamic=dynamic, exporter=exporter)
    found = shapes(exported)
    assert found["query"] == ["batch", "queries", 4]
    assert found["memory"] == ["batch", "keys", 4]
    assert found["mask"] == ["batch", "keys"]
    assert found["mixed"] == ["batch", "queries", 4]
    assert found["pooled"] == ["batch", 4]
    assert exported.samples[0]["query"].shape == (batch, queries, 4)
    assert exported.samples[1]["query"].shape != exported.samples[0]["query"].shape
    other = {"query": torch.randn(3, 7, 4), "memory": torch.randn(3, 2, 4), "mask": torch.ones(3, 2, dtype=torch.int64)}
    outputs, truth = run(exported, **other), Sequences()(**other)
    assert all(np.allclose(outputs[name], each, atol=1e-5) for name, each in truth.items())


def test_example_sizes_are_near_the_given_ones_and_distinct() -> None:
    assert distinct_sizes({"a": 1, "b": 8, "c": 8, "d": 1}) == {"a": 2, "b": 8, "c": 7, "d": 3}
    assert distinct_sizes({"a": 2, "b": 2}, [2, 3]) == {"a": 4, "b": 5}


class Grown(nn.Module):
    def forward(self, past: Tensor, new: Tensor, mask: Tensor) -> Tensor:
        return torch.cat([past, new], 1) * mask


@BOTH
def test_a_size_that_is_the_sum_of_others(exporter: Any) -> None:
    given = (torch.randn(2, 3), torch.randn(2, 2), torch.ones(2, 5))
    dynamic = {"past": {1: "past"}, "new": {1: "new"}, "mask": {1: "past+new"}}
    exported = export(Grown(), given, dynamic=dynamic, exporter=exporter)
    assert shapes(exported)["mask"] == [2, "past+new"]
    assert run(exported, past=torch.ones(2, 6), new=torch.ones(2, 1), mask=torch.ones(2, 7))["output"].shape == (2, 7)


def test_decoder_caches_are_inputs_and_outputs() -> None:
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=16,
        pad_token_id=0,
    )
    cache = transformers.DynamicCache([(torch.randn(2, 1, 5, 8), torch.randn(2, 1, 5, 8))])
    given = {"input_ids": torch.randint(1, 50, (2, 1)), "past_key_values": cache, "use_cache": True}
    past = {0: "batch", 2: "past"}
    dynamic = {"input_ids": {0: "batch"}, "past_key_values.0.key": past, "past_key_values.0.value": past}
    torch.manual_seed(0)
    exported = export(transformers.LlamaForCausalLM(config), (), given, dynamic=dynamic, exporter="torchscript")
    found = shapes(exported)
    assert list(found)[1:] == [
        "past_key_values.0.key",
        "past_key_values.0.value",
        "logits",
        "present.0.key",
        "present.0.value",
    ]
    assert found["past_key_values.0.key"] == ["batch", 1, "past", 8]
    assert exported.expected[0]["present.0.key"].shape == (2, 1, 6, 8)
    assert exported.expected[1]["present.0.key"].shape != (2, 1, 6, 8)
    assert cache.get_seq_length() == 5


@BOTH
def test_queries_that_share_keys_and_values(exporter: Any) -> None:
    class Attention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    attention = functional.scaled_dot_product_attention
    keys = torch.randn(2, 1, 2, 5, 8)
    exported = export(Attention(), (torch.randn(1, 4, 5, 8), *keys), exporter=exporter)
    assert shapes(exported)["q"] == [1, 4, 5, 8]
    assert functional.scaled_dot_product_attention is attention


@BOTH
def test_differences_and_sums_of_truth_values(exporter: Any) -> None:
    """What transformers computes of the positions of several sequences, to find where each of them begins."""

    class Begins(nn.Module):
        def forward(self, positions: Tensor) -> Tensor:
            ends = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1) != 1
            return ends.cumsum(-1) + torch.diff(positions, n=2, append=positions[:, :2]).sum()

    functions = torch.diff, torch.Tensor.cumsum
    positions = torch.tensor([[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 5]])
    exported = export(Begins(), (positions,), exporter=exporter)
    assert shapes(exported)["positions"] == [2, 6]
    assert (torch.diff, torch.Tensor.cumsum) == functions


class Guarded(nn.Module):
    """A branch on data, which dynamo rejects; TorchScript follows the only branch that is ever taken."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.abs().sum() > -1 else x


def test_torchscript_where_dynamo_fails() -> None:
    told: list[str] = []
    exported = export(Guarded(), torch.randn(2, 3), progress=told.append)
    assert exported.exporter == "torchscript"
    (reason,) = exported.refusals.values()
    assert "data-dependent" in reason
    assert "\n" not in reason
    assert len(reason) < 300
    assert told == ["run PyTorch", "export by dynamo", "export by torchscript", "check"]
    assert exported.to_json()["refusals"] == {"dynamo": reason}
    assert "its Python branches on data: the graph always takes the branches of the given arguments" in exported.notes
    json.dumps(exported.to_json(), allow_nan=False)


class Branching(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"same": x + 1, "branch": x * 2 if x[0] > 0 else x * 3}


def test_a_graph_that_computes_something_else_is_an_error_that_names_the_output() -> None:
    x = torch.tensor([10.0, -1, -2, -3, -4, -5])
    with pytest.raises(InputError) as caught:
        export(Branching(), x)
    said = str(caught.value)
    assert "dynamo: " in said
    assert "torchscript: ONNX Runtime differs from PyTorch on other arguments in output 'branch'" in said
    assert "largest difference 10" in said


class Noisy(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


def test_random_numbers_are_named_as_the_cause() -> None:
    with pytest.raises(InputError, match=r"RandomUniformLike\w* draws random numbers"):
        export(Noisy(), torch.randn(2, 3), exporter="torchscript")


def test_the_hint_says_that_a_module_is_not_repeatable() -> None:
    with pytest.raises(InputError, match="called again with the same arguments it returns something else"):
        export(Noisy(), torch.randn(2, 3), exporter="torchscript")


class Keeping(nn.Module):
    """Stores what a trace computes, and writes to its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.drop = nn.Dropout(0.5)
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        self.kept = self.linear(x)
        return self.drop(self.kept)


@BOTH
def test_module_and_arguments_stay_as_they_are(exporter: Any) -> None:
    module, x = Keeping().train(), torch.randn(2, 3)
    before = x.clone()
    exported = export(module, x, exporter=exporter)
    assert module.training
    assert module.drop.training
    assert module.kept is None
    assert torch.equal(x, before)
    assert "the module is in training mode: exported as after eval()" in exported.notes
    assert "the module writes to its input 'x', and the graph does not" in exported.notes
    assert torch.backends.mha.get_fastpath_enabled()


def test_the_mode_of_a_module_that_cannot_be_copied_is_restored() -> None:
    module = nn.utils.weight_norm(nn.Linear(3, 3)).train()  # whose weight is computed, and so cannot be copied
    with pytest.raises(RuntimeError):
        copy.deepcopy(module)
    exported = export(module, torch.randn(2, 3), exporter="torchscript")
    assert module.training
    assert exported.largest_error < 1e-5


def test_weights_share_memory_with_the_module_but_files_do_not(tmp_path: Path) -> None:
    module = nn.Linear(64, 64)
    exported = export(module, torch.randn(2, 64), exporter="dynamo")
    weight = exported.model.graph.initializers["weight"].const_value
    assert weight is not None
    assert np.shares_memory(weight.numpy(), module.weight.detach().numpy())
    written = export(module, torch.randn(2, 64), exporter="torchscript", out=tmp_path / "model.onnx")
    assert written.path == tmp_path / "model.onnx"
    weight = written.model.graph.initializers["weight"].const_value
    assert weight is not None
    assert not np.shares_memory(weight.numpy(), module.weight.detach().numpy())
    onnx.checker.check_model(str(tmp_path / "model.onnx"), full_check=True)


def test_large_models_have_external_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "LIMIT", 1 << 15)
    exported = export(nn.Linear(128, 128), torch.randn(2, 128), exporter="torchscript", out=tmp_path / "model.onnx")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert exported.largest_error < 1e-4


class Fourier(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(x)


def test_complex_outputs_have_two_parts() -> None:
    exported = export(Fourier(), torch.randn(2, 8))
    assert exported.exporter == "dynamo"
    assert shapes(exported)["output"] == [2, 5, 2]


def test_nothing_is_printed_and_nothing_is_left(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    out.mkdir()
    monkeypatch.chdir(home)
    with pytest.raises(InputError, match="fft_rfft"):
        export(Fourier(), torch.randn(2, 8), exporter="torchscript", out=out / "model.onnx")
    export(Fourier(), torch.randn(2, 8), exporter="dynamo")
    with pytest.raises(InputError, match="data-dependent"):
        export(Branching(), torch.randn(6), exporter="dynamo")
    assert not list(home.iterdir())
    assert not list(out.iterdir())
    assert capfd.readouterr() == ("", "")
    assert logging.root.manager.disable == logging.NOTSET


class Alike(nn.Module):
    def forward(self, x: Tensor, unused: Tensor) -> dict[str, Tensor]:
        y = x * 2
        return {"x": x, "y": y, "again": y, "constant": torch.ones(2)}


@BOTH
def test_outputs_that_are_inputs_or_each_other(exporter: Any) -> None:
    exported = export(Alike(), (torch.randn(2, 3), torch.randn(4)), exporter=exporter, dynamic={"x": {0: "batch"}})
    assert list(shapes(exported)) == ["x", "unused", "output.x", "y", "again", "constant"]
    onnx.checker.check_model(models.session_source(exported.model).model)


class Constant(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        return x + 1, 7


def test_returned_values_that_are_not_tensors_are_noted() -> None:
    exported = export(Constant(), torch.randn(2), exporter="torchscript")
    assert [value.name for value in exported.model.graph.outputs] == ["output.0"]
    assert any("are not tensors" in note for note in exported.notes)
    assert not exported.changing
    assert rebuild(exported.result, {"output.0": torch.ones(2)})[1] == 7


class Cut(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[: int(x.abs().sum()) % 2 + 1] * 3


def test_sizes_that_onnx_cannot_express_are_unknown() -> None:
    assert shapes(export(Cut(), torch.rand(2, 4)))["output"] == [None, 4]


class Several(nn.Module):
    def forward(self, *inputs: Tensor) -> Tensor:
        return inputs[0] - inputs[1]


def test_a_forward_without_parameter_names_uses_keyword_names() -> None:
    given = {"left": torch.randn(2), "right": torch.randn(2)}
    exported = export(Several(), kwargs=given, exporter="torchscript")
    assert [value.name for value in exported.model.graph.inputs] == ["left", "right"]
    exported = export(Several(), tuple(given.values()), exporter="torchscript")
    assert [value.name for value in exported.model.graph.inputs] == ["inputs.0", "inputs.1"]


class Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        assert lengths.max() == 3, "the lengths must be right"
        return self.table(ids)


def test_samples_that_the_module_rejects_are_replaced_or_noted() -> None:
    ids, lengths = torch.tensor([[1, 4, 2]]), torch.tensor([3])
    exported = export(Looked(), (ids, lengths), exporter="torchscript")
    assert exported.samples[1]["ids"].max() < 5
    assert len(exported.comparisons) == 2


@pytest.mark.parametrize("size", range(2, 7))
def test_the_second_sample_is_another_one_however_small(size: int) -> None:
    given = {"x": torch.arange(float(size)), "n": torch.arange(size)}
    model = ir.Model(ir.Graph([], [], nodes=[]), ir_version=10)
    found = other_values(model, given, "shuffled")
    assert all(not torch.equal(found[name], given[name]) for name in given)
    assert all(torch.equal(found[name].sort().values, given[name]) for name in given)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"args": ()},
            r"Block.forward: the arguments do not fit: missing a .* argument: 'x' \(the module takes \(x\)\)",
        ),
        ({"args": torch.ones(2, 4), "kwargs": {"y": 1}}, "unexpected keyword argument 'y'"),
        ({"args": torch.ones(2, 5)}, "PyTorch cannot run it with these arguments: RuntimeError: mat1 and mat2"),
        ({"args": torch.ones(2, 4, device="meta")}, "input 'x': is on meta"),
        ({"args": 3}, "without any tensor"),
        ({"args": torch.ones(2, 4), "exporter": "other"}, "cannot be 'other'"),
        ({"args": torch.ones(2, 4), "dynamic": {"z": {0: "n"}}}, "dynamic input 'z': .* with a tensor of this name"),
        ({"args": torch.ones(2, 4), "dynamic": {"x": {2: "n"}}}, "has 2 dimensions, so no axis 2"),
        ({"args": torch.ones(2, 4), "dynamic": {"x": {"n": 0}}}, "has 2 dimensions, so no axis 'n'"),
        ({"args": torch.ones(2, 4), "dynamic": {"x": ["n"]}}, r"the dimensions are \['n'\] \(name them by axis"),
        ({"args": torch.ones(2, 4), "dynamic": {"x": {0: 2}}}, "2 is not a name of a dimension"),
        ({"args": torch.ones(2, 4), "dynamic": ["x"]}, r"dynamic: the open dimensions are \['x'\]"),
        ({"args": torch.ones(2, 4), "dynamic": {"x": {0: "n m"}}}, "'n m' is not a name"),
        ({"args": torch.ones(2, 4), "dynamic": {"x": {0: "2*n"}}}, "no dimension is 'n' alone"),
        ({"args": torch.ones(2, 4), "dynamic": {"x": {0: "n", 1: "n"}}}, "the size is 4, but n is 2"),
        ({"args": torch.ones(2, 4), "opset": 99}, "dynamo: the exporter gives opset 18 instead of 99"),
        ({"args": torch.ones(2, 4), "out": "/nowhere/model.onnx"}, "its folder does not exist"),
    ],
)
def test_errors_say_what_is_wrong(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        export(Block(), **arguments)


def test_objects_that_are_not_modules() -> None:
    with pytest.raises(InputError, match="the module is a function, not a torch.nn.Module"):
        export(lambda x: x, torch.ones(2))  # type: ignore[arg-type]


def test_parameters_on_other_devices() -> None:
    with pytest.raises(InputError, match="parameter 'inner.0.weight': is on meta.*load its weights first"):
        export(Block().to("meta"), torch.ones(2, 4))


def test_a_fixed_size_that_should_be_open_is_refused() -> None:
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(3, 4) * 2

    with pytest.raises(InputError, match="Fixed: the module cannot be exported: dynamo: .* a static shape of 3 for"):
        export(Fixed(), torch.randn(3, 4), dynamic={"x": {0: "n"}}, exporter="dynamo")


def test_importing_and_listing_do_not_import_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    code = (
        "import sys, onnx_bridge; dir(onnx_bridge); from onnx_bridge.torch.export.export import export\n"
        "assert 'torch' not in sys.modules\n"
        "try: export(None, ())\n"
        "except onnx_bridge.core.errors.InputError as error: print(error)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[3]}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "PyTorch is not installed (pip install 'onnx-bridge[torch]')"
