"""`verify` of a folder for ONNX Runtime: whether its sessions find their programs here, and each reason why not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnx_bridge
from onnx_bridge.bundle.bundle import Bundle
from onnx_bridge.bundle.files import sessions
from onnx_bridge.bundle.files.verify import verify
from onnx_bridge.migraphx import runtime as runtimes
from onnx_bridge.migraphx.architectures import ARCHITECTURES
from onnx_bridge.migraphx.gpu.compiler import gpu_compiler
from onnx_bridge.migraphx.runtime import Runtime
from onnx_bridge.provider.provider import CACHE_OPTION, Provider, SessionOptions

WithWheel = Callable[[str, Path], CompletedProcess[str]]
RUN = 'import runpy; opened = runpy.run_path("run.py", run_name="__main__")\n'
MODEL = '<ir_version: 8, opset_import: ["": 17]> g (float[N,4] x) => (float[N,4] y) { a = MatMul(x, w) y = Exp(a) }'


@pytest.fixture(scope="module")
def made(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two sizes."""
    folder = tmp_path_factory.mktemp("made")
    model = parser.parse_model(MODEL)
    weights = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(model, folder / "model.onnx")
    return onnx_bridge.convert(
        folder / "model.onnx", folder / "out", application="onnxruntime", buckets={"N": [1, 2]}
    ).path


@pytest.fixture
def filled(made: Path, tmp_path: Path, with_wheel: WithWheel) -> Path:
    """The same folder with programs in its cache, by the lines that it brings."""
    folder = shutil.copytree(made, tmp_path / "out")
    ran = with_wheel(RUN, folder)
    assert ran.returncode == 0, ran.stderr
    return folder


def test_the_lines_fill_the_cache_and_refuse_other_sizes(filled: Path, with_wheel: WithWheel) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in (filled / "cache").iterdir()}
    use = RUN + (
        "import numpy as np\n"
        "print(opened['run']({'x': np.ones((2, 4), np.float32)})['y'].shape)\n"
        "try: opened['run']({'x': np.ones((3, 4), np.float32)})\n"
        "except KeyError: print('refused')\n"
    )
    ran = with_wheel(use, filled)
    assert ran.stdout.splitlines()[-2:] == ["(2, 4)", "refused"], ran.stderr
    assert {path.name: path.stat().st_mtime_ns for path in (filled / "cache").iterdir()} == before
    verification = verify(filled)
    assert verification.passed and any("2 of the 2" in note for note in verification.notes)


def test_programs_of_other_options_are_made_again(filled: Path, with_wheel: WithWheel) -> None:
    edit(filled / "session.json", lambda settings: settings["provider"].update(migraphx_fp16_enable="1"))
    names = {path.name for path in (filled / "cache").iterdir()}
    program = next((filled / "cache").glob("*.mxr"))
    stale = program.read_bytes()
    assert with_wheel(RUN, filled).returncode == 0
    assert {path.name for path in (filled / "cache").iterdir()} == names  # fp16 is not in the name
    assert program.read_bytes() != stale and verify(filled).passed


def edit(path: Path, change: Callable[[dict], object]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def renamed(part: int) -> Callable[[Path], None]:
    def rename(folder: Path) -> None:
        for path in (folder / "cache").glob("*.mxr"):
            parts = path.name.split("-")
            parts[part] = "abc123" + ".mxr" * (part == 3)
            path.rename(path.with_name("-".join(parts)))
            break

    return rename


def options(folder: Path) -> None:
    edit(folder / "session.json", lambda settings: settings["provider"].update(migraphx_fp16_enable="1"))


def damaged(folder: Path) -> None:
    next((folder / "cache").glob("*.mxr")).write_bytes(b"of another version")


def weights(folder: Path) -> None:
    path = next(folder.rglob("model-*.onnx"))
    model = onnx.load(path)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
    onnx.save(model, path)


CAUSES = {
    "another wheel": (renamed(0), "wheel"),
    "another graph": (renamed(1), "another graph"),
    "another GPU": (renamed(2), "another GPU"),
    "other sizes": (renamed(3), "sizes"),
    "other options": (options, "options"),
    "another MIGraphX": (damaged, "cannot load"),
    "edited weights": (weights, "was changed"),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_a_cause_for_which_programs_are_not_found_is_named(filled: Path, cause: str) -> None:
    change, word = CAUSES[cause]
    change(filled)
    unfit = verify(filled).unfit
    assert unfit is not None and word in unfit
    assert [other for other, (_, its_word) in CAUSES.items() if its_word in unfit] == [cause]


@pytest.mark.parametrize("content", [None, "", "[]", '{"provider": 3}', '{"provider": {"device_id": 0}, "by": "x"}'])
def test_a_cache_that_is_missing_or_has_no_record_is_named_and_no_damage(filled: Path, content: str | None) -> None:
    if content is None:
        shutil.rmtree(filled / "cache")
    else:
        (filled / "cache/made.json").write_text(content)
    verification = verify(filled)
    assert verification.passed and any("cache" in note for note in verification.notes)


def test_a_packed_folder_keeps_what_opens_its_sessions(filled: Path, tmp_path: Path) -> None:
    onnx_bridge.pack(filled, tmp_path / "packed.onnxbridge")
    assert verify(tmp_path / "packed.onnxbridge").passed
    onnx_bridge.unpack(tmp_path / "packed.onnxbridge", tmp_path / "again")
    assert (tmp_path / "again/run.py").read_text() == (filled / "run.py").read_text()
    assert any("2 of the 2" in note for note in verify(tmp_path / "again").notes)


def test_a_convolution_has_no_programs_without_the_gpu_on_which_miopen_chooses(
    runtime: Runtime, tmp_path: Path
) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[1,1,4,4] x, float[1,1,3,3] w) => (float[1,1,2,2] y)'
    onnx.save(parser.parse_model(f"{text} {{ y = Conv(x, w) }}"), tmp_path / "model.onnx")
    bundle = onnx_bridge.convert(
        tmp_path / "model.onnx", tmp_path / "out", application="onnxruntime", target="gpu:gfx942"
    )
    assert not (bundle.path / "cache").exists() and verify(bundle.path).passed
    assert any("MIOpen" in note for note in Bundle(bundle.path).manifest.notes)


def test_programs_for_a_gpu_that_is_not_there_are_found_under_their_names(
    runtime: Runtime, made: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model.onnx"
    shutil.copy(made.parent / "model.onnx", model)
    bundle = onnx_bridge.convert(model, tmp_path / "out", application="onnxruntime", dims={"N": 2}, target="gpu:gfx942")
    verification = verify(bundle.path)
    assert verification.passed and any("1 of the 1" in note for note in verification.notes)
    (program,) = (bundle.path / "cache").glob("*.mxr")
    (bundle.path / "copy").mkdir()
    shutil.copy(program, bundle.path / "copy")
    provider = Provider(compiler=gpu_compiler(runtimes.find(), ARCHITECTURES["gfx942"]))
    options = SessionOptions(provider={CACHE_OPTION: str(bundle.path / "copy")})
    session = provider.session(bundle.path / bundle.program.info.model[0].file, options)
    provider.close()
    assert session.calls["load"] == 1 and session.calls["parse"] == session.calls["compile"] == 0
    other = Provider(architecture="gfx1100")
    (name,) = sessions._names(bundle.path, bundle.manifest, other)
    other.close()
    assert name.split("-")[2] != program.name.split("-")[2]
