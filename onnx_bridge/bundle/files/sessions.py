"""The sessions of a bundle with ONNX Runtime's provider here, and whether it will find their programs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from onnx_bridge.bundle.manifest.manifest import Manifest
from onnx_bridge.core.files.digest import file_digest
from onnx_bridge.provider import provider as providers
from onnx_bridge.provider.provider import CACHE_OPTION, CACHE_VARIABLE, SessionOptions

SESSION_FILES = frozenset(("session.json", "run.py", "session.cpp"))
SESSION_FOLDERS = ("cache/", "triton/")
"""The files for applications, which a conversion for ONNX Runtime writes beside a bundle, and its folders."""
_CACHE = "cache"


def session_notes(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Open every session with a copy of the cache, and yield what the user should know.

    Raises:
        RuntimeNotFound: there is no provider here.
        ProviderError, NativeFailure: a session cannot be created.
    """
    provider = providers.shared()
    made, here = manifest.versions.get("onnxruntime-migraphx"), provider.environment.version
    if made != here:
        yield f"made for onnxruntime-migraphx {made}; the one here is {here}, whose claims and names may differ"
    if CACHE_VARIABLE in os.environ:
        yield f"{CACHE_VARIABLE} is set here, and wins over the folder that session.json names"
    with tempfile.TemporaryDirectory(prefix="onnx-bridge-") as temporary:
        cache = Path(temporary) / _CACHE
        if (folder / _CACHE).is_dir():
            shutil.copytree(folder / _CACHE, cache)
        cache.mkdir(exist_ok=True)
        before = {path.name: file_digest(path) for path in cache.iterdir()}
        for program in manifest.programs:
            provider.session(folder / program.model[0].file, SessionOptions(provider={CACHE_OPTION: str(cache)}))
        programs = list(cache.iterdir())
        compiled = [path.name for path in programs if before.get(path.name) != file_digest(path)]
    found = len(programs) - len(compiled)
    yield f"opened by {provider.note}: the cache has {found} of the {len(programs)} programs of all sessions"
    if compiled:
        on = "beside the card" if provider.stubbed else "here"
        yield f"{len(compiled)} programs would be compiled by the first session: `python run.py` {on} fills the cache"
