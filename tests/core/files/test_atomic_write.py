"""A file or folder is replaced as a whole, or is as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnx_bridge.core.errors import InputError
from onnx_bridge.core.files.atomic_write import AtomicFiles, atomic_file, atomic_folder, write_all, write_text


class Interrupted(Exception):
    """Raised in the middle of writing."""


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "old")
    with path.open() as reader:
        write_text(path, "new ✓")
        assert reader.read() == "old"
    assert path.read_text(encoding="utf-8") == "new ✓"
    assert list(tmp_path.iterdir()) == [path]


def test_an_exception_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "old")
    with pytest.raises(Interrupted), atomic_file(path) as temporary:
        temporary.write_text("ne")
        raise Interrupted
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"file\.txt: the file cannot be written: No such file"):
        write_text(tmp_path / "absent" / "file.txt", "text")


def test_folders(tmp_path: Path) -> None:
    with pytest.raises(Interrupted), atomic_folder(tmp_path / "folder") as temporary:
        (temporary / "file").touch()
        raise Interrupted
    assert not list(tmp_path.iterdir())
    with atomic_folder(tmp_path / "folder") as temporary:
        (temporary / "file").touch()
        assert not (tmp_path / "folder").exists()
    assert [each.relative_to(tmp_path).as_posix() for each in tmp_path.rglob("*")] == ["folder", "folder/file"]


@pytest.mark.parametrize("fails", [False, True])
def test_several_files_are_replaced_together(tmp_path: Path, fails: bool) -> None:
    (tmp_path / "a").write_text("old a")
    if fails:
        (tmp_path / "b").mkdir()  # a file cannot replace it
    error: type[BaseException] = OSError if fails else Interrupted
    with pytest.raises(error):
        with AtomicFiles() as files:
            for name in ("a", "b"):
                write_all(files.create(tmp_path / name), f"new {name}".encode())
        raise Interrupted
    assert (tmp_path / "a").read_text() == ("old a" if fails else "new a")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "b"]
