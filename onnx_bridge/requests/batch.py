"""Requests of a batch: what to do with each model, and with all of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.locations import Location
from onnx_bridge.requests.conversion import ConvertRequest
from onnx_bridge.requests.parity import CheckRequest
from onnx_bridge.requests.request import Request


@dataclass(frozen=True)
class JobRequest(Request):
    """How to convert one model of a batch, and whether to compare its bundle with the reference.

    Attributes:
        conversion: of the model.
        check: whether to compare the bundle afterwards.
        parity: how to compare; its reference and conversion are those of the job.

    Raises:
        InputError: the data to compare on are in memory.
    """

    conversion: ConvertRequest = field(default_factory=ConvertRequest)
    check: bool = False
    parity: CheckRequest = field(default_factory=CheckRequest)

    def __post_init__(self) -> None:
        if not isinstance(self.parity.inputs, (str, os.PathLike, type(None))):
            raise InputError("the data must be in a file", where="inputs", hint="save them as an .npz")

    @property
    def inputs(self) -> Path | None:
        """The file or folder of the data to compare on."""
        given = self.parity.inputs
        return Path(given) if isinstance(given, (str, os.PathLike)) else None

    def check_request(self, source: Path) -> CheckRequest:
        """The request of the comparison with a model."""
        return replace(self.parity, conversion=self.conversion, reference=source)

    def fitting(self, symbols: Sequence[str], inputs: Sequence[str], own: frozenset[str]) -> JobRequest:
        """Without the values by name that do not apply to a model.

        Args:
            symbols: the symbolic dimensions of the model.
            inputs: its inputs.
            own: names that the user gave for this very model; these stay, so that the conversion reports wrong ones.
        """
        known = dict.fromkeys(("dims", "buckets", "ties"), symbols) | dict.fromkeys(("shapes", "freeze", "pad"), inputs)
        kept: dict[str, Any] = {
            kind: {name: value for name, value in getattr(self.conversion, kind).items() if name in {*names, *own}}
            for kind, names in known.items()
        }
        kept["pad_before"] = tuple(name for name in self.conversion.pad_before if name in {*symbols, *own})
        return replace(self, conversion=replace(self.conversion, **kept))


@dataclass(frozen=True)
class BatchRequest:
    """How to convert many models.

    Attributes:
        sources: files, folders, globs, lists, job files (`onnx_bridge.batch.jobs`).
        out: the folder of the bundles.
        job: the request of each job; a job file may override its fields.
        jobs: how many jobs run at a time on this machine; None: by cores and predicted memory.
        resume: whether to keep the results of earlier runs.
        retry: whether to repeat jobs that failed in an earlier run.
        verify: whether to read kept bundles whole, also files that have not changed since they were last read.
        dry_run: only plan; write nothing.
        passes: files with passes of the user.
    """

    sources: tuple[Location, ...]
    out: Location
    job: JobRequest = field(default_factory=JobRequest)
    jobs: int | None = None
    resume: bool = True
    retry: bool = False
    verify: bool = False
    dry_run: bool = False
    passes: tuple[Path, ...] = ()
