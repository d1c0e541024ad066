"""AMD GPUs by architecture, as the HIP runtime describes one of each."""

from __future__ import annotations

from dataclasses import dataclass

from onnx_bridge.core.errors import InputError, nearest


@dataclass(frozen=True)
class Architecture:
    """A GPU that programs are compiled for.

    Attributes:
        name: LLVM's name of the processor ("gfx942").
        features: the features with which a driver reports it by default (":sramecc+:xnack-").
        mach: ``EF_AMDGPU_MACH`` in the headers of its code objects.
        version: the major and minor version of the instruction set.
        units: the compute units of the largest card; on RDNA pairs of them, as HIP counts.
        memory: its memory, in GiB.
        lds: the bytes of local memory that a workgroup can use.
    """

    name: str
    features: str
    mach: int
    version: tuple[int, int]
    units: int
    wavefront: int
    memory: int
    lds: int = 65536

    @property
    def options(self) -> dict[str, str | int]:
        """The options of the target ``gpu`` with which MIGraphX, if it has them, compiles for it without such a GPU."""
        return {"gpu_arch": self.name, "gpu_num_cu": self.units}

    @property
    def described(self) -> str:
        """The text that `hip.cpp` reads."""
        numbers = (self.mach, *self.version, self.units, self.wavefront, self.memory, self.lds)
        return " ".join((self.name + self.features, *map(str, numbers)))


_CDNA = ":sramecc+:xnack-"
ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        Architecture("gfx906", _CDNA, 0x2F, (9, 0), 60, 64, 32),  # Instinct MI50, MI60
        Architecture("gfx908", _CDNA, 0x30, (9, 0), 120, 64, 32),  # MI100
        Architecture("gfx90a", _CDNA, 0x3F, (9, 0), 104, 64, 64),  # MI210, half of an MI250X
        Architecture("gfx942", _CDNA, 0x4C, (9, 4), 304, 64, 192),  # MI300X
        Architecture("gfx950", _CDNA, 0x4F, (9, 5), 256, 64, 288, 163840),  # MI350X
        Architecture("gfx1030", "", 0x36, (10, 3), 40, 32, 16),  # Radeon RX 6900 XT
        Architecture("gfx1100", "", 0x41, (11, 0), 48, 32, 24),  # RX 7900 XTX
        Architecture("gfx1101", "", 0x46, (11, 0), 30, 32, 16),  # RX 7800 XT
        Architecture("gfx1102", "", 0x47, (11, 0), 16, 32, 8),  # RX 7600
        Architecture("gfx1151", "", 0x4A, (11, 5), 20, 32, 64),  # Ryzen AI Max
        Architecture("gfx1200", "", 0x48, (12, 0), 16, 32, 16),  # RX 9060 XT
        Architecture("gfx1201", "", 0x4E, (12, 0), 32, 32, 16),  # RX 9070 XT
    )
}
"""By name: from LLVM's "User Guide for AMDGPU Backend" and AMD's "GPU specifications"."""


def named_architecture(target: str) -> Architecture | None:
    """Return the architecture of a target ``gpu:ARCHITECTURE``; None for other targets.

    Raises InputError if the architecture is not known.
    """
    kind, colon, name = target.partition(":")
    if (kind, colon) != ("gpu", ":"):
        return None
    if name not in ARCHITECTURES:
        hint = nearest(name, ARCHITECTURES) or f"one of: {', '.join(ARCHITECTURES)}"
        raise InputError("the GPU architecture is not known", where=f"target {target!r}", hint=hint)
    return ARCHITECTURES[name]
