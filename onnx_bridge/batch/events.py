"""The messages between the scheduler and the process of a job: the task, and the events of an attempt.

As messages, both are the JSON values of their fields; an event has its kind as ``event`` beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from onnx_bridge.batch.failure import Failure
from onnx_bridge.bundle.manifest.proof import BundleProof
from onnx_bridge.core.progress import Stage


@dataclass(frozen=True)
class Task:
    """The work of one attempt at a job.

    Attributes:
        source: the location of the model.
        bundle: the location of the bundle.
        staging: the folder to write the bundle to, for the scheduler to publish; None writes to `bundle`.
        request: the value of `JobRequest.to_json`.
        check: whether to compare the bundle with the reference.
        reuse: whether to take the cleaned model of an earlier bundle.
        log: the location of the file for standard output and error.
        passes: the files with passes of the user.
    """

    source: str
    bundle: str
    staging: str | None
    request: dict[str, Any]
    convert: bool
    check: bool
    reuse: bool
    log: str
    passes: tuple[str, ...]


class Event(msgspec.Struct, frozen=True, tag_field="event"):
    """Something that happened to a job."""


class StageBegun(Event, frozen=True, tag="stage"):
    """A stage has begun, or a detail of it, which is a text for the user."""

    stage: Stage
    detail: str


class Converted(Event, frozen=True, tag="converted"):
    """The bundle was written; the fields are those of its manifest, and the seconds that it took."""

    seconds: float
    key: str
    notes: tuple[str, ...]
    timings: dict[str, Any]
    proof: BundleProof
    chosen: dict[str, dict[str, int]]


class Checked(Event, frozen=True, tag="checked"):
    """The bundle was compared with the reference; ``in_doubt`` if anything lacked time or memory meanwhile."""

    passed: bool
    summary: str
    in_doubt: bool = False


class Finished(Event, frozen=True, tag="finished"):
    """The last event of an attempt that did all that its task says."""


class Failed(Event, frozen=True, tag="failed"):
    """The last event of an attempt that failed."""

    failure: Failure


class Exited(Failed, frozen=True, tag="exited"):
    """The process has exited, whatever it did; the failure is that of the attempt that it made, if any."""


class Unsuitable(Failed, frozen=True, tag="unsuitable"):
    """The node of a cluster is not the one that the job was planned for."""


LAST = (Finished, Failed)
"""The classes of the last event of an attempt."""

_Message = StageBegun | Converted | Checked | Finished | Failed


def read_event(message: dict[str, Any]) -> Event:
    """Return the event that a process has sent."""
    event: Event = msgspec.convert(message, _Message)
    return event
