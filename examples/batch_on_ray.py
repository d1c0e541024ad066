"""Many models on a Ray cluster, here one of this machine; the second run finds all done."""

import torch

import onnx_bridge
from onnx_bridge.batch.engines.ray import Ray

torch.manual_seed(0)
for width in (8, 16):
    net = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.GELU(), torch.nn.Linear(width, 2)).eval()
    onnx_bridge.export(net, (torch.randn(1, 4),), out=f"mlp-{width}.onnx")

for _ in range(2):
    outcome = onnx_bridge.convert_all(["mlp-*.onnx"], "many", engine=Ray("local", 2))
    for result in outcome.jobs:
        print(result.name, result.status)
    assert outcome.passed
