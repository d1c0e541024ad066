"""The command line: exit codes, one clear message for each kind of bad input, JSON, and nothing half written."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

import onnx_bridge
from fixtures.models import decoder
from onnx_bridge.cli import main, terminal
from onnx_bridge.cli.main import VERBS
from onnx_bridge.conversion.staging import staging_folder
from onnx_bridge.migraphx.kinds import VARIABLE
from onnx_bridge.migraphx.runtime import Runtime
from passes.core.errors import InputError

PROGRAM = Path(sys.executable).with_name("onnx-bridge")
RELU = '<ir_version: 8, opset_import: ["": 17]> g (float[batch,3] x) => (float[batch,3] y) { y = Relu(x) }'


class Outcome:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def bridge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """``bridge("convert", model, "-o", out)``: a command in this process."""

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["onnx-bridge", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main.main()
        printed = capsys.readouterr()
        code = caught.value.code
        assert isinstance(code, int)
        assert "Traceback" not in printed.err
        return Outcome(code, printed.out, printed.err)

    return run


@pytest.fixture
def relu(tmp_path: Path) -> Path:
    path = tmp_path / "relu.onnx"
    onnx.save(parser.parse_model(RELU), path)
    return path


def wait_for_worker(process: subprocess.Popen[str]) -> int:
    """The id of the program's worker, once it holds 300 MB: it is parsing."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None:
        for pid in map(int, children.read_text().split()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if b"onnx_bridge.migraphx" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    continue
                resident = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
                if resident and int(resident[1]) >= 300_000:
                    return pid
        time.sleep(0.02)
    raise AssertionError(f"the program ended before its worker was at work: {process.communicate()}")


def one_message(outcome: Outcome, code: int, *words: str) -> None:
    """One line that says what and where, the right exit code, nothing on standard output; perhaps what to type."""
    assert outcome.code == code, outcome.err
    assert outcome.out == ""
    lines = outcome.err.strip().splitlines()
    assert all(line.startswith("type: ") for line in lines[1:]), outcome.err
    assert lines[0].startswith("onnx-bridge: ")
    for word in words:
        assert word in lines[0], lines[0]


class TestVerbs:
    def test_clean(self, bridge: Callable[..., Outcome], exported: Callable[..., Path], tmp_path: Path) -> None:
        model, out = exported("bert", "torchscript", dynamic_batch=True), tmp_path / "clean.onnx"
        outcome = bridge("clean", model, "-o", out, "--dim", "batch=2", "--json")
        assert outcome.code == 0
        result = outcome.json
        assert result["nodes_after"] < result["nodes_before"] == len(onnx.load(model).graph.node)
        assert {"freeze-shapes", "fold-constants"} <= {each["name"] for each in result["passes"]}
        cleaned = onnx.load(out)
        assert len(cleaned.graph.node) == result["nodes_after"]
        dims = cleaned.graph.input[0].type.tensor_type.shape.dim
        assert [dim.dim_value for dim in dims] == [2, 16]

    def test_clean_dry_run(self, bridge: Callable[..., Outcome], relu: Path, tmp_path: Path) -> None:
        before = sorted(tmp_path.iterdir())
        outcome = bridge("clean", relu, "--dry-run", "--shape", "x:[5,3]")
        assert outcome.code == 0
        assert "freeze-shapes" in outcome.out
        assert sorted(tmp_path.iterdir()) == before
        one_message(bridge("clean", relu), 2, "--dry-run")

    def test_convert_check_run_inspect(
        self, runtime: Runtime, bridge: Callable[..., Outcome], relu: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        outcome = bridge("convert", relu, "-o", out, "--target", "ref", "--dim", "batch=2")
        assert outcome.code == 0
        assert "relu.mxr" in outcome.out
        outcome = bridge("check", out)
        assert outcome.code == 0, outcome.out
        assert "MIGraphX" in outcome.out
        x = np.array([[-1, 0, 1], [2, -2, 0.5]], np.float32)
        np.savez(tmp_path / "x.npz", x=x)
        outcome = bridge("run", out, "--inputs", tmp_path / "x.npz", "-o", tmp_path / "y.npz", "--json")
        assert outcome.json["outputs"] == {"y": {"dtype": "float32", "shape": [2, 3]}}
        np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["y"], np.maximum(x, 0))
        outcome = bridge("inspect", out, "--json")
        assert outcome.json["kind"] == "bundle"
        assert outcome.json["target"] == "ref"
        outcome = bridge("inspect", relu, "--json")
        assert outcome.json["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["batch", 3]}]
        assert outcome.json["operators"] == {"Relu": 1}
        assert "Relu 1" in bridge("inspect", relu).out
        assert "MIGraphX" in bridge("inspect", out).out
        told = bridge("inspect", out, "-v").out
        assert "freeze-shapes  1 → 1" in told
        assert "remove-dead" not in told

    def test_places_that_need_not_be_given(
        self, runtime: Runtime, bridge: Callable[..., Outcome], relu: Path, tmp_path: Path
    ) -> None:
        """`convert` and `pack` write beside what they read; `run` prints, and converts a model by itself."""
        assert bridge("convert", relu, "--target", "ref").code == 0
        assert bridge("pack", relu.with_suffix("")).code == 0
        assert (tmp_path / "relu.onnxbridge").exists()
        np.save(tmp_path / "x.npy", np.array([[-1, 0, 7], [2, -2, 0.5]], np.float32))
        outcome = bridge("run", relu, tmp_path / "x.npy")
        assert (outcome.code, "float32 [2, 3]" in outcome.out, "7." in outcome.out) == (0, True, True)
        generated = bridge("run", relu.with_suffix(""), "--json").json
        assert generated["path"] is None
        assert generated["outputs"]["y"]["shape"] == [1, 3]
        one_message(bridge("run", relu, tmp_path / "x.npy", "--inputs", tmp_path / "x.npy"), 2, "x.npy")
        one_message(bridge("convert", tmp_path), 2, "-o")

    def test_inspect_shows_sizes_of_zero(self, bridge: Callable[..., Outcome], tmp_path: Path) -> None:
        text = '<ir_version: 9, opset_import: ["": 17]> g (float[0, N] x) => (float[0, N] y) { y = Relu(x) }'
        onnx.save(parser.parse_model(text), tmp_path / "empty.onnx")
        assert "0 × N" in bridge("inspect", tmp_path / "empty.onnx").out

    def test_check_says_no(self, runtime: Runtime, bridge: Callable[..., Outcome], relu: Path, tmp_path: Path) -> None:
        """Against another reference the answer is no: exit code 1, and the report says where."""
        out, other = tmp_path / "out", tmp_path / "other.onnx"
        bridge("convert", relu, "-o", out, "--target", "ref", "--dim", "batch=2")
        onnx.save(parser.parse_model(RELU.replace("Relu(x)", "Neg(x)")), other)
        outcome = bridge("check", out, "--reference", other, "--json")
        assert outcome.code == 1
        assert outcome.json["passed"] is False
        outcome = bridge("check", out, "--reference", other)
        assert outcome.code == 1
        assert "y" in outcome.out

    def test_check_with_given_inputs_and_tolerances(
        self, runtime: Runtime, bridge: Callable[..., Outcome], relu: Path, tmp_path: Path
    ) -> None:
        np.savez(tmp_path / "x.npz", x=np.full((1, 3), np.nan, np.float32))
        outcome = bridge(
            "check", relu, "--inputs", tmp_path / "x.npz", "--rtol", "0", "--atol", "0", "--target", "ref", "--json"
        )
        assert outcome.json["passed"] is (outcome.code == 0)

    def test_a_moved_or_changed_source(
        self, runtime: Runtime, bridge: Callable[..., Outcome], relu: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        bridge("convert", relu, "-o", out, "--target", "ref")
        onnx.save(parser.parse_model(RELU.replace("Relu(x)", "Neg(x)")), relu)
        one_message(bridge("check", out), 2, "changed since", "--reference")
        relu.unlink()
        outcome = bridge("check", out, "--json")  # the cleaned model serves, and the report says so
        assert outcome.code == 0
        assert any("cleaned" in note for note in outcome.json["notes"])

    def test_version_and_help(self, bridge: Callable[..., Outcome]) -> None:
        assert bridge("--version").out.startswith("onnx-bridge 0.")
        for verb in ("clean", "convert", "check", "run", "inspect", "runtime"):
            assert verb in bridge("--help").out
            assert bridge(verb, "--help").code == 0

    @pytest.mark.parametrize("verb", [(), *((verb,) for verb in VERBS if verb != "runtime")])
    def test_help_loads_nothing_heavy(self, verb: tuple[str, ...]) -> None:
        code = (
            f"import sys; sys.argv = ['onnx-bridge', *{verb!r}, '--help']\n"
            "from onnx_bridge.cli.main import main\n"
            "try: main()\n"
            "except SystemExit: pass\n"
            "heavy = {'numpy', 'onnx', 'onnx_ir', 'onnxruntime', 'torch', 'ml_dtypes', 'rich'} & set(sys.modules)\n"
            "sys.exit(str(heavy) if heavy else 0)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


class TestUsage:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["clean", "MODEL", "--dry-run", "--pipeline", "fold-constant"], ["fold-constant", "fold-constants"]),
            (["clean", "MODEL", "--dry-run", "--pipeline", "fold-constants{max-byte=1}"], ["max-byte", "max-bytes"]),
            (["clean", "MODEL", "--dry-run", "--dim", "batch"], ["--dim", "batch=1"]),
            (["clean", "MODEL", "--dry-run", "--dim", "batches=2"], ["batches", "batch"]),
            (["clean", "MODEL", "--dry-run", "--shape", "x"], ["--shape"]),
            (["clean", "MODEL", "--dry-run", "--shape", "y:[1,3]"], ["y", "x"]),
            (["clean", "MODEL", "--dry-run", "--shape", "x:[1,2,3]"], ["x"]),
            (["convert", "MODEL", "-o", "OUT", "--target", "rfe"], ["rfe", "ref"]),
            (["check", "MODEL", "--target", "ref", "--inputs", "absent.npz"], ["absent.npz"]),
        ],
    )
    def test_unknown_names(
        self,
        runtime: Runtime,
        bridge: Callable[..., Outcome],
        relu: Path,
        tmp_path: Path,
        arguments: list[str],
        words: list[str],
    ) -> None:
        places = {"MODEL": str(relu), "OUT": str(tmp_path / "out")}
        one_message(bridge(*(places.get(each, each) for each in arguments)), 2, *words)
        assert not (tmp_path / "out").exists()

    def test_unknown_options_and_verbs(self, bridge: Callable[..., Outcome], relu: Path) -> None:
        outcome = bridge("clean", relu, "--pipelin", "none")
        assert outcome.code == 2
        assert "--pipeline" in outcome.err
        outcome = bridge("convrt", relu)
        assert outcome.code == 2
        assert "convert" in outcome.err

    def test_what_the_parser_refuses_leads_to_the_help_of_the_verb(
        self, bridge: Callable[..., Outcome], relu: Path
    ) -> None:
        one_message(bridge("clean"), 2, "MODEL", "onnx-bridge clean --help")
        one_message(bridge("convert", relu, "--output="), 2, "empty")

    @pytest.mark.parametrize(
        ("option", "meant"),
        [
            ("--fp16", "--precision fp16"),
            ("--gpu", "--target gpu"),
            ("--saveEngine=x", "-o"),
            ("--shapes=x:1", "--shape"),
        ],
    )
    def test_options_of_other_tools(self, bridge: Callable[..., Outcome], relu: Path, option: str, meant: str) -> None:
        one_message(bridge("convert", relu, option), 2, meant)

    @pytest.mark.parametrize(
        ("shape", "words", "meant"),
        [
            ("n, 3", ["--batch", "2"], "--dim n=2;"),
            ("n, 3", ["--batch-size=16"], "--dim n=16;"),
            ("n, 3", ["--fill1"], "--dim n=1;"),
            ("4, 3", ["--batch", "2"], "is 4: export"),
        ],
    )
    def test_batches_of_other_tools(
        self, bridge: Callable[..., Outcome], tmp_path: Path, shape: str, words: list[str], meant: str
    ) -> None:
        text = f'<ir_version: 8, opset_import: ["": 17]> g (float[{shape}] x) => (float[{shape}] y) {{ y = Relu (x) }}'
        onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
        one_message(bridge("convert", tmp_path / "m.onnx", *words), 2, meant)

    @pytest.mark.parametrize(("verb", "listed"), [([], "convert"), (["runtime"], "install")])
    def test_nothing_asked_for(self, bridge: Callable[..., Outcome], verb: list[str], listed: str) -> None:
        outcome = bridge(*verb)
        assert outcome.code == 2
        assert listed in outcome.out
        assert outcome.err == ""

    def test_gpu_without_one(
        self, runtime: Runtime, bridge: Callable[..., Outcome], relu: Path, tmp_path: Path
    ) -> None:
        one_message(bridge("convert", relu, "-o", tmp_path / "out", "--target", "gpu"), 3, "GPU")
        assert not (tmp_path / "out").exists()

    def test_errors_as_json(self, bridge: Callable[..., Outcome], tmp_path: Path) -> None:
        outcome = bridge("inspect", tmp_path / "absent.onnx", "--json")
        assert outcome.code == 2
        assert outcome.json["error"]["exit_code"] == 2
        assert "absent.onnx" in outcome.json["error"]["where"]

    def test_a_traceback_only_on_request(self, tmp_path: Path) -> None:
        command = [PROGRAM, "inspect", tmp_path / "absent.onnx"]
        plain = subprocess.run(command, capture_output=True, text=True, check=False)
        assert plain.returncode == 2
        assert "Traceback" not in plain.stderr
        debug = subprocess.run([*command, "--debug"], capture_output=True, text=True, check=False)
        assert "Traceback" in debug.stderr


def truncated(folder: Path) -> None:
    weights = helper.make_tensor("w", TensorProto.FLOAT, [1000], np.arange(1000, dtype=np.float32))
    model = parser.parse_model(RELU)
    model.graph.initializer.append(weights)
    (folder / "m.onnx").write_bytes(model.SerializeToString()[:2000])


def external(location: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        model = parser.parse_model(RELU.replace("Relu(x)", "Add(x, w)"))
        tensor = model.graph.initializer.add(
            name="w", data_type=TensorProto.FLOAT, dims=[3], data_location=TensorProto.EXTERNAL
        )
        for key, value in (("location", location), ("offset", "0"), ("length", "12")):
            tensor.external_data.add(key=key, value=value)
        (folder / "m.onnx").write_bytes(model.SerializeToString())

    return make


def text(text: str) -> Callable[[Path], None]:
    return lambda folder: onnx.save(parser.parse_model(text), folder / "m.onnx")


BAD: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "missing": (lambda folder: None, ["m.onnx"]),
    "empty": (lambda folder: (folder / "m.onnx").touch(), ["m.onnx", "empty"]),
    "text": (lambda folder: (folder / "m.onnx").write_text("This is a text about models.\n" * 9), ["m.onnx"]),
    "random": (lambda folder: (folder / "m.onnx").write_bytes(random.Random(0).randbytes(5000)), ["m.onnx"]),
    "folder": (lambda folder: (folder / "m.onnx").mkdir(), ["m.onnx"]),
    "truncated": (truncated, ["m.onnx", "not an ONNX model"]),
    "missing-external": (external("w.bin"), ["w.bin"]),
    "escaping-external": (external("../w.bin"), ["../w.bin"]),
    "cycle": (text(RELU.replace("y = Relu(x)", "a = Add(x, b) b = Relu(a) y = Neg(b)")), ["cycle"]),
}


class TestBadModels:
    @pytest.mark.parametrize("verb", ["clean", "convert", "check", "inspect"])
    @pytest.mark.parametrize("kind", BAD)
    def test_one_clear_message(
        self, runtime: Runtime, bridge: Callable[..., Outcome], tmp_path: Path, kind: str, verb: str
    ) -> None:
        make, words = BAD[kind]
        (tmp_path / "models").mkdir()
        (tmp_path / "w.bin").write_bytes(bytes(12))  # what an escaping path would read
        make(tmp_path / "models")
        out = {"clean": ["-o", tmp_path / "o.onnx"], "convert": ["-o", tmp_path / "out", "--target", "ref"]}
        before = sorted(tmp_path.rglob("*"))
        one_message(bridge(verb, tmp_path / "models/m.onnx", *out.get(verb, [])), 2, *words)
        assert sorted(tmp_path.rglob("*")) == before

    def test_an_unknown_number_of_dimensions(
        self, runtime: Runtime, bridge: Callable[..., Outcome], tmp_path: Path
    ) -> None:
        model, out = tmp_path / "m.onnx", tmp_path / "out"
        onnx.save(parser.parse_model(RELU.replace("[batch,3]", "[]")), model)
        value = onnx.load(model)
        value.graph.input[0].type.tensor_type.ClearField("shape")
        value.graph.output[0].type.tensor_type.ClearField("shape")
        onnx.save(value, model)
        one_message(bridge("convert", model, "-o", out), 2, "'x'", "--shape")
        assert not out.exists()
        assert bridge("convert", model, "-o", out, "--shape", "x:[2,3]", "--target", "ref").code == 0

    def test_an_unknown_domain(self, runtime: Runtime, bridge: Callable[..., Outcome], tmp_path: Path) -> None:
        model = RELU.replace('["": 17]', '["": 17, "acme": 1]').replace("y = Relu(x)", "[odd] y = acme.Frobnicate(x)")
        onnx.save(parser.parse_model(model), tmp_path / "m.onnx")
        assert bridge("clean", tmp_path / "m.onnx", "-o", tmp_path / "c.onnx").code == 0
        outcome = bridge("convert", tmp_path / "m.onnx", "-o", tmp_path / "out", "--target", "ref")
        one_message(outcome, 3, "Unknown operator: Frobnicate", "node odd")
        assert not (tmp_path / "out").exists()

    def test_wrong_inputs(self, runtime: Runtime, bridge: Callable[..., Outcome], relu: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        bridge("convert", relu, "-o", out, "--target", "ref")
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({"X": np.zeros((1, 3), np.float32)}, ["X", "x"]),
            ({}, ["x"]),
            ({"x": np.zeros((1, 4), np.float32)}, ["x", "4"]),
            ({"x": np.zeros((1, 3), np.float64)}, ["x", "float64", "float32"]),
        ]
        for arrays, words in cases:
            np.savez(tmp_path / "x.npz", **arrays)
            one_message(bridge("run", out, "--inputs", tmp_path / "x.npz", "-o", tmp_path / "y.npz"), 2, *words)
            one_message(bridge("check", out, "--inputs", tmp_path / "x.npz"), 2, *words)
            assert not (tmp_path / "y.npz").exists()


class TestOutputs:
    @pytest.mark.parametrize("verb", ["clean", "convert", "run"])
    def test_a_place_that_cannot_be_written(
        self, runtime: Runtime, bridge: Callable[..., Outcome], relu: Path, tmp_path: Path, verb: str
    ) -> None:
        (tmp_path / "file").touch()
        np.savez(tmp_path / "x.npz", x=np.zeros((1, 3), np.float32))
        out = tmp_path / "file" / "out.onnx"
        if verb == "run":
            bridge("convert", relu, "-o", tmp_path / "bundle", "--target", "ref")
            outcome = bridge("run", tmp_path / "bundle", "--inputs", tmp_path / "x.npz", "-o", out)
        else:
            outcome = bridge(verb, relu, "-o", out)
        one_message(outcome, 2, "file")

    def test_a_read_only_folder(self, runtime: Runtime, relu: Path, tmp_path: Path) -> None:
        """As an ordinary user, since root may write anywhere."""
        out = tmp_path / "out"
        out.mkdir()
        out.chmod(0o555)
        for folder in (tmp_path, *tmp_path.parents):
            if folder.stat().st_uid == os.getuid() and folder != Path("/") and "pytest" in str(folder):
                folder.chmod(0o755)
        code = (
            "import os, sys\n"
            "import onnx_bridge.cli.main, onnx_bridge.model.io\n"
            "import onnxruntime, onnx_bridge.conversion.convert, passes.rewriting.pipeline\n"
            "os.getuid() or os.setuid(65534)\n"
            "from onnx_bridge.conversion import staging\n"
            "try:\n"
            "    with staging.staging_folder(__import__('pathlib').Path(sys.argv[1])): pass\n"
            "except Exception as error: sys.exit(f'{type(error).__name__}: {error}')\n"
        )
        done = subprocess.run([sys.executable, "-c", code, out], capture_output=True, text=True, check=False)
        assert "InputError" in done.stderr
        assert "Permission denied" in done.stderr
        assert str(out) in done.stderr
        out.chmod(0o755)

    def test_files_that_are_not_ours(
        self, runtime: Runtime, bridge: Callable[..., Outcome], relu: Path, tmp_path: Path
    ) -> None:
        """Above all not the model itself, when the bundle goes to its own folder."""
        before = relu.read_bytes()
        one_message(bridge("convert", relu, "-o", tmp_path), 2, "overwrite the model", str(relu))
        shutil.copy(relu, tmp_path / "relu.mxr")
        one_message(bridge("convert", tmp_path / "relu.mxr", "-o", tmp_path / "relu.mxr"), 2, "overwrite the model")
        assert relu.read_bytes() == (tmp_path / "relu.mxr").read_bytes() == before
        for name in ("relu.onnx", "relu.mxr", "manifest.json"):
            out = tmp_path / f"with {Path(name).stem}{len(name)}"
            out.mkdir()
            (out / name).write_text("{}")
            one_message(bridge("convert", relu, "-o", out), 2, "no conversion wrote", str(out / name))
            assert [path.name for path in out.iterdir()] == [name]
            assert (out / name).read_text() == "{}"

    def test_strange_names(self, runtime: Runtime, bridge: Callable[..., Outcome], relu: Path, tmp_path: Path) -> None:
        for name in ("a[1]*?", "sp ä ce.v1", os.fsdecode(b"not \xff text")):
            model = relu.rename(tmp_path / f"{name}.onnx")
            assert bridge("convert", model, "-o", tmp_path / name, "--target", "ref").code == 0
            assert {path.name for path in (tmp_path / name).iterdir()} == {
                f"{name}.mxr",
                f"{name}.onnx",
                "manifest.json",
            }
            if name.isprintable():  # ONNX Runtime takes no path that is not UTF-8
                assert bridge("check", tmp_path / name).code == 0
            relu = model
        one_message(bridge("convert", relu, "-o", tmp_path / ("n" * 300)), 2, "too long")

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_stopped_in_the_middle(self, runtime: Runtime, tmp_path: Path, number: signal.Signals, code: int) -> None:
        model = Path(onnx.__file__).parent / "backend/test/data/light/light_vgg19.onnx"
        for out in (tmp_path / "new" / "out", tmp_path / "out.mxr"):
            command = [PROGRAM, "convert", model, "-o", out, "--target", "ref"]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            while not list(tmp_path.rglob(".converting-*/*.onnx")):
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(number)
            _, err = process.communicate()
            assert process.returncode == code
            assert err == ("interrupted\n" if number is signal.SIGINT else "")
            assert not list(tmp_path.iterdir())

    def test_a_program_alone_beside_a_bundle(self, tmp_path: Path) -> None:
        """A conversion into the folder sweeps what killed ones left, not what another is working with."""

        (tmp_path / ".converting-dead").mkdir()
        with staging_folder(tmp_path / "x.mxr") as living, staging_folder(tmp_path):
            assert living.exists()
            assert not (tmp_path / ".converting-dead").exists()

    def test_two_conversions_into_one_folder(
        self, runtime: Runtime, bridge: Callable[..., Outcome], relu: Path, tmp_path: Path
    ) -> None:

        out = tmp_path / "out"
        with staging_folder(out):
            one_message(bridge("convert", relu, "-o", out, "--target", "ref"), 2, "another conversion", str(out))
        assert bridge("convert", relu, "-o", out, "--target", "ref").code == 0

    def test_many_conversions_at_once(self, runtime: Runtime, relu: Path, tmp_path: Path) -> None:
        """Each either makes the bundle or is refused; what is there afterwards is whole."""
        out = tmp_path / "out"
        command = [PROGRAM, "convert", relu, "-o", out, "--target", "ref"]
        started = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(4)]
        codes = [process.wait() for process in started]
        for process in started:
            assert process.stderr is not None
            process.stderr.close()
        assert set(codes) <= {0, 2}
        assert 0 in codes
        done = subprocess.run([PROGRAM, "check", out], capture_output=True, check=False)
        assert done.returncode == 0
        assert not list(out.glob(".*"))

    def test_over_its_time_limit(
        self, runtime: Runtime, bridge: Callable[..., Outcome], exported: Callable[..., Path], tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        model = Path(onnx.__file__).parent / "backend/test/data/light/light_vgg19.onnx"
        outcome = bridge("convert", model, "-o", out, "--target", "ref", "--timeout", "0.02")
        one_message(outcome, 3, "limit of 0.02 s", "--timeout")
        assert not out.exists()

    def test_over_its_memory_limit(self, runtime: Runtime, bridge: Callable[..., Outcome], tmp_path: Path) -> None:
        out = tmp_path / "out"
        model = Path(onnx.__file__).parent / "backend/test/data/light/light_vgg19.onnx"
        outcome = bridge("convert", model, "-o", out, "--target", "ref", "--memory", "0.3", "--pipeline", "none")
        one_message(outcome, 3, "its limit of 0.3 GiB", "--memory")
        assert not out.exists()

    @pytest.mark.parametrize("victim", ["worker", "program"])
    def test_killed_in_the_middle(self, runtime: Runtime, tmp_path: Path, victim: str) -> None:
        """An earlier bundle stays whole when a later conversion into the folder is killed."""
        model = Path(onnx.__file__).parent / "backend/test/data/light/light_vgg19.onnx"
        small = tmp_path / "relu.onnx"
        onnx.save(parser.parse_model(RELU), small)
        out = tmp_path / "out"
        subprocess.run([PROGRAM, "convert", small, "-o", out, "--target", "ref"], check=True, capture_output=True)
        before = {path.name: path.read_bytes() for path in out.iterdir()}
        command = [PROGRAM, "convert", model, "-o", out, "--target", "ref"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        pid = wait_for_worker(process)
        os.kill(pid if victim == "worker" else process.pid, signal.SIGKILL)
        _, err = process.communicate()
        if victim == "worker":  # the conversion goes on in another
            assert process.returncode == 0, err
            notes = json.loads((out / "manifest.json").read_text())["notes"]
            assert any("killed by SIGKILL" in note for note in notes)
            assert (out / "light_vgg19.mxr").exists()
        else:
            assert {name: (out / name).read_bytes() for name in before} == before
            subprocess.run([PROGRAM, "convert", small, "-o", out, "--target", "ref"], check=True, capture_output=True)
            assert {path.name for path in out.iterdir()} == set(before)  # what the killed one left is swept

    def test_a_full_disk(self, runtime: Runtime, relu: Path, tmp_path: Path) -> None:
        """A file-size limit stands in for the full disk: both fail a write in the middle."""
        out = tmp_path / "out"
        model = tmp_path / "big.onnx"
        weights = np.ones((256, 256), np.float32)
        graph = parser.parse_model(RELU.replace("3]", "256]").replace("Relu(x)", "MatMul(x, w)"))
        graph.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
        onnx.save(graph, model)
        code = (
            "import resource, signal, sys\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
            "from onnx_bridge.cli.main import main; main()"
        )
        # what MIGraphX says of the nodes is known then, so that only the bundle is written
        subprocess.run([PROGRAM, "convert", model, "-o", tmp_path / "known"], check=True, capture_output=True)
        command = [sys.executable, "-c", code, "convert", model, "-o", out, "--target", "ref"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        assert f"{out}: the model cannot be written" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert not out.exists()


class TestRuntimeVerbs:
    def test_list_and_status(self, runtime: Runtime, bridge: Callable[..., Outcome]) -> None:
        outcome = bridge("runtime", "list", "--json")
        assert outcome.code == 0
        assert outcome.json["used"]["version"].count(".") == 2
        assert runtime.version in bridge("runtime", "list").out
        outcome = bridge("runtime", "status", "--json")
        assert outcome.code == 0
        assert outcome.json["passed"] is True
        assert bridge("runtime", "status").code == 0

    def test_a_verb_takes_a_runtime(
        self, runtime: Runtime, bridge: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It comes before the environment's, and holds for the processes that the verb starts."""
        onnx.save(parser.parse_model(RELU), tmp_path / "m.onnx")
        for verb in (
            ("convert", tmp_path / "m.onnx", "-o", tmp_path / "b", "--target", "ref", "--dim", "batch=2"),
            ("verify", tmp_path / "b"),
        ):
            monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
            assert bridge(*verb, "--runtime", runtime.path).code == 0
            assert bridge(*verb, "--runtime", tmp_path / "elsewhere").code in (1, 3)
        assert os.environ[VARIABLE] == str(tmp_path / "elsewhere")

    def test_without_any(
        self, bridge: Callable[..., Outcome], relu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ONNX_BRIDGE_CACHE", str(tmp_path / "cache"))
        assert bridge("runtime", "list").code == 1
        outcome = bridge("convert", relu, "-o", tmp_path / "out")
        one_message(outcome, 3, "onnx-bridge runtime install")

    def test_install_from_a_folder_without_packages(self, bridge: Callable[..., Outcome], tmp_path: Path) -> None:
        one_message(bridge("runtime", "install", "--from", tmp_path), 3, str(tmp_path), "runtime download")

    @pytest.mark.parametrize(
        ("shell", "typed"),
        [
            ("bash", {"COMP_WORDS": "onnx-bridge con", "COMP_CWORD": "1"}),
            ("zsh", {"_TYPER_COMPLETE_ARGS": "onnx-bridge con"}),
            ("fish", {"_TYPER_COMPLETE_ARGS": "onnx-bridge con", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
        ],
    )
    def test_completion_is_offered(self, shell: str, typed: dict[str, str]) -> None:
        environment = {**os.environ, "_ONNX_BRIDGE_COMPLETE": f"complete_{shell}", **typed}
        done = subprocess.run([PROGRAM], env=environment, capture_output=True, text=True, check=False)
        assert "convert" in done.stdout
        assert "clean" not in done.stdout.split()


class TestHowMuchIsSaid:
    """``--quiet`` and ``--verbose``, before the verb or after it."""

    MODEL = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { a = Identity(x) y = Relu(a) }'

    def clean(self, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        onnx.save(parser.parse_model(self.MODEL), tmp_path / "model.onnx")
        command = [sys.executable, "-m", "onnx_bridge", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    def test_quiet(self, tmp_path: Path) -> None:
        for arguments in (["clean", "model.onnx", "--dry-run", "--quiet"], ["-q", "clean", "model.onnx", "--dry-run"]):
            done = self.clean(tmp_path, *arguments)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def test_errors_and_documents_remain(self, tmp_path: Path) -> None:
        failed = self.clean(tmp_path, "clean", "nothing.onnx", "--dry-run", "--quiet")
        assert failed.returncode == 2
        assert failed.stderr
        document = self.clean(tmp_path, "clean", "model.onnx", "--dry-run", "--quiet", "--json")
        assert json.loads(document.stdout)["nodes_after"] == 1

    def test_verbose_has_every_pass(self, tmp_path: Path) -> None:
        short = self.clean(tmp_path, "clean", "model.onnx", "--dry-run").stdout
        long = self.clean(tmp_path, "clean", "model.onnx", "--dry-run", "-v").stdout
        assert "remove-identity" in short
        assert "fuse-gelu" not in short
        assert "fuse-gelu" in long


@pytest.fixture
def found(tmp_path: Path, relu: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what a new user may name: models, the folder of one, a checkpoint without a model, a script."""
    monkeypatch.chdir(tmp_path)
    onnx.save(decoder.decoder(), "decoder.onnx")
    for name, config in (
        ("optimum", {"max_position_embeddings": 32}),
        ("weights", {"architectures": ["XForCausalLM"]}),
    ):
        Path(name).mkdir()
        Path(name, "config.json").write_text(json.dumps(config))
    shutil.copy("decoder.onnx", "optimum/model.onnx")
    Path("weights/model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    Path("make.py").write_text("def net(): ...")
    return tmp_path


@pytest.mark.parametrize("verb", [("convert",), ("doctor",), ("inspect",), ("check",), ("clean", "--dry-run")])
@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("make.py", "onnx-bridge export make.py:FUNCTION -o OUT.onnx"),
        ("weights", "--task text-generation-with-past weights-onnx"),
        ("weights/model.safetensors", "optimum-cli export onnx --model weights --task"),
        ("nothing.onnx", "the folder has decoder.onnx, relu.onnx"),
    ],
)
def test_what_is_no_model_says_what_leads_to_one(
    bridge: Callable[..., Outcome], found: Path, verb: tuple[str, ...], given: str, line: str
) -> None:
    outcome = bridge(verb[0], given, *verb[1:])
    assert outcome.code == 2
    assert line in outcome.err.replace(f"{found}/", "")


@pytest.mark.runtime
@pytest.mark.parametrize(
    ("line", "verbs"),
    [
        ("convert decoder.onnx --as decoder --max-length 64", ("convert", "doctor", "run", "check", "bench")),
        ("convert optimum", ("doctor", "bench", "reduce")),
    ],
)
def test_a_decoder_is_answered_with_the_line_that_converts_it(
    bridge: Callable[..., Outcome], found: Path, line: str, verbs: Sequence[str]
) -> None:
    for verb in verbs:
        outcome = bridge(verb, line.split()[1])
        assert outcome.code == 2
        assert outcome.err.splitlines()[-1] == f"type: onnx-bridge {line}"
    assert bridge(*line.split(), "--prove", "never").code == 0
    assert (found / {"optimum": "optimum-bundle"}.get(line.split()[1], "decoder") / "manifest.json").exists()


@pytest.mark.parametrize(
    ("command", "option", "call"),
    [
        (
            ("convert", "decoder.onnx", "--as", "decoder"),
            ("--max-length", "`max_length`"),
            lambda: onnx_bridge.convert("decoder.onnx", "out", decoder=True),
        ),
        (
            ("convert", "relu.onnx", "-o", "out", "--max-length", 4, "--shape", "x:[1,3]"),
            ("--prefill", "`prefill`"),
            lambda: onnx_bridge.convert("relu.onnx", "out", max_length=4, shapes={"x": (1, 3)}),
        ),
        (
            ("generate", "relu.onnx", "--max-new-tokens", 0),
            ("--max-new-tokens", "max_new_tokens"),
            lambda: onnx_bridge.generate("relu.onnx", [1], 0),
        ),
        (
            ("convert", "relu.onnx", "-o", "out", "--prove-budget", 3, "--prove", "never"),
            ("--prove ", "`prove`"),
            lambda: onnx_bridge.convert("relu.onnx", "out", prove="never", prove_budget=3),
        ),
        (
            ("check", "relu.onnx", "--metric", "top1"),
            ("--data", "`data`"),
            lambda: onnx_bridge.check("relu.onnx", metrics=["top1"]),
        ),
        (
            ("bench", "relu.onnx", "--batch", 0),
            ("--batch: ", "batches: "),
            lambda: onnx_bridge.bench("relu.onnx", batches=[0]),
        ),
        (
            ("convert", "sequence.onnx", "-o", "out"),
            ("--dim length=", "`dims={'length': "),
            lambda: onnx_bridge.convert("sequence.onnx", "out"),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_an_option_is_spelled_as_it_is_given(
    bridge: Callable[..., Outcome],
    found: Path,
    command: tuple[object, ...],
    option: tuple[str, str],
    call: Callable[[], object],
) -> None:
    """As an option on the command line, in Python as a parameter."""
    onnx.save(parser.parse_model(RELU.replace("batch,3", "batch,length")), "sequence.onnx")
    typed, named = option
    error = bridge(*command).err
    assert typed in error
    assert named not in error
    with pytest.raises(InputError) as caught:
        call()
    assert named in str(caught.value)
    assert typed not in str(caught.value)


def test_lines_in_a_file_end_with_their_text(bridge: Callable[..., Outcome], relu: Path) -> None:
    for command in (("inspect", relu), ("passes", "list"), ("docs",), ("cache", "dir")):
        outcome = bridge(*command)
        assert outcome.out
        assert not [line for line in outcome.out.splitlines() if line != line.rstrip()]


def test_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.progress(False, lines=True) as tell:
        assert tell is not None
        tell("unpacking")
    assert capsys.readouterr().err == "unpacking\n"
    with terminal.progress(False) as tell:
        assert tell is None


def test_guesses(bridge: Callable[..., Outcome], relu: Path) -> None:
    assert "--scheme int4-weights" in bridge("convert", relu, "--precision", "int4").err
    assert "did you mean fp16?" in bridge("convert", relu, "--precision", "fp61").err
    assert "guides/onnxruntime" in bridge("docs", "triton").err
    assert "did you mean relu.onnx?" in bridge("run", relu.with_name("rely")).err
