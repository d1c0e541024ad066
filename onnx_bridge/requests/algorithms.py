"""Algorithms that win back what rounding costs, with their few options, and the quantizers and schemes they are for.

cle,adaround{iterations=200}   →   Chosen("cle"), Chosen("adaround", {"iterations": 200})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onnx_bridge.core.errors import InputError, nearest
from onnx_bridge.requests.schemes import OTHERS, ROUTES, Method, Route

_INTEGERS = ("int8", "int8-pow2", "uint8", "int16")
_FOUR_BITS = ("int4-weights",)


@dataclass(frozen=True)
class Algorithm:
    """An algorithm of a quantizer.

    Attributes:
        schemes: the schemes that it is for, by route.
        options: the defaults of its options, as the quantizer has them.
        measures: whether it runs the model on calibration data.
    """

    schemes: Mapping[Route, tuple[str, ...]]
    options: Mapping[str, float] = field(default_factory=dict)
    measures: bool = True

    def supports(self, route: Route, scheme: str) -> bool:
        """Return whether a route has it for a scheme."""
        return scheme in self.schemes.get(route, ())


# Quark's GPTQ of an ONNX model in int8 takes the quantizers of activations away: nothing would run in int8. A corrected
# bias in powers of two gets a scale of its own, of which Quark stores the numbers and not the scale; in int16 it fails.
ALGORITHMS: Mapping[str, Algorithm] = {
    "cle": Algorithm({"quark": _INTEGERS}, {"steps": 1}),
    "smoothquant": Algorithm({"quark": _INTEGERS, "eager": _INTEGERS}, {"alpha": 0.5}),
    "autosmoothquant": Algorithm({"eager": _INTEGERS}),
    "bias-correction": Algorithm({"quark": ("int8", "uint8")}),
    "adaround": Algorithm({"quark": _INTEGERS}, {"iterations": 1000, "rate": 0.1}),
    "adaquant": Algorithm({"quark": _INTEGERS}, {"iterations": 3000, "rate": 1e-5}),
    "awq": Algorithm({"eager": _FOUR_BITS}),
    "gptq": Algorithm({"eager": _FOUR_BITS, "ort": _FOUR_BITS}),
    "gptaq": Algorithm({"eager": _FOUR_BITS}),
    "qronos": Algorithm({"eager": _FOUR_BITS}),
    "hqq": Algorithm({"ort": _FOUR_BITS}, measures=False),
    "k-quant": Algorithm({"ort": _FOUR_BITS}, measures=False),
}
_ALONE = (("adaround", "adaquant"), ("gptq", "gptaq", "qronos", "hqq", "k-quant"))
"""Algorithms of which only one rounds: a quantizer silently leaves the others out, or they round what is rounded."""
_CORRECTED: tuple[Method, ...] = ("minmax", "percentile")
"""The methods with which Quark corrects biases; with others it silently does not."""


@dataclass(frozen=True)
class Chosen:
    """An algorithm with all of its options."""

    name: str
    options: Mapping[str, float] = field(default_factory=dict)


def parse(text: str) -> tuple[Chosen, ...]:
    """Return the algorithms that a text names; raises InputError for one, or an option, that does not exist."""
    if not text:
        return ()
    from passes.rewriting import spec  # which imports onnx_ir

    chosen = []
    for name, given in spec.parse(text):
        if (algorithm := ALGORITHMS.get(name)) is None:
            hint = nearest(name, ALGORITHMS) or f"there are {', '.join(ALGORITHMS)}"
            raise InputError(f"the algorithm {name!r} does not exist", where="--algorithm", hint=hint)
        values = dict(algorithm.options)
        for option, value in given.items():
            if option not in values:
                known = f"it has {', '.join(values)}" if values else "it has no options"
                raise InputError(f"{name} has no option {option}", where="--algorithm", hint=known)
            values[option] = _positive(name, option, value, type(values[option]))
        chosen.append(Chosen(name, values))
    return tuple(chosen)


def check(chosen: Sequence[Chosen], route: Route, scheme: str, method: Method | None) -> None:
    """Check that a route has algorithms for a scheme, and runs them together; raises InputError otherwise."""
    names = [algorithm.name for algorithm in chosen]
    for name in names:
        if not ALGORITHMS[name].supports(route, scheme):
            known = ALGORITHMS[name].schemes.items()
            hints = [f"{OTHERS[able]} has it for {', '.join(schemes)}" for able, schemes in known]
            what = f"{ROUTES[route]} has no {name} for {scheme}"
            raise InputError(what, where="--algorithm", hint="; ".join(hints))
    together = next((group for group in _ALONE if len([name for name in names if name in group]) > 1), None)
    if together is not None or len(set(names)) < len(names):
        what = f"only one of {' and '.join(together or names)} is run"
        raise InputError(what, where="--algorithm", hint="leave the others out")
    if "bias-correction" in names and method not in _CORRECTED:
        what = f"biases are not corrected after calibration by {method}"
        raise InputError(what, where="--algorithm", hint=f"--calibrate {_CORRECTED[0]}")


def _positive(name: str, option: str, value: object, kind: type[float]) -> float:
    try:
        number = kind(str(value))
    except ValueError:
        number = kind(0)
    if not 0 < number < 1e9:
        raise InputError(f"{option} of {name} cannot be {value}", where="--algorithm", hint="give a positive number")
    return number
