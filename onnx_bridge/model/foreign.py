"""Files and folders that hold no ONNX model: the hints that lead to one."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from shlex import quote

from onnx_bridge.model.folder import CONFIG, read_configuration

_PYTORCH = "the file looks like one of PyTorch: `onnx-bridge export` makes a model of what a Python function returns"
_BEGINNINGS = {
    b"version https://git-lfs.": "the file is a pointer of Git LFS: run git lfs pull",
    b"PK\x03\x04": _PYTORCH,  # a zip archive
    **{bytes((0x80, protocol)): _PYTORCH for protocol in range(2, 6)},  # a pickle
}
"""Hints by the first bytes of a file."""
_IDENTIFIERS = {
    b"ORTM": "the file is in ONNX Runtime's own format: give the .onnx file that it was made from",
    b"TFL3": "the file is one of TensorFlow Lite: python -m tf2onnx.convert --tflite FILE --output OUT.onnx",
}
"""Hints by the identifier of a FlatBuffers file, which is in bytes 4 to 8."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
_TASKS = {
    "ForCausalLM": "text-generation-with-past",
    "ForConditionalGeneration": "text2text-generation-with-past",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForImageClassification": "image-classification",
}
"""The tasks of Optimum by the end of a class of Transformers."""


@dataclass(frozen=True)
class _Config:
    architectures: tuple[str, ...] | None = None


def hint_of_file(path: Path, beginning: bytes) -> str | None:
    """Return what to do with a file that is not a model, which begins with some bytes; None if it is unknown."""
    if path.suffix == ".py":
        command = f"onnx-bridge export {quote(str(path))}:FUNCTION -o OUT.onnx"
        return f"the file is Python: {command} makes a model of the PyTorch module that a function in it returns"
    if path.suffix == ".safetensors":
        return hint_of_folder(path.parent) or "it has weights alone: export the module that they belong to"
    known = next((hint for known, hint in _BEGINNINGS.items() if beginning.startswith(known)), None)
    return known or _IDENTIFIERS.get(beginning[4:8])


def hint_of_folder(folder: Path) -> str | None:
    """Return how a checkpoint of Transformers is exported, or the models in a folder; None without any."""
    if models := sorted(folder.glob("*.onnx")):
        return f"name a file in it: {', '.join(map(str, models[:3]))}"
    if not (folder / CONFIG).is_file() or not any(path.suffix in _WEIGHTS for path in folder.iterdir()):
        return None
    classes = read_configuration(_Config, folder / CONFIG).architectures or ()
    task = next((task for end, task in _TASKS.items() if any(name.endswith(end) for name in classes)), None)
    out = f"{folder.resolve().name}-onnx"
    command = f"optimum-cli export onnx --model {quote(str(folder))} --task {task or 'feature-extraction'} {quote(out)}"
    return f"it has weights alone; export them: {command}, or in Python (onnx-bridge docs hugging-face)"


def hint_of_missing(path: Path) -> str | None:
    """Return the file that a path which does not exist may mean; None if nothing like it is there."""
    try:
        names = sorted((entry.name for entry in path.parent.iterdir()), key=lambda name: not name.endswith(path.suffix))
    except OSError:
        return None
    stems = {Path(name).stem: name for name in reversed(names)}
    if close := get_close_matches(path.stem, stems, n=1, cutoff=0.5):
        return f"did you mean {stems[close[0]]}?"
    models = [name for name in names if name.endswith(".onnx")]
    return f"the folder has {', '.join(sorted(models)[:3])}" if models else None
