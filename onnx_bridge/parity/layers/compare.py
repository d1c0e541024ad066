"""Parity layer by layer: every value of the cleaned model, on ONNX Runtime against MIGraphX.

Each value has up to three errors:

- *cleaning*: the cleaned model against the original, both on ONNX Runtime, from the model's inputs. Values are matched
  by name, since passes keep the name of a value if and only if its meaning stays the same; and by the relation that is
  recorded where a pass shifted integers (`passes.graphs.lineage`).
- *accumulated*: MIGraphX from the model's inputs, against ONNX Runtime on the cleaned model.
- *local*: MIGraphX fed with the reference's own values, which separates a node that makes an error from one that
  propagates it.

The model is run in segments (`onnx_bridge.parity.layers.segments`), each of which takes the outputs of those before
it, so that everything is computed once, whatever the memory limit; only the original starts from its inputs each time.
MIGraphX gets a program for a segment in context, and one for its nodes in isolation, or several if these are many.
Where it does not take one of them, halves are tried, down to the node that it does not take; later segments continue
with the reference's values.

Fetching intermediate values changes what MIGraphX fuses: a fault of a fusion can disappear when it is observed. So
if a node's local error does not explain the first difference, it is run together with its predecessors, without
fetching the values in between.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from onnx_bridge.bundle.device import Device
from onnx_bridge.core.countdown import Countdown
from onnx_bridge.core.progress import silent
from onnx_bridge.model import io as models
from onnx_bridge.parity.layers.report import Layer, LayerReport
from onnx_bridge.parity.layers.segments import SegmentedModel
from onnx_bridge.parity.layers.subject import LayerSubject, OriginalModel
from onnx_bridge.parity.layers.walk import Observer, Walk
from onnx_bridge.reference.comparison.tolerances import Tolerances
from passes.graphs.scopes import Scope, name_nodes
from passes.probing.partition import plan

MEMORY = 1 << 30
"""The default of ``memory_limit``: bytes."""


def compare_layers(
    subject: LayerSubject,
    device: Device | None,
    *,
    tolerances: Tolerances | None = None,
    memory_limit: int = MEMORY,
    observer: Observer | None = None,
    progress: Callable[[str], None] | None = None,
) -> LayerReport:
    """Compare every value of a cleaned model.

    Args:
        device: MIGraphX; None if all nodes are on the host.
        tolerances: the tolerances by value, of all floats, and by precision; values behind a quantizer have at least
            those of ``int8`` or ``fp8``, except for the local error.
        memory_limit: bytes of values that this process holds at a time. A single node may take more, which a note says.
        observer: is given each tensor.

    Raises:
        InputError: ONNX Runtime does not take the model or the sample.
        RuntimeFailure: MIGraphX cannot be loaded.
    """
    model = models.load(subject.model) if isinstance(subject.model, Path) else subject.model.clone()
    name_nodes(Scope(model, model.graph))
    nodes = {str(node.name): node for node in model.graph}
    reasons = {nodes[name]: why for name, why in subject.host.items() if name in nodes}
    segmented = SegmentedModel(model, plan(model, reasons))
    walk = Walk(
        segmented, device, tolerances or Tolerances(), dict(subject.sample), OriginalModel.of(subject), observer
    )
    segments = list(segmented.segments(memory_limit))
    last = segmented.last_uses()
    rows: list[Layer] = []
    countdown = Countdown(progress or silent, "layers", len(segments), step_name="segment")
    for segment in segments:
        rows += walk.visit(segment)
        ended = set(segment.nodes)
        walk.drop(name for name, node in last.items() if node in ended)
        walk.drop([name for name in walk.right if name not in last])
        countdown.step()
    notes = list(walk.notes)
    if walk.peak > memory_limit:
        notes.append(f"a node needs {walk.peak >> 20} MiB of values, more than the limit of {memory_limit >> 20} MiB")
    return walk.with_cluster(LayerReport(tuple(rows), len(segments), tuple(notes)))
