"""Requests of a batch: what to do with each model, and with all of them."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.locations import Location
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.parity import CheckRequest
from onnx_bridge.requests.request import Needs, Option, Part, Request

_many = functools.partial(Option, panel="Many models")


@dataclass(frozen=True)
class JobRequest(Request):
    """The request to convert one model of a batch, and perhaps to compare its bundle with the reference.

    Attributes:
        conversion: how to convert the model.
        parity: how to compare; its reference and its conversion are replaced by the job's.

    Raises:
        InputError: the data to compare on, or to calibrate with, are in memory.
    """

    conversion: Annotated[ConvertRequest, Part()] = field(default_factory=ConvertRequest)
    check: Annotated[bool, Option("Compare each bundle with the reference.", panel="Proof")] = False
    parity: Annotated[CheckRequest, Part("rtol", "atol", needs=dict.fromkeys(("rtol", "atol"), Needs("check")))] = (
        field(default_factory=CheckRequest)
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, data in {"inputs": self.parity.inputs, "calibration": self.conversion.calibration}.items():
            if not isinstance(data, (str, os.PathLike, type(None))):
                raise InputError("the data must be in a file", where=name, hint="save them as an .npz")

    @property
    def inputs(self) -> Path | None:
        """The file or folder of the data to compare on."""
        given = self.parity.inputs
        return Path(given) if isinstance(given, (str, os.PathLike)) else None

    def check_request(self, source: Path) -> CheckRequest:
        """Return the request of the comparison of a bundle with its model."""
        given = self.conversion
        limits = ConvertRequest(timeout=given.timeout, memory=given.memory, runtime=given.runtime)
        return replace(self.parity, conversion=limits, reference=source)

    def fitting(self, symbols: Sequence[str], inputs: Sequence[str], own: frozenset[str]) -> JobRequest:
        """Return the request without names unknown to a model, except for ``own``, which must be reported."""
        known = dict.fromkeys(("dims", "buckets", "ties"), symbols) | dict.fromkeys(("shapes", "freeze", "pad"), inputs)
        kept: dict[str, Any] = {
            kind: {name: value for name, value in getattr(self.conversion, kind).items() if name in {*names, *own}}
            for kind, names in known.items()
        }
        kept["pad_before"] = tuple(name for name in self.conversion.pad_before if name in {*symbols, *own})
        return replace(self, conversion=replace(self.conversion, **kept))


@dataclass(frozen=True)
class BatchRequest(Request):
    """The request to convert many models.

    Attributes:
        sources: files, folders, globs, lists, job files (`onnx_bridge.batch.jobs`).
        out: the folder of the bundles.
        job: the request of each job; a job file may override its fields.
    """

    sources: tuple[Location, ...] = ()
    out: Location = Path()
    job: Annotated[JobRequest, Part()] = field(default_factory=JobRequest)
    jobs: Annotated[
        int | None, _many("Run so many jobs at a time; default: by cores and memory.", metavar="N", minimum=1)
    ] = None
    resume: Annotated[
        bool,
        Option("Keep what is up to date of what was done before, or make it again.", "--resume/--fresh"),
    ] = True
    retry: Annotated[bool, _many("Try again what failed before.")] = False
    verify: Annotated[bool, _many("Read kept bundles whole, also if their files seem unchanged.")] = False
    dry_run: Annotated[bool, _many("Say what would be done, write nothing.")] = False
    passes: Annotated[tuple[Path, ...], Option("Files with passes of the user.", cli=False)] = ()
