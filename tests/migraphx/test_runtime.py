"""Finding runtimes: the precedence of places, and the installed one by every kind of name."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from onnx_bridge.core.errors import RuntimeNotFound
from onnx_bridge.migraphx.runtime import (
    LIBRARY,
    VARIABLE,
    Runtime,
    SearchPlaces,
    choices,
    find,
    installed,
)

MODULE = f"migraphx{EXTENSION_SUFFIXES[0]}"


class Place:
    """A file system with the empty files that a test puts there; only their paths matter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.site = folder / "site-packages"
        self.cache = folder / "cache"

    def put(self, *paths: Path) -> None:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def machine(self, **environment: str) -> SearchPlaces:
        environment = {"ONNX_BRIDGE_CACHE": str(self.cache), "PATH": os.environ["PATH"], **environment}
        return SearchPlaces(environment, (str(self.site), "no-such-folder"), self.root)

    def rocm(self, name: str = "rocm") -> Path:
        return self.root / "opt" / name / "lib"

    def unpacked(self, runtime: Runtime) -> Path:
        """The installed runtime, linked into this file system."""
        self.cache.joinpath("runtimes").mkdir(parents=True, exist_ok=True)
        link = self.cache / "runtimes" / "linked"
        link.mkdir()
        for entry in runtime.path.iterdir():
            (link / entry.name).symlink_to(entry)
        return link


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


class TestOrder:
    def test_no_runtime(self, place: Place) -> None:
        assert installed(place.machine()) == []
        with pytest.raises(RuntimeNotFound, match="onnx-bridge runtime install"):
            find(places=place.machine())

    def test_module_before_system_before_private(self, place: Place, runtime: Runtime) -> None:
        module, system = place.site / MODULE, place.root / "usr/lib/x86_64-linux-gnu" / LIBRARY
        place.put(module, system)
        private = place.unpacked(runtime)
        machine = place.machine()
        assert [one.path for one in installed(machine)] == [module, system, private]
        assert [one.kind for one in installed(machine)] == ["module", "system", "private"]
        assert find(places=machine).path == module

    def test_search_path_before_rocm_and_newest_rocm_first(self, place: Place) -> None:
        folders = [place.site, *map(place.rocm, ("rocm", "rocm-7.10.0", "rocm-7.2.1", "rocm-6.4.3"))]
        place.put(*(folder / MODULE for folder in reversed(folders)))
        assert [one.path.parent for one in installed(place.machine())] == folders

    def test_rocm_library_newest_first(self, place: Place) -> None:
        folders = [place.rocm("rocm-7.10.0"), place.rocm("rocm-7.2.1")]
        place.put(*(folder / LIBRARY for folder in reversed(folders)))
        assert [one.path.parent for one in installed(place.machine())] == folders

    def test_ld_library_path_comes_first_among_libraries(self, place: Place) -> None:
        own = place.folder / "own"
        place.put(own / LIBRARY, place.rocm() / LIBRARY)
        assert find(places=place.machine(LD_LIBRARY_PATH=f"/nowhere:{own}")).path == own / LIBRARY

    def test_a_folder_reached_twice_is_listed_once(self, place: Place) -> None:
        place.put(place.rocm("rocm-7.1.1") / LIBRARY, place.rocm("rocm-7.1.1") / MODULE)
        (place.root / "opt/rocm").symlink_to("rocm-7.1.1")
        assert [one.kind for one in installed(place.machine())] == ["module", "system"]

    def test_the_loaders_cache_is_read(self, place: Place, runtime: Runtime) -> None:
        assert runtime.library is not None
        (place.root / "etc").mkdir(parents=True)
        (place.folder / "conf").write_text(f"{runtime.library.parent}\n")
        ldconfig = next(path for path in ("/sbin/ldconfig", "/usr/sbin/ldconfig") if Path(path).exists())
        cache = place.root / "etc/ld.so.cache"
        subprocess.run([ldconfig, "-X", "-C", cache, "-f", place.folder / "conf"], check=True, capture_output=True)
        assert find("system", place.machine()).path == runtime.library

    def test_placeholder_wheel_and_module_of_another_python_are_ignored(self, place: Place) -> None:
        place.put(place.site / "migraphx/__init__.py", place.site / "migraphx-0.0.1.dist-info/METADATA")
        place.put(place.rocm() / "migraphx.cpython-27-x86_64-linux-gnu.so")
        assert installed(place.machine()) == []

    def test_private_current_first_then_newest(self, place: Place, runtime: Runtime) -> None:
        old = place.unpacked(runtime).rename(place.cache / "runtimes/old")
        new = place.unpacked(runtime).rename(place.cache / "runtimes/new")
        text = (old / "runtime.json").read_text()
        for folder, date in ((old, "2020"), (new, "2030")):
            (folder / "runtime.json").unlink()
            (folder / "runtime.json").write_text(text.replace('"date": "2', f'"date": "{date}-2'))
        (place.cache / "runtimes/.new-half").mkdir()
        (place.cache / "runtimes/no-record").mkdir()
        assert find(places=place.machine()).path == new
        (place.cache / "runtimes/current").symlink_to("old")
        assert find(places=place.machine()).path == old
        assert choices(place.machine())[0].why.startswith("the order is")


class TestNamed:
    def test_kinds(self, place: Place, runtime: Runtime) -> None:
        place.put(place.site / MODULE)
        place.unpacked(runtime)
        assert find("private", place.machine()).kind == "private"
        assert find(places=place.machine(**{VARIABLE: "private"})).kind == "private"
        with pytest.raises(RuntimeNotFound, match=f"{VARIABLE}=system: there is no system runtime"):
            find(places=place.machine(**{VARIABLE: "system"}))

    def test_paths_of_a_private_runtime(self, place: Place, runtime: Runtime) -> None:
        assert runtime.library is not None
        for path in (runtime.path, runtime.library):
            found = find(places=place.machine(**{VARIABLE: str(path)}))
            assert (found.kind, found.path, found.identity) == ("private", runtime.path, runtime.identity)
            assert found.origin == VARIABLE

    def test_a_runtime_unpacked_by_hand(self, place: Place, runtime: Runtime) -> None:
        (place.folder / "usr").symlink_to(runtime.path / "usr")
        found = find(str(place.folder))
        assert (found.kind, found.version, found.targets) == ("private", runtime.version, ("ref",))

    def test_gpu_needs_its_dependencies(self, place: Place) -> None:
        folder = place.folder / "usr/lib/x86_64-linux-gnu"
        place.put(folder / LIBRARY, folder / "ld-linux-x86-64.so.2")
        place.put(*(folder / f"migraphx/lib/libmigraphx_{target}.so.2014000" for target in ("ref", "gpu")))
        assert find(str(place.folder)).targets == ("ref",)
        place.put(folder / "libamdhip64.so.6")
        assert find(str(place.folder)).targets == ("ref", "gpu")

    def test_files_and_folders_of_a_system(self, place: Place) -> None:
        library, module = place.rocm() / LIBRARY, place.rocm() / MODULE
        place.put(library)
        assert find(str(library)).kind == find(str(place.rocm())).kind == "system"
        place.put(module)
        assert find(str(module)).path == find(str(place.rocm())).path == module
        assert find(str(place.root / "opt/rocm")).path == module

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ("privat", "the file or folder does not exist.*did you mean private"),
            ("/nowhere/at/all", "the file or folder does not exist.*one of: module, system, private"),
            (sys.prefix, "neither MIGraphX's Python module"),
            (__file__, "neither MIGraphX's Python module"),
        ],
    )
    def test_a_wrong_value_names_the_variable(self, place: Place, value: str, message: str) -> None:
        place.put(place.site / MODULE)
        machine = place.machine(**{VARIABLE: value})
        with pytest.raises(RuntimeNotFound, match=f"{VARIABLE}={value}: .*{message}"):
            find(places=machine)
        assert [choice.used for choice in choices(machine)] == [False]
        assert VARIABLE in choices(machine)[0].why

    def test_choices_say_why(self, place: Place) -> None:
        place.put(place.site / MODULE, place.rocm() / LIBRARY)
        first, second = choices(place.machine(**{VARIABLE: "system"}))
        assert (first.used, first.runtime.kind, first.why) == (True, "system", f"{VARIABLE} is system")
        assert not second.used
        assert second.why.startswith(f"{place.rocm() / LIBRARY} comes first")


class TestRuntime:
    def test_private_runtime_fields(self, runtime: Runtime) -> None:
        assert runtime.kind == "private"
        assert runtime.version.split(".")[0] == "2"
        assert "ref" in runtime.targets
        assert runtime.identity.startswith(runtime.version)
        assert find(str(runtime.path)) == runtime

    def test_version_of_a_library_is_that_of_the_core_it_links_to(self, place: Place, runtime: Runtime) -> None:
        assert runtime.library is not None
        copy = place.folder / LIBRARY
        copy.write_bytes(runtime.library.read_bytes())
        found = find(str(copy))
        assert (found.kind, found.version) == ("system", runtime.version)
        place.put(place.folder / MODULE)
        assert find(str(place.folder / MODULE)).version == "unknown"

    def test_identity_changes_with_the_files(self, place: Place) -> None:
        core = place.rocm() / "migraphx/lib/libmigraphx.so.2014000"
        place.put(place.rocm() / LIBRARY, core)
        before = find(places=place.machine()).identity
        assert find(places=place.machine()).identity == before
        core.write_bytes(b"another")
        assert find(places=place.machine()).identity != before

    def test_command_loads_the_library_in_the_same_python(self, runtime: Runtime, tmp_path: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
        python = tmp_path / "venv/bin/python"
        assert python.is_symlink()
        script = """if True:
            import ctypes, subprocess, sys, sysconfig
            ctypes.CDLL(sys.argv[1])
            print(sys.executable, sys.prefix, sysconfig.get_paths()["stdlib"], sys.argv[2:], sep="\\n")
            child = [sys.executable, "-c", "import sys; print(sys.prefix)"]
            print(subprocess.run(child, check=True, capture_output=True, text=True).stdout)
            """
        command = runtime.command(python, ["-c", script, str(runtime.library), "one", "two words"])
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        stdlib = sysconfig.get_paths()["stdlib"]
        prefix = str(tmp_path / "venv")
        assert done.stdout.split("\n")[:5] == [str(python), prefix, stdlib, "['one', 'two words']", prefix]

    def test_command_keeps_the_users_library_path_behind_its_own(
        self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/python/lib:")
        command = runtime.command(Path(sys.executable), [])
        folders = command[command.index("--library-path") + 1].split(":")
        assert folders == [*map(str, runtime.library_path), "/opt/python/lib"]

    def test_module_and_system_library_need_no_loader(self, place: Place) -> None:
        place.put(place.site / MODULE, place.rocm() / LIBRARY)
        module, system = installed(place.machine())
        assert module.library is None
        assert system.library == place.rocm() / LIBRARY
        assert system.command(Path("/bin/python"), ["-c", "1"]) == ["/bin/python", "-c", "1"]
