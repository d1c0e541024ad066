"""What ONNX Runtime's MIGraphX provider makes of probes that MIGraphX itself computes right.

The provider claims a node or not, hands those that it claims to MIGraphX in a form of its own, and shapes the results
itself. So a probe is right only if a session takes it whole and computes it right as well.
"""

from __future__ import annotations

from dataclasses import replace

from onnx_bridge.core.values import as_array
from onnx_bridge.migraphx.program import Tensor
from onnx_bridge.provider.provider import CPU, Provider, ProviderError
from onnx_bridge.verdicts.answers import Answer, compare_outputs
from onnx_bridge.verdicts.probe_request import ProbeRequest, widened
from passes.isolation.failure import NativeFailure
from passes.isolation.process import Reason
from passes.rewriting.base import Status, Verdict

_JUDGE = "ONNX Runtime's provider"
_STATUS = {Reason.DIED: Status.CRASHES, Reason.TIMEOUT: Status.HANGS}


def provider_answer(request: ProbeRequest, before: Answer, provider: Provider, stands_in: bool) -> Answer:
    """Return the answer to a request that MIGraphX has answered with ``before``, which is right."""
    try:
        session = provider.session(request.model)
        left = [node for node in session.nodes if node.provider == CPU]
        if left:
            message = f"it leaves {left[0].op_type} to the CPU"
            return Answer(Verdict(Status.REJECTED, message, by=_JUDGE), before.transient)
        outputs = {
            f"{number}:{index}": Tensor.of(widened(array))
            for number, sample in enumerate(request.samples)
            for index, array in enumerate(map(as_array, session.run(sample).values()))
        }
    except ProviderError as error:
        return Answer(Verdict(Status.REJECTED, f"it claims the node, and fails: {error.what}", by=_JUDGE))
    except NativeFailure as failure:
        status = _STATUS.get(failure.reason, Status.REJECTED)
        return Answer(Verdict(status, failure.what, by=_JUDGE), transient=status is not Status.CRASHES)
    if not request.samples:
        return before
    verdict = compare_outputs(request, outputs, stands_in)
    return before if verdict.status is Status.OK else Answer(replace(verdict, by=_JUDGE), request.in_doubt)
