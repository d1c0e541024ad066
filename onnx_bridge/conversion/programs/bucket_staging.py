"""The folder in which the buckets of a bundle are converted, before they replace an earlier bundle together.

    OUT/manifest.json  NAME.onnx  n=1/  n=2/                the earlier bundle, whole until the new one is
    OUT/.unfinished/NAME.onnx.data  n=1.onnx  n=1/  …       the new one

A bucket takes as long as a model. If a conversion is killed or interrupted, finished buckets stay in the folder, and
the next conversion takes them from there if they are up to date. A conversion that fails leaves nothing.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from onnx_bridge.conversion.staging import UNFINISHED, link, move_folder, staging_folder


@contextlib.contextmanager
def bucket_staging(out: Path, labels: Collection[str], weights: str) -> Iterator[Path]:
    """Yield a folder that replaces the bundle in ``out`` when the block succeeds; ``out`` is locked meanwhile.

    Args:
        labels: the names of its buckets; finished ones, and those of the earlier bundle, are in the folder.
        weights: the name of the file of weights that they share.

    Raises:
        InputError: as for `onnx_bridge.conversion.staging.staging_folder`.
    """
    with staging_folder(out):
        folder = out / UNFINISHED
        folder.mkdir(exist_ok=True)
        for stale in [*folder.iterdir()]:
            if stale.is_dir() and stale.name not in labels:
                shutil.rmtree(stale)
                (folder / f"{stale.name}.onnx").unlink(missing_ok=True)
        for label in labels:
            _take(out, folder, label)
        if not (folder / weights).exists() and (out / weights).is_file():
            shutil.copyfile(out / weights, folder / weights)
        try:
            yield folder
        except Exception:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        except BaseException:
            for created in (*(folder / label for label in labels), folder):
                with contextlib.suppress(OSError):
                    created.rmdir()  # if it is empty
            raise
        move_folder(out, folder)


def _take(out: Path, folder: Path, label: str) -> None:
    """Link the bucket of the earlier bundle into the folder unless there is a newer one."""
    if (folder / label).exists() or not (out / label).is_dir():
        return
    shutil.copytree(out / label, folder / label, symlinks=True, copy_function=_link)
    for model in filter(Path.is_file, (out / f"{label}.onnx", *out.glob(f"{glob.escape(label)}-*.onnx"))):
        (folder / model.name).unlink(missing_ok=True)
        link(model, folder / model.name)


def _link(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Link a file; copy external data, which onnx refuses to load from a file with several links."""
    (shutil.copy2 if str(source).endswith(".data") else link)(Path(source), Path(target))
