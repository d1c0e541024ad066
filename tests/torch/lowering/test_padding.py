"""Padding tensors up to the sizes of a bucket, at both ends where dimensions are sums."""

from __future__ import annotations

import pytest
import torch

from onnx_bridge.torch.lowering import padding

SMALL, LARGE = {"past": 2, "new": 1}, {"past": 4, "new": 2}
pytestmark = pytest.mark.torch


def test_a_sum_grows_at_both_ends() -> None:
    dims = ("past + new", 3, None)
    tensor = torch.arange(9.0).reshape(3, 3, 1)
    wide = padding.padded(tensor, dims, SMALL, LARGE, ["past"])
    assert wide[:, 0, 0].tolist() == [0, 0, 0, 3, 6, 0]
    assert wide.shape == (6, 3, 1)
    assert padding.cut(wide, dims, SMALL, LARGE, ["past"]).equal(tensor)


def test_a_cache_and_new_tokens_that_are_both_padded() -> None:
    """New tokens directly follow the old ones only if what they are appended to is padded at its start."""

    def run(tensors: padding.Tensors, _sizes: padding.Sizes) -> dict[str, torch.Tensor]:
        keys = torch.cat([tensors["past"], tensors["new"]])
        return {"y": tensors["new"] * (keys * tensors["mask"]).sum(), "present": keys}

    inputs: dict[str, padding.Dims] = {"past": ("past",), "new": ("new",), "mask": ("past + new",)}
    outputs: dict[str, padding.Dims] = {"y": ("new",), "present": ("past + new",)}
    dims = {**inputs, **outputs}
    tensors = {"past": torch.tensor([1.0, 2.0]), "new": torch.tensor([3.0]), "mask": torch.ones(3)}
    assert padding.changed_output(run, tensors, dims, SMALL, LARGE, ["past"]) is None
    at_the_end = padding.changed_output(run, tensors, dims, SMALL, LARGE)
    assert at_the_end is not None
    assert "present" in at_the_end or "y" in at_the_end
