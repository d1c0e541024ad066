"""A session of ONNX Runtime's provider with a model as it is, before it is cleaned: for the verb ``doctor``."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from onnx_bridge.conversion.serving.trial import Trial
from onnx_bridge.core.errors import BridgeError, InputError
from onnx_bridge.core.schema import JsonRecord
from onnx_bridge.provider.provider import Provider
from onnx_bridge.samples import inputs as samplers
from onnx_bridge.samples.inputs import Sample
from passes.core.text import counted
from passes.probing.partition import is_constant


@dataclass(frozen=True)
class RawSession(JsonRecord):
    """A session with a model as it is.

    Attributes:
        claimed: the number of nodes that the provider claims; 0 without a session.
        problem: why there is no session, or how an output differs from ONNX Runtime's CPU; None if nothing is wrong.
        node: the first node with which it is so.
    """

    claimed: int
    nodes: int
    problem: str | None
    node: str | None
    by: str

    def __str__(self) -> str:
        if self.problem is None:
            nodes = counted(self.nodes, "node")
            return f"as it is, the provider claims {self.claimed} of {nodes}, and is right ({self.by})"
        at = f" by {self.node}" if self.node else ""
        what = "it computes something else" if self.claimed else "no session can be created"
        return f"as it is, {what}{at}: {self.problem} ({self.by})"


def raw_session(model: ir.Model, provider: Provider) -> RawSession:
    """Open a session with a model, run it on a generated sample, and find the node that fails.

    Args:
        model: the model, with named nodes and inferred types; open sizes become those of the sample.
    """
    nodes = [node for node in model.graph if not is_constant(node)]
    samples: list[Sample] = []
    with contextlib.suppress(InputError):  # no sample has its inputs
        samples = samplers.generate(samplers.specs(model))
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as folder:
        trial = Trial.of(model, provider, samples, Path(folder))
        session, problem = trial.open(model)
        node = None
        if problem is not None and nodes:
            with contextlib.suppress(BridgeError):  # a part of the model is no model by itself
                failing = trial.first_failing(model, nodes)
                node = f"{failing.op_type} {failing.name}"
    claimed = 0 if session is None else len(session.on_provider)
    return RawSession(claimed, len(nodes), problem, node, provider.note)
