"""ONNX's RotaryEmbedding; com.microsoft's is tested with the other operators of attention."""

import numpy as np
import pytest

from passes.legalize.nn.rotary import decompose_standard_rotary_embedding
from tests.passes.device import Device
from tests.passes.legalize.one_node import case, legalized, normal

B, S, N, H = 2, 3, 2, 8


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("positions", [True, False])
@pytest.mark.parametrize("rotated", [0, 4])
@pytest.mark.parametrize("shape", [(B, S, N * H), (B, N, S, H)], ids=["flat", "heads"])
def test_rotates(shape: tuple[int, ...], rotated: int, positions: bool, interleaved: int, device: Device) -> None:
    rows, half = [10] if positions else [B, S], (rotated or H) // 2
    places = [np.array([[0, 1, 2], [4, 9, 6]])] if positions else []
    inputs = [normal(*shape), normal(*rows, half, seed=1), normal(*rows, half, seed=2), *places]
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": rotated}
    attributes |= {"num_heads": N} if rotated or len(shape) == 3 else {}
    source = case("RotaryEmbedding", inputs, attributes, opset=23)
    legalized(decompose_standard_rotary_embedding, source, device=device)
