"""What ONNX Bridge keeps in the user's cache folder: the verb ``cache``.

    runtimes/…      MIGraphX itself, unpacked by ``runtime install``
    verdicts/…      what each MIGraphX said of nodes: a file for a runtime, an environment and this code
    torch/…         the programs of modules that ``lower`` and ``torch.compile`` made
    bundles/…       packed bundles that were loaded, unpacked
    gpu-view/…      the program, and MIGraphX's headers, that int8 forecasts are made with
    quark-…         where the operators of AMD Quark are that were compiled on this machine

All of it can be made again. What is of no use to anybody goes whenever the cache is pruned: what processes that were
killed left, what is damaged, and what belongs to a runtime that is gone. The rest goes by when it was last used, as far
as the file system knows.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
import zipfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_bridge.core.atomic_write import write_bytes
from onnx_bridge.core.errors import BridgeError, InputError, nearest
from onnx_bridge.migraphx.runtime import cache_dir, find
from onnx_bridge.migraphx.runtime_record import Record
from onnx_bridge.verdicts.cache import read_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_DAY = 86400.0
_UNITS = {"m": 60.0, "h": 3600.0, "d": _DAY, "w": 7 * _DAY}
_PLACES = ("runtimes", "verdicts", "torch", "bundles", "gpu-view")
_LEFT = re.compile(r"\.(new|unpacking|converting)-|.+\.tmp$")
"""Names of what is being made, or was when its process was killed."""
_RESTING = 3600.0
"""Seconds without a change after which what was being made is given up for lost."""


@dataclass(frozen=True)
class Entry:
    """Something in the cache that is kept or removed as a whole.

    Attributes:
        kind: ``runtime``, ``verdicts``, ``programs`` (of PyTorch modules), ``bundle``, ``tool``, ``left behind`` or
            ``unknown``.
        path: the file or folder.
        bytes: what it takes on the disk; a file with several names counts once.
        used: when it was last read or written, as far as the file system knows, in seconds since 1970.
        purpose: what it is for.
        useless: why nobody can use it; None where somebody can.
    """

    kind: str
    path: Path
    bytes: int
    used: float
    purpose: str
    useless: str | None = None

    @property
    def age(self) -> float:
        """Seconds since it was last used."""
        return max(0.0, time.time() - self.used)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "kind": self.kind,
            "path": str(self.path),
            "bytes": self.bytes,
            "age": round(self.age),
            "purpose": self.purpose,
            "useless": self.useless,
        }


@dataclass(frozen=True)
class Cache:
    """Entries of the cache, and what was done about them.

    Attributes:
        folder: the cache.
        entries: those concerned.
        did: ``kept`` (they are listed), ``removed``, or ``would remove``.
        failed: those that could not be removed, with the reason.
        mended: files of verdicts of which only lines were damaged, and removed.
    """

    folder: Path
    entries: tuple[Entry, ...]
    did: str = "kept"
    failed: tuple[tuple[Entry, str], ...] = ()
    mended: tuple[Entry, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether all was done."""
        return not self.failed

    @property
    def bytes(self) -> int:
        """Of all entries."""
        return sum(each.bytes for each in self.entries)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "folder": str(self.folder),
            "did": self.did,
            "bytes": self.bytes,
            "entries": [each.to_json() for each in self.entries],
            "mended": [each.to_json() for each in self.mended],
            "failed": [{**each.to_json(), "why": why} for each, why in self.failed],
        }

    def render(self) -> RenderableType:
        """As a table, and a sentence."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table("kind", "name", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("MiB", justify="right")
        table.add_column("last used", justify="right")
        table.add_column("what it is for")
        for each in self.entries:
            name, size = _name(each.path, self.folder), f"{each.bytes / 2**20:.1f}"
            why = f"{each.purpose}; {each.useless}" if each.useless else each.purpose
            table.add_row(*map(Text, (each.kind, name, size, _ago(each.age), why)))
        failed = [Text(f"cannot be removed: {each.path}: {why}") for each, why in self.failed]
        failed += [Text(f"damaged lines: {_name(each.path, self.folder)}") for each in self.mended]
        count = f"{len(self.entries)} {'entry' if len(self.entries) == 1 else 'entries'}"
        total = f"{count}, {self.bytes / 2**20:.1f} MiB"
        end = f"{total} in {self.folder}" if self.did == "kept" else f"{self.did} {total} from {self.folder}"
        return Group(*([table] if self.entries else []), *failed, Text(end))


@dataclass(frozen=True)
class Soundness:
    """What `verify` found.

    Attributes:
        cache: what was looked at.
        problems: by entry what is wrong.
        unchecked: entries of which nothing is recorded that could be compared.
    """

    cache: Cache
    problems: dict[Path, list[str]]
    unchecked: tuple[Path, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "folder": str(self.cache.folder),
            "passed": self.passed,
            "entries": len(self.cache.entries),
            "problems": {str(path): said for path, said in self.problems.items()},
            "unchecked": [str(path) for path in self.unchecked],
        }

    def render(self) -> Text:
        """A line for each problem, and a sentence."""
        from rich.text import Text

        folder = self.cache.folder
        lines = [f"{_name(path, folder)}: {what}" for path, said in self.problems.items() for what in said]
        count = len(self.cache.entries) - len(self.unchecked)
        sound = f"{count} entries are sound" if self.passed else f"{len(self.problems)} of {count} entries are damaged"
        hint = "" if self.passed else "; `onnx-bridge cache prune` mends or removes them"
        more = f"; of {len(self.unchecked)} nothing is recorded to compare them with" if self.unchecked else ""
        return Text("\n".join([*lines, f"{sound}{hint}{more}"]))


def entries() -> Cache:
    """Everything in the cache, the largest first."""
    folder = cache_dir()
    found = list(_entries(folder)) if folder.is_dir() else []
    return Cache(folder, tuple(sorted(found, key=lambda each: (-each.bytes, each.path))))


def prune(
    *,
    older_than: float | None = None,
    keep_runtimes: Collection[str] = (),
    dry_run: bool = False,
) -> Cache:
    """Remove what is of no use, and what was not used for long. The runtime in use always stays.

    Args:
        older_than: seconds; None removes only what nobody can use: leftovers, damaged entries, and what belongs to a
            runtime that is gone.
        keep_runtimes: names of runtimes that stay however long they were not used.
        dry_run: only say what would be removed.

    Raises:
        InputError: there is no such runtime.
    """
    everything = entries()
    names = [each.path.name for each in everything.entries if each.kind == "runtime"]
    for name in keep_runtimes:
        if name not in names:
            hint = nearest(name, names) or f"there are {', '.join(names) or 'none'}"
            raise InputError("no such private runtime", where=name, hint=hint)
    kept = {*keep_runtimes, *_used()}
    mine = [
        each
        for each in everything.entries
        if each.kind != "unknown" and not (each.kind == "runtime" and each.path.name in kept)
    ]
    goes = [each for each in mine if each.useless or (older_than is not None and each.age >= older_than)]
    rest = [each for each in mine if each not in goes]
    damaged = verify(Cache(everything.folder, tuple(rest))).problems
    goes += [each for each in rest if each.path in damaged and each.kind != "verdicts"]
    mend = tuple(each for each in rest if each.path in damaged and each.kind == "verdicts")
    if dry_run:
        return Cache(everything.folder, tuple(goes), "would remove", mended=mend)
    gone, failed = [], []
    for each in goes:
        try:
            _remove(each)
            gone.append(each)
        except (OSError, BridgeError) as error:
            failed.append((each, error.what if isinstance(error, BridgeError) else error.strerror or str(error)))
    for each in mend:
        _mend(each.path)
    return Cache(everything.folder, tuple(gone), "removed", tuple(failed), mend)


def verify(cache: Cache | None = None, *, progress: Callable[[str], None] | None = None) -> Soundness:
    """Compare everything with what is recorded of it: checksums, whole lines, whole bundles.

    Args:
        cache: what to look at; default: all of it.
        progress: told each entry as it begins.
    """
    cache = cache or entries()
    problems, unchecked = {}, []
    for each in cache.entries:
        if progress is not None:
            progress(_name(each.path, cache.folder))
        check = _CHECKS.get(each.kind)
        if check is None:
            unchecked.append(each.path)
        else:
            with _unread(each.path):
                said = check(each.path)
            if said:
                problems[each.path] = said
    return Soundness(cache, problems, tuple(unchecked))


def seconds(text: str) -> float:
    """A time such as ``30d``, ``12h``, ``90m`` or ``2w``.

    Raises:
        InputError: it is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", text.strip())
    if found is None:
        raise InputError(f"{text!r} is no time", where="--older-than", hint="for example 30d, 12h or 2w")
    return float(found[1]) * _UNITS[found[2]]


def _entries(folder: Path) -> Iterator[Entry]:
    runtimes = {each.name: Record.read(each) for each in _inside(folder / "runtimes") if each.is_dir()}
    identities = {each.identity for each in runtimes.values() if each is not None}
    for place in _inside(folder):
        for path in _inside(place) if place.name in _PLACES else [place]:
            if path.is_symlink() or path.name == ".lock" or path.suffix == ".lock":
                continue
            useless = None
            match place.name:
                case _ if _LEFT.match(path.name):
                    kind, purpose = "left behind", "what a process was making when it was killed"
                    resting = time.time() - _measured(path)[2] > _RESTING
                    useless = "nobody is working at it" if resting else None
                case "runtimes" if path.is_dir():
                    record = runtimes[path.name]
                    packages = {each.name: each.version for each in record.packages} if record else {}
                    version = packages.get("migraphx") or packages.get("libmigraphx0") or path.name.split("-")[0]
                    target = record.target if record else "unknown"
                    kind, purpose = "runtime", f"MIGraphX for {target}, of ROCm {version}"
                    useless = None if record else "there is no record of what it consists of"
                case "verdicts" if path.suffix == ".jsonl":
                    kind, purpose = "verdicts", "what MIGraphX said of nodes"
                    useless = "the runtime is gone" if _runtime_gone(path.name, identities) else None
                case "torch" if path.is_dir():
                    kind, purpose = "programs", "a PyTorch module, lowered"
                case "bundles" if path.is_dir():
                    kind, purpose = "bundle", f"a packed bundle, unpacked: {_bundle_name(path)}"
                case "gpu-view":
                    kind = "tool"
                    headers = path.name.startswith("headers-")
                    purpose = "MIGraphX's headers" if headers else "forecasts of what the gpu target does"
                case name if name.startswith("quark-"):
                    kind, purpose = "tool", "where the compiled operators of AMD Quark are"
                case _:
                    kind, purpose = "unknown", "nothing that this version of onnx-bridge knows"
            size, used, _ = _measured(path)
            yield Entry(kind, path, size, used, purpose, useless)


def _runtime_gone(name: str, identities: Collection[str]) -> bool:
    """Whether verdicts (``2.14.0-IDENTITY-STATE.jsonl``) are those of a private runtime that is not there any more."""
    found = re.match(r"[\d.]+-([0-9a-f]{10})-", name)
    return found is not None and found[1] not in identities


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _measured(path: Path) -> tuple[int, float, float]:
    """Bytes on the disk, and when anything of it was last used, and last written."""
    sizes: dict[tuple[int, int], int] = {}
    used = written = 0.0
    for each in [path, *(path.rglob("*") if path.is_dir() else ())]:
        with contextlib.suppress(OSError):
            found = each.lstat()
            written = max(written, found.st_mtime)
            described = each.is_dir() or each.suffix == ".json"  # which is read to tell what it is
            used = max(used, found.st_mtime, 0.0 if described else found.st_atime)
            sizes[found.st_dev, found.st_ino] = 0 if each.is_dir() else found.st_blocks * 512
    return sum(sizes.values()), used, written


def _used() -> set[str]:
    """The name of the runtime in use, where it is a private one."""
    with contextlib.suppress(BridgeError):
        return {find().path.name}
    return set()


def _remove(entry: Entry) -> None:
    if entry.kind == "runtime":
        from onnx_bridge.migraphx.install.install import remove  # which waits for installations, and knows the link

        remove(entry.path.name)
        return
    if entry.path.is_dir():
        aside = entry.path.with_name(f".new-{entry.path.name}")
        entry.path.rename(aside)  # so that nobody finds half of it
        shutil.rmtree(aside)
    else:
        entry.path.unlink()


def _mend(path: Path) -> None:
    """Leave the lines of verdicts out that cannot be read."""
    lines = [line for line in path.read_bytes().split(b"\n") if line and read_line(line) is not None]
    write_bytes(path, b"".join(line + b"\n" for line in lines))


@contextlib.contextmanager
def _unread(path: Path) -> Iterator[None]:
    """Have looking at an entry leave no trace in when it was last used."""
    files = [each for each in (path, *(path.rglob("*") if path.is_dir() else ())) if each.is_file()]
    before = [(each, each.stat()) for each in files]
    yield
    for each, state in before:
        with contextlib.suppress(OSError):
            if each.stat().st_mtime_ns == state.st_mtime_ns:
                os.utime(each, ns=(state.st_atime_ns, state.st_mtime_ns))


def _check_runtime(path: Path) -> list[str]:
    record = Record.read(path)
    if record is None:
        return ["there is no record of what it consists of"]
    return [f"{name} is missing or changed" for name in record.damage(path, thorough=True)]


def _check_verdicts(path: Path) -> list[str]:
    try:
        data = path.read_bytes()
    except OSError as error:
        return [f"it cannot be read: {error.strerror}"]
    bad = sum(read_line(line) is None for line in data.split(b"\n") if line)
    said = [f"{bad} lines cannot be read, and are passed over"] if bad else []
    return said + ([] if not data or data.endswith(b"\n") else ["its last line is cut short"] if not bad else [])


def _check_bundle(path: Path) -> list[str]:
    from onnx_bridge.bundle.verify import verify as verify_bundle

    try:
        found = verify_bundle(path, here=False)
    except BridgeError as error:
        return [error.what]
    return [f"{name}: {what}" for name, what in found.problems.items()]


def _check_programs(path: Path) -> list[str]:
    try:
        buckets = json.loads((path / "entry.json").read_text())["buckets"]
        said = [f"{index}/{each}" for index in range(len(buckets)) for each in _check_bundle(path / str(index))]
        with zipfile.ZipFile(path / "samples.pt") as samples:
            damaged = samples.testzip()
        return said + ([f"samples.pt: {damaged} is damaged"] if damaged else [])
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        return [f"it cannot be read: {error}"]


_CHECKS: dict[str, Callable[[Path], list[str]]] = {
    "runtime": _check_runtime,
    "verdicts": _check_verdicts,
    "programs": _check_programs,
    "bundle": _check_bundle,
}


def _bundle_name(path: Path) -> str:
    try:
        return str(json.loads((path / "manifest.json").read_text())["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown"


def _name(path: Path, folder: Path) -> str:
    """A path in the cache, with the middle of a long digest left out."""
    return re.sub(r"([0-9a-f]{8})[0-9a-f]{48,}", r"\1…", os.fspath(path.relative_to(folder)))


def _ago(age: float) -> str:
    for unit, size in (("d", _DAY), ("h", 3600.0), ("min", 60.0)):
        if age >= size:
            return f"{age / size:.0f} {unit}"
    return "now"
