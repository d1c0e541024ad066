"""ONNX Runtime's exceptions as errors with a reason and fields. Its messages are read here, and nowhere else."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from onnx_bridge.core.errors import InputError
from passes.isolation.failure import NO_MEMORY


class Reason(enum.Enum):
    """The reasons for which ONNX Runtime does not run a model or a sample."""

    UNKNOWN_OPERATOR = enum.auto()
    NO_KERNEL = enum.auto()
    """Its CPU provider has no kernel for an operator with these dtypes."""
    NEWER_IR_VERSION = enum.auto()
    NOT_A_MODEL = enum.auto()
    EXTERNAL_DATA = enum.auto()
    NEWER_OPSET = enum.auto()
    WRONG_INPUTS = enum.auto()
    DECLARED_SHAPE = enum.auto()
    """An intermediate value has another shape than the model declares for it."""
    RUN_FAILED = enum.auto()
    OTHER = enum.auto()


@dataclass(frozen=True)
class UnknownOperator:
    """A node for which ONNX Runtime has no operator.

    Attributes:
        node: its name, or the name of its first output.
        operator: its operator.
        domain: the operator's domain; ONNX's is ``ai.onnx``.
        opset: the version of the domain that the model imports.
        newest: the newest version of the domain that ONNX Runtime knows; None if it does not know the domain.
        since: the version of the domain that introduces the operator; None if there is none.
        meant: the question whether another operator is meant; None if none resembles it.
    """

    node: str
    operator: str
    domain: str
    opset: int
    newest: int | None
    since: int | None
    meant: str | None

    @property
    def what(self) -> str:
        """The fault, as one sentence."""
        if self.newest is None:
            return f"node {self.node}: ONNX Runtime has no operator {self.domain}::{self.operator}"
        if self.opset > self.newest:
            known = f"ONNX Runtime knows those up to {self.newest}"
            return f"the model imports the opset {self.opset} of {self.domain}, and {known}"
        return f"node {self.node}: there is no operator {self.operator} in {self.domain} {self.opset}"

    @property
    def hint(self) -> str | None:
        """The next thing to do."""
        if self.newest is None:
            return "give its library with `ops_library`, or replace it by operators of ONNX, for example with a pass"
        if self.opset > self.newest:
            return "export it with an older opset, or update onnxruntime"
        return self.meant if self.since is None else f"the operator exists since opset {self.since}"


class OnnxRuntimeError(InputError):
    """ONNX Runtime does not run a model or a sample.

    Attributes:
        message: ONNX Runtime's message, unchanged.
        reason: the reason.
        operator: the operator of the node that the message names; otherwise None.
        domain: the domain of that operator; None if it is unknown.
        node: the name of that node; None is unknown.
        inner_node: the name of the node in its subgraphs that the message names last; None if it is unknown.
        newest_ir_version: the newest IR version that it takes, if the model's is newer.
        unknown: the operator that it does not have, if that is the reason; None if it was not looked for.
    """

    def __init__(self, message: str, *, where: str | None, unknown: UnknownOperator | None = None) -> None:
        """Read a message of ONNX Runtime.

        Args:
            message: the message; its error codes and source locations are left out.
            where: the model or library.
            unknown: the node without an operator, which is told instead of the message.

        Raises:
            MemoryError: the message says that there was no memory, which is no refusal.
        """
        if re.search(NO_MEMORY, message):
            raise MemoryError(message)
        self.message = message
        text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", message)
        text = re.sub(r"^Load model from .*? failed: ?", "", text, flags=re.DOTALL)
        text = _RUNNING.sub(r"\1 node '\2': ", text)
        text = " ".join(_SOURCE.sub("", text).split())
        patterns = ((reason, hint) for reason, (pattern, hint) in _REASONS.items() if re.search(pattern, message))
        self.reason, hint = next(patterns, (Reason.OTHER, None))
        self.unknown = unknown
        if unknown is None:
            super().__init__(f"ONNX Runtime: {text}", where=where, hint=hint)
        else:
            super().__init__(unknown.what, where=where, hint=unknown.hint)
        named = next(filter(None, (pattern.search(message) for pattern in _NAMED)), None)
        fields = named.groupdict() if named else {}
        if unknown is not None:
            fields |= {"operator": unknown.operator, "domain": unknown.domain, "node": unknown.node}
        self.operator: str | None = fields.get("operator")
        self.domain: str | None = fields.get("domain")
        self.node: str | None = fields.get("node")
        matches = [match for pattern in _NAMED for match in pattern.finditer(message)]
        last = max(matches, key=lambda match: match.start(), default=None)
        self.inner_node: str | None = None if last is None else last.groupdict().get("node")
        newest = re.search(r"max supported IR version: (\d+)", message)
        self.newest_ir_version = int(newest[1]) if newest else None

    def names(self, operator: str, node: str | None) -> bool:
        """Return whether the message names a node, or at least its operator."""
        if self.operator is None:
            return self.node is not None and self.node == node
        return self.operator == operator and self.node in (None, "", node)


_SOURCE = re.compile(
    r"/\S+\.(?:cc|h|cpp):\d+ [^()]*(?:\((?:[^()]|\([^()]*\))*\))+"
    r"(?:::<lambda\([^()]*\)>)?(?: const)?(?: \[with [^\]]*\])? "
    r"|\b\w+\.(?:cc|h|cpp):\d+ \w+ "
)
"""A location in ONNX Runtime's source: a file and a line, then a function with or without its signature."""
_RUNNING = re.compile(r"Non-zero status code returned while running (\S+) node\. Name:'(.*?)' Status Message: ")
_NAMED = (
    re.compile(r"Could not find an implementation for (?P<operator>\w+)\(-?\d+\) node with name '(?P<node>.*?)'"),
    re.compile(r"while running (?P<operator>\w+) node\. Name:'(?P<node>.*?)'"),
    re.compile(r"(?P<domain>[\w.]+):(?P<operator>\w+)\(-?\d+\) is not a registered function/op"),
    re.compile(r"No Op registered for (?P<operator>\w+)"),
    re.compile(r"Node \((?P<node>.*?)\) Op \((?P<operator>\w+)\)"),
    re.compile(r"in node \((?P<node>.*?)\)"),
)
_REASONS = {
    Reason.UNKNOWN_OPERATOR: ("No Op registered|is not a registered function/op", None),
    Reason.NO_KERNEL: (
        "NOT_IMPLEMENTED|Failed to find kernel|Could not find an implementation",
        "ONNX Runtime's CPU provider cannot run this operator here, so there is no reference for it",
    ),
    Reason.NOT_A_MODEL: ("INVALID_PROTOBUF|No graph was found", "is it an ONNX file, and whole?"),
    Reason.EXTERNAL_DATA: ("External data path", "external data must lie beside the model"),
    Reason.NEWER_IR_VERSION: (
        "Unsupported model IR version",
        "convert it to an older version, or update onnxruntime",
    ),
    Reason.NEWER_OPSET: ("released onnx opset", "convert it to an older version, or update onnxruntime"),
    Reason.WRONG_INPUTS: (
        "invalid dimensions for input|Invalid rank|input data type|Required inputs|Invalid input name",
        "see its inputs",
    ),
    Reason.DECLARED_SHAPE: (
        "attempting to re-use buffer|OrtValue provided for output",
        "a declared shape of an intermediate value is wrong",
    ),
    Reason.RUN_FAILED: ("while running", "the samples may not suit the model: give representative ones"),
}
"""By reason, the pattern of its messages and a hint; the first that matches holds."""
