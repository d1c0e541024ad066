"""Networks of real size with seeded weights, exported once into a folder for the benchmarks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from fixtures.models.networks import Exporter, Outputs, quiet


def _resnet50() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))
    return Outputs(model, "logits"), {"pixel_values": torch.randn(1, 3, 224, 224)}


def _bert_base() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    model = transformers.BertModel(transformers.BertConfig(attn_implementation="eager"))
    ids = torch.randint(0, 30000, (1, 128))
    return Outputs(model, "last_hidden_state"), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _vit_base() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.ViTConfig(num_labels=1000, attn_implementation="eager")
    return Outputs(transformers.ViTForImageClassification(config), "logits"), {
        "pixel_values": torch.randn(1, 3, 224, 224)
    }


def _swin_tiny() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    model = transformers.SwinForImageClassification(transformers.SwinConfig(num_labels=1000))
    return Outputs(model, "logits"), {"pixel_values": torch.randn(1, 3, 224, 224)}


def _swin_of(blocks: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A narrow Swin of many nodes: about 300 for each block."""
    config = transformers.SwinConfig(embed_dim=24, depths=[2, 2, blocks - 6, 2], num_heads=[1, 2, 4, 8], num_labels=10)
    model = transformers.SwinForImageClassification(config)
    return Outputs(model, "logits"), {"pixel_values": torch.randn(1, 3, 224, 224)}


def _llama_3gb() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    config = transformers.LlamaConfig(
        hidden_size=2048,
        intermediate_size=5504,
        num_hidden_layers=13,
        num_attention_heads=16,
        vocab_size=32000,
        use_cache=False,
        attn_implementation="eager",
    )
    ids = torch.randint(0, 32000, (1, 16))
    return Outputs(transformers.LlamaForCausalLM(config), "logits"), {"input_ids": ids}


_ARCHITECTURES: dict[str, Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]] = {
    "resnet50": _resnet50,
    "bert-base": _bert_base,
    "swin-tiny": _swin_tiny,
    "vit-base": _vit_base,
    "llama-3gb": _llama_3gb,
    "swin-deep": lambda: _swin_of(27),
    "swin-deeper": lambda: _swin_of(66),
}

MODELS: dict[str, tuple[str, Exporter]] = {
    **{
        f"{name}-{exporter}": (name, exporter)
        for name in ("resnet50", "bert-base", "swin-tiny", "vit-base")
        for exporter in ("torchscript", "dynamo")
    },
    "swin-deep-torchscript": ("swin-deep", "torchscript"),
    "swin-deeper-torchscript": ("swin-deeper", "torchscript"),
    "llama-3gb-dynamo": ("llama-3gb", "dynamo"),
}
"""What to export: architecture and exporter by name. TorchScript writes single files, dynamo external data."""


def make(name: str, folder: Path) -> Path:
    """The ONNX file of one of `MODELS` in ``folder``; exported unless it is there already."""
    path = folder / name / f"{name}.onnx"
    if path.exists():
        return path
    architecture, exporter = MODELS[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model, inputs = _ARCHITECTURES[architecture]()
    options: dict[str, Any] = {"input_names": list(inputs), "output_names": ["output"]}
    if exporter == "torchscript":
        options |= {"dynamo": False, "opset_version": 17}
    else:
        options |= {"dynamo": True, "external_data": True}
    with quiet():  # Swin keeps values of a trace on itself: a copy for each export
        torch.onnx.export(copy.deepcopy(model).eval(), tuple(inputs.values()), str(path), **options)
    return path
