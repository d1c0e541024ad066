"""Quantized modules through both doors: PT2E, torchao, torch's dynamic quantization, and Quark."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from onnx_bridge.core.errors import InputError
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.torch.export.export import export
from onnx_bridge.torch.lowering.lower import lower

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_
    from torchao.quantization.pt2e import move_exported_model_to_eval
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

SHARE = 0.05
"""Of the largest value: where a tie between two steps of a grid goes the other way."""


class Small(nn.Module):
    """A convolution, perhaps with its normalization, and a linear layer."""

    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3, padding=1), norm or nn.Identity(), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(F.relu(self.norm(self.conv(x))).mean((2, 3))))


@pytest.fixture(scope="module")
def options(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {"target": "ref", "runtime": str(runtime.path), "cache": tmp_path_factory.mktemp("quantized")}


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def images() -> torch.Tensor:
    return torch.randn(2, 3, 8, 8)


def quantizer(*, qat: bool = False, dynamic: bool = False) -> x86.X86InductorQuantizer:
    config = x86.get_default_x86_inductor_quantization_config(is_qat=qat, is_dynamic=dynamic)
    return x86.X86InductorQuantizer().set_global(config)


def calibrated(module: nn.Module, *, dynamic: bool = False) -> nn.Module:
    """By PT2E, after training."""
    prepared = prepare_pt2e(torch.export.export(module.eval(), (images(),)).module(), quantizer(dynamic=dynamic))
    for _ in range(3):
        prepared(images())
    return convert_pt2e(prepared)


def trained(module: nn.Module) -> nn.Module:
    """By PT2E, while training."""
    prepared = prepare_qat_pt2e(torch.export.export(module.train(), (images(),)).module(), quantizer(qat=True))
    optimizer = torch.optim.SGD(prepared.parameters(), 0.01)
    for _ in range(2):
        prepared(images()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return move_exported_model_to_eval(convert_pt2e(prepared))


def agree(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= SHARE * expected.abs().max()
    assert (found - expected).abs().median() <= 1e-5 * expected.abs().max()


def through_both_doors(module: nn.Module, x: torch.Tensor, options: dict[str, Any]) -> dict[str, int]:
    """The number of products by kernel."""
    with torch.no_grad():
        lowered = lower(module, x, **options)
        compiled = torch.compile(module, backend="onnx_bridge", options={**options, "strict": True})
        for given in (x, torch.randn_like(x)):
            expected = module(given)
            agree(lowered(given), expected)
            agree(compiled(given), expected)
    assert not any("training" in note for note in lowered.notes)
    return lowered.forecast().kernels()


def test_static_quantization_by_pt2e(options: dict[str, Any]) -> None:
    assert through_both_doors(calibrated(Small(nn.BatchNorm2d(8))), images(), options) == {"int8": 2}


def test_training_with_quantization_by_pt2e(options: dict[str, Any]) -> None:
    assert through_both_doors(trained(Small()), images(), options) == {"int8": 2}


def test_dynamic_quantization_by_pt2e(options: dict[str, Any]) -> None:
    lowered = lower(module := calibrated(Small(), dynamic=True), x := images(), **options)
    agree(lowered(x), module(x))
    conditions = {each.condition for each in lowered.forecast().products if each.quantized}
    assert conditions == {"parameters-constant"}


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4)).eval()


def test_torchao(options: dict[str, Any]) -> None:
    for config, kernels in (
        (Int8WeightOnlyConfig(version=2), {"float": 2}),
        (Int8DynamicActivationInt8WeightConfig(version=2), {"int8": 2}),
    ):
        quantize_(module := layers(), config)
        assert through_both_doors(module, torch.randn(3, 32), options) == kernels


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
@pytest.mark.parametrize("scheme", ["default_dynamic_qconfig", "per_channel_dynamic_qconfig"])
def test_dynamic_quantization_of_linear_layers(options: dict[str, Any], scheme: str) -> None:
    config = getattr(torch.ao.quantization, scheme)
    module = torch.ao.quantization.quantize_dynamic(layers(), {nn.Linear: config}, dtype=torch.qint8)
    lowered, x = lower(module, x := torch.randn(3, 32), **options), torch.randn(3, 32)
    agree(lowered(x), module(x))
    assert module[0].weight().is_quantized


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
def test_packed_modules_that_cannot_be_exported_suggest_pt2e() -> None:
    module = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.LSTM(8, 8)).eval(), {nn.LSTM})
    with pytest.raises(InputError, match="cannot be exported: .*quantize it with PT2E"):
        export(module, torch.randn(3, 2, 8))


def test_a_quark_graph(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from quark.torch import ModelQuantizer
    from quark.torch.quantization import tensor_quantize
    from quark.torch.quantization.config.config import QConfig, QLayerConfig, QTensorConfig
    from quark.torch.quantization.config.type import Dtype, QSchemeType, QuantizationMode, RoundType, ScaleType
    from quark.torch.quantization.observer.observer import PerTensorMinMaxObserver

    monkeypatch.setattr(tensor_quantize, "QUARK_DISABLE_COMPILE", True)  # it takes a minute, and g++
    whole = QTensorConfig(
        dtype=Dtype.int8,
        qscheme=QSchemeType.per_tensor,
        observer_cls=PerTensorMinMaxObserver,
        symmetric=True,
        scale_type=ScaleType.float,
        round_method=RoundType.half_even,
        is_dynamic=False,
    )
    layer = QLayerConfig(input_tensors=whole, output_tensors=whole, weight=whole)
    graph = torch.export.export(Small().eval(), (images(),)).module()
    quantizer = ModelQuantizer(QConfig(global_quant_config=layer, quant_mode=QuantizationMode.fx_graph_mode))
    module = quantizer.freeze(quantizer.quantize_model(graph, [images()]).eval())
    assert through_both_doors(module, images(), options) == {"int8": 2}
