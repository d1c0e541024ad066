"""What `check` reports where MIGraphX fails: what there is all the same, and what it is that MIGraphX fails on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import metadata

from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.core.errors import RuntimeFailure, RuntimeNotFound
from onnx_bridge.core.values import Value, flat
from onnx_bridge.migraphx import worker as workers
from onnx_bridge.parity.bisect.bisect import bisect
from onnx_bridge.parity.bisect.bisection import Bisection
from onnx_bridge.parity.bisect.search import Search
from onnx_bridge.parity.error_histogram import Sketch, keeping
from onnx_bridge.parity.evidence import Evidence, Network
from onnx_bridge.parity.failure import Failure
from onnx_bridge.parity.layers import MEMORY, compare_layers
from onnx_bridge.parity.report import REFERENCE, Leg, Report
from onnx_bridge.parity.trial import Kind
from onnx_bridge.reference.compare import compare_all
from onnx_bridge.reference.reference import Reference
from onnx_bridge.reference.tolerances import Tolerances
from onnx_bridge.samples import inputs as samplers


def run_until_failure(
    bundle: Bundle, samples: Sequence[samplers.Sample]
) -> tuple[list[dict[str, Value]], Failure | None]:
    """What a bundle gives for each sample, until MIGraphX fails.

    Raises:
        RuntimeNotFound: no MIGraphX here runs it.
    """
    found: list[dict[str, Value]] = []
    step = "load"
    try:
        if bundle.worker is None:
            bundle.open()
        step = "run"
        for sample in samples:
            found.append(bundle(sample))
    except RuntimeNotFound:
        raise
    except RuntimeFailure as error:
        return found, Failure(step, error, len(found) if step == "run" else None)
    return found, None


def telling(legs: Sequence[Leg]) -> int:
    """The number of the sample to look at: the first that differs, or that MIGraphX fails on; else the first."""
    differing = [i for leg in legs for i, each in enumerate(leg.comparisons) if not each.passed]
    failing = [leg.failure.sample or 0 for leg in legs if leg.failure is not None]
    return next(iter((*differing, *failing)), 0)


def blamed_for(bundle: Bundle, failure: Failure, sample: samplers.Sample) -> Bisection | None:
    """What it is that MIGraphX fails on; None where each attempt would run into a limit."""
    if bundle.model_path is None or failure.kind in (Kind.HANGS, Kind.MEMORY):
        return None
    limits = bundle.limits
    return bisect(
        bundle.model_path,
        inputs=[sample],
        pipeline="none",
        target=bundle.manifest.target,
        timeout=limits.timeout,
        memory=None if limits.memory is None else limits.memory / 2**30,
    )


def advice(failure: Failure | None, blamed: Bisection | None) -> list[str]:
    """A note where MIGraphX fails and it is not known on what."""
    if failure is None or (blamed is not None and blamed.finding is not None):
        return []
    return ["`onnx-bridge bisect` finds the nodes that it fails on; each of its attempts may take as long as this one"]


def unconverted(
    search: Search,
    failure: Failure,
    tolerances: Tolerances,
    same: Tolerances,
    host: bool,
    layers: bool,
    layers_memory: float | None,
    evidence: bool,
    seed: int | None,
) -> Report:
    """The report of a model that MIGraphX does not take: of the cleaned one, and what it is that MIGraphX fails on.

    Args:
        search: the model, cleaned, with its samples and what is right.
        failure: why it does not.
        tolerances: of what MIGraphX computes.
        same: of what passes make.
        host: whether ONNX Runtime may run nodes.
        layers: whether to compare every value within.
        layers_memory: most GiB of them at a time.
        evidence: whether to keep what it saw.
        seed: of generated samples.
    """
    cleaned = Reference(search.cleaned)
    given = [{name: sample[name] for name in cleaned.input_names} for sample in search.samples]
    found = [cleaned.run(sample) for sample in given]
    legs = (
        Leg("cleaned on ONNX Runtime", compare_all(found, search.truth, same, layers)),
        Leg(f"MIGraphX {search.target}", failure=failure),
    )
    blamed = None
    if failure.kind not in (Kind.HANGS, Kind.MEMORY):
        finding = search.migraphx(host=host)
        blamed = Bisection(search.name, finding, search.runs, len(given), seed, notes=tuple(search.notes))
    sketches: dict[str, Sketch] = {}
    looked = None
    if layers:
        number = telling(legs)
        looked = compare_layers(
            search.cleaned,
            given[number],
            workers.shared(search.runtime),
            limits=search.limits,
            target=search.target,
            original=search.model,
            original_sample=search.samples[number],
            memory_limit=MEMORY if layers_memory is None else int(layers_memory * 2**30),
            tolerances=tolerances,
            watch=keeping(sketches) if evidence else None,
            progress=search.tell,
        )
        looked = replace(looked, sample=number)
        tolerances.check([*flat(search.truth[number]), *(row.tensor for row in looked.rows)])
    seen = None
    if evidence:
        steps = search.applications.cleaned.to_json()["passes"]
        results = {REFERENCE: search.truth, legs[0].name: found}
        seen = Evidence(results, Network.of(search.model), Network.of(search.cleaned), steps, sketches)
    return Report(
        model=search.name,
        legs=legs,
        samples=tuple(given),
        seed=seed,
        versions={"ONNX Runtime": metadata.version("onnxruntime"), "MIGraphX": search.runtime.version},
        notes=(*search.applications.cleaned.notes, *search.notes, *advice(failure, blamed)),
        layers=looked,
        bisection=blamed,
        evidence=seen,
    )
