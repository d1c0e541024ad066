"""Installing and removing the private runtime, from the network and from files, and every way it can fail."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from onnx_bridge.core.errors import BridgeError, InputError, RuntimeFailure, RuntimeNotFound
from onnx_bridge.migraphx.install import apt
from onnx_bridge.migraphx.install.debian_packages import GPU_LIBRARIES
from onnx_bridge.migraphx.install.install import download, install, load_error, remove
from onnx_bridge.migraphx.install_record import InstallRecord
from onnx_bridge.migraphx.runtime import Runtime, find, installed

INSTALL = """if True:
    import sys
    from pathlib import Path
    from onnx_bridge.migraphx.install.install import install
    source = Path(sys.argv[1]) if sys.argv[1:] else None
    print(install(source=source, progress=lambda text: print(text, flush=True)).path)
    """


@pytest.fixture(scope="session")
def debs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real packages, downloaded through apt."""
    folder = tmp_path_factory.mktemp("debs")
    download(folder)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own."""
    monkeypatch.setenv("ONNX_BRIDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ONNX_BRIDGE_RUNTIME", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def open_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache that another user can access, unlike pytest's own folders."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("ONNX_BRIDGE_CACHE", folder)
        yield Path(folder)


def private() -> list[Path]:
    return [runtime.path for runtime in installed() if runtime.kind == "private"]


def leftovers(cache: Path) -> list[str]:
    """The content of the folder of runtimes except the lock."""
    return sorted(path.name for path in (cache / "runtimes").glob("*") if path.name != ".lock")


def linked(debs: Path, folder: Path) -> Path:
    """A folder of links to the same packages, for changes."""
    folder.mkdir()
    for deb in debs.glob("*.deb"):
        (folder / deb.name).symlink_to(deb)
    return folder


def package(folder: Path, name: str, architecture: str = "amd64") -> Path:
    """An empty but valid package."""
    source = folder / name
    (source / "DEBIAN").mkdir(parents=True)
    control = f"Package: {name}\nVersion: 1\nArchitecture: {architecture}\nMaintainer: test\nDescription: test\n"
    (source / "DEBIAN/control").write_text(control)
    subprocess.run(["dpkg-deb", "--build", source, folder / f"{name}_1.deb"], check=True, capture_output=True)
    shutil.rmtree(source)
    return folder / f"{name}_1.deb"


def runs_as(user: str, python: str) -> bool:
    """Return whether another user can start this Python."""
    try:
        return subprocess.run([python, "-c", "pass"], user=user, cwd="/", check=False).returncode == 0
    except OSError:
        return False


def started(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", INSTALL, *arguments], stdout=subprocess.PIPE, text=True)


class TestInstall:
    def test_from_the_network_as_an_ordinary_user(self, open_cache: Path) -> None:
        python, environment, user = sys.executable, dict(os.environ), None
        if os.getuid() == 0:
            user = "nobody"
            os.chown(open_cache, pwd.getpwnam(user).pw_uid, -1)
            # root's own Python may be in a folder that nobody else can enter: then take another of the same version
            version = f"python3.{sys.version_info.minor}"
            usual = [f"{folder}/{version}" for folder in ("/usr/local/bin", "/usr/bin")]
            python = next(candidate for candidate in (python, *usual) if runs_as(user, candidate))
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        done = subprocess.run(
            [python, "-c", INSTALL], env=environment, user=user, cwd="/", check=True, capture_output=True, text=True
        )
        assert "downloading" in done.stdout
        runtime = find()
        assert str(runtime.path) == done.stdout.splitlines()[-1]
        assert runtime.path.stat().st_uid == (pwd.getpwnam(user).pw_uid if user else os.getuid())
        assert load_error(runtime) is None
        assert runtime.library is not None
        assert (runtime.library.parent / "libc_malloc_debug.so.0").exists()
        record = InstallRecord.read(runtime.path)
        assert record is not None
        assert (record.suite, record.origin, record.target) == ("sid", "Debian", "ref")
        assert record.damage(runtime.path, thorough=True) == []
        names = {package.name for package in record.packages}
        assert {"libmigraphx-c3", "migraphx-tools", "libc6"} <= names
        assert not [name for name in names if GPU_LIBRARIES.fullmatch(name)]
        assert not list(runtime.path.rglob("libmigraphx_device*"))
        assert leftovers(open_cache) == sorted([runtime.path.name, "current"])

        said: list[str] = []
        assert install(update=True, progress=said.append) == runtime
        assert said[-1] == f"already installed, and the newest: {runtime.path.name}"

    def test_from_files_then_again_then_removed(self, debs: Path, cache: Path) -> None:
        said: list[str] = []
        runtime = install(source=debs, progress=said.append)
        assert said[0].startswith("unpacking")
        assert load_error(runtime) is None
        assert find() == runtime
        record = InstallRecord.read(runtime.path)
        assert record is not None
        assert (record.suite, record.origin) == ("from", str(debs))

        said.clear()
        assert install(source=debs, progress=said.append) == runtime
        assert said == [f"already installed: {runtime.path.name}"]

        (cache / "runtimes/.new-dead").mkdir()
        with pytest.raises(InputError, match="the private runtime does not exist"):
            remove("another")
        assert remove(runtime.path.name) == [runtime.path]
        assert private() == []
        assert leftovers(cache) == []
        assert remove() == []

    def test_installed_suite_needs_no_tools(
        self, runtime: Runtime, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = cache / "runtimes" / runtime.path.name
        shutil.copytree(runtime.path, place, symlinks=True, copy_function=os.symlink)
        record = InstallRecord.read(place)
        assert record is not None
        (place / "runtime.json").unlink()
        replace(record, suite="sid").write(place)
        monkeypatch.setenv("PATH", str(tmp_path))
        assert install().path == place
        with pytest.raises(RuntimeNotFound, match="no apt-get"):
            install(suite="testing")
        assert remove() == [place]

    def test_a_damaged_runtime_is_replaced(self, debs: Path, cache: Path) -> None:
        runtime = install(source=debs)
        core = next(runtime.path.rglob("libmigraphx.so.*.0"))
        os.truncate(core, 10)
        said = load_error(runtime)
        assert said is not None
        assert core.name.removesuffix(".0") in said
        assert install(source=debs) == runtime
        assert load_error(runtime) is None
        assert leftovers(cache) == sorted([runtime.path.name, "current"])

    def test_killed_in_the_middle(self, debs: Path, cache: Path) -> None:
        process = started(debs)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("unpacking")
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert private() == []
        assert leftovers(cache) != []
        runtime = install(source=debs)
        assert private() == [runtime.path]
        assert leftovers(cache) == sorted([runtime.path.name, "current"])

    def test_two_at_once(self, debs: Path, cache: Path) -> None:
        first = started(debs)
        assert first.stdout is not None
        unpacking = first.stdout.readline()
        second, _ = started(debs).communicate()
        rest, _ = first.communicate()
        assert unpacking.startswith("unpacking")
        assert second.splitlines()[0].startswith("waiting")
        assert second.splitlines()[1].startswith("already installed")
        assert second.splitlines()[-1] == rest.splitlines()[-1]
        assert len(private()) == 1


class TestNothingIsLeft:
    """A failure gives one error with a hint, and leaves the folder unchanged."""

    @pytest.fixture(autouse=True)
    def _nothing_left(self, cache: Path) -> Iterator[None]:
        yield
        assert private() == []
        assert leftovers(cache) == []

    def fails(self, kind: type[BridgeError], match: str, **options: object) -> BridgeError:
        with pytest.raises(kind, match=match) as caught:
            install(**options)  # type: ignore[arg-type]
        assert caught.value.hint
        return caught.value

    def test_no_network(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            port = closed.getsockname()[1]
        proxy = f"http://user:secret@127.0.0.1:{port}"
        lines = [f'Acquire::{scheme}::Proxy "{proxy}";\n' for scheme in ("http", "https")]
        (tmp_path / "apt.conf").write_text("".join(lines) + 'Acquire::Retries "0";\n')
        monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
        error = self.fails(RuntimeNotFound, r"cannot be reached: .*Connection refused")
        assert "secret" not in str(error)
        assert "--from" in str(error.hint)

    def test_signed_with_other_keys(self, monkeypatch: pytest.MonkeyPatch) -> None:
        other = next(Path("/usr/share/keyrings").glob("debian-archive-removed-keys.*"))
        monkeypatch.setattr(apt, "KEYRINGS", (other,))
        self.fails(RuntimeNotFound, "signature of Debian's archive does not match")

    def test_no_keys(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(apt, "KEYRINGS", (tmp_path / "none.gpg",))
        self.fails(RuntimeNotFound, "no keys")

    @pytest.mark.parametrize(("suite", "hint"), [("sidd", "did you mean sid"), ("Sid\nX: y", "instance|mean")])
    def test_unknown_suite(self, suite: str, hint: str) -> None:
        self.fails(InputError, f"no such suite.*({hint})", suite=suite)

    def test_suite_without_migraphx(self) -> None:
        self.fails(RuntimeNotFound, "stable has no installable MIGraphX.*suite sid", suite="stable")

    def test_no_apt_and_no_dpkg(self, debs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        self.fails(RuntimeNotFound, "no apt-get.*--from.*ROCm")
        self.fails(RuntimeNotFound, "no dpkg-deb", source=debs)

    def test_no_source_of_debian(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        empty_sources(tmp_path, monkeypatch)
        self.fails(RuntimeNotFound, "none of this machine's apt sources")

    @pytest.mark.parametrize(("module", "value"), [("platform.machine", "aarch64"), ("sys.platform", "darwin")])
    def test_another_architecture(self, monkeypatch: pytest.MonkeyPatch, module: str, value: str) -> None:
        monkeypatch.setattr(module, value if module == "sys.platform" else lambda: value)
        self.fails(RuntimeNotFound, f"{value}.*Linux on x86_64")

    def test_a_musl_python(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
        self.fails(RuntimeNotFound, "glibc")

    def test_too_little_space(self, debs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        usage = type(shutil.disk_usage("/"))(10**9, 9 * 10**8, 10**8)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
        self.fails(RuntimeFailure, "100 MB free, and up to [45].. MB are needed.*ONNX_BRIDGE_CACHE", source=debs)

    def test_disk_full_in_the_middle(self, debs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # a tar that unpacks packages onto a full device, and is the real one where dpkg reads their control data
        program = (
            '#!/bin/sh\ncase "$*" in *--no-same-owner*) exec cat > /dev/full ;; esac\n'
            f'exec {shutil.which("tar")} "$@"\n'
        )
        (tmp_path / "tar").write_text(program)
        (tmp_path / "tar").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        self.fails(RuntimeFailure, "disk is full.*files were removed", source=debs)

    def test_unusable_folder(self, tmp_path: Path, cache: Path) -> None:
        cache.write_text("in the way")
        self.fails(RuntimeFailure, "cannot be used.*ONNX_BRIDGE_CACHE")

    def test_no_such_folder(self, tmp_path: Path) -> None:
        self.fails(InputError, "the folder does not exist", source=tmp_path / "none")

    def test_missing_packages_are_named(self, debs: Path, tmp_path: Path) -> None:
        source = linked(debs, tmp_path / "source")
        for name in ("libsqlite3-0", "zlib1g"):
            next(source.glob(f"{name}_*")).unlink()
        self.fails(RuntimeNotFound, "missing: .*libsqlite3-0.*runtime download", source=source)
        self.fails(RuntimeNotFound, "missing: zlib1g|missing: .*, zlib1g", source=source)
        self.fails(RuntimeNotFound, "missing: .*libamdhip64", source=debs, target="gpu")

    def test_wrong_architecture_and_duplicates(self, debs: Path, tmp_path: Path) -> None:
        source = linked(debs, tmp_path / "source")
        package(source, "libsqlite3-0")
        self.fails(InputError, "libsqlite3-0 is there more than once", source=source)
        next(source.glob("libsqlite3-0_3*")).unlink()
        package(source, "libsqlite3-0", "arm64")
        self.fails(InputError, "for arm64, and amd64 is needed", source=source)

    def test_incompatible_packages(self, debs: Path, tmp_path: Path) -> None:
        source = linked(debs, tmp_path / "source")
        next(source.glob("migraphx-tools_*")).unlink()
        package(source, "migraphx-tools")
        self.fails(RuntimeFailure, r"do not load: .*libmigraphx\S*\.so", source=source)

    def test_a_tampered_package(self, debs: Path, tmp_path: Path) -> None:
        source = linked(debs, tmp_path / "source")
        deb = next(source.glob("libmigraphx-c3_*"))
        content = bytearray(deb.read_bytes())
        middle = len(content) // 2
        content[middle : middle + 1000] = bytes(1000)
        deb.unlink()
        deb.write_bytes(content)
        self.fails(InputError, f"{deb.name}: the package cannot be unpacked", source=source)
        deb.write_bytes(b"<html>not found</html>")
        self.fails(InputError, f"{deb.name}: not a readable package", source=source)


def empty_sources(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give apt other sources without fetched lists; returns the folder of its source files."""
    parts = folder / "parts"
    (folder / "lists/partial").mkdir(parents=True)
    parts.mkdir()
    configuration = (
        f'Dir::Etc::SourceList "/dev/null";\nDir::Etc::SourceParts "{parts}";\nDir::State::Lists "{folder}/lists";\n'
    )
    (folder / "apt.conf").write_text(configuration)
    monkeypatch.setenv("APT_CONFIG", str(folder / "apt.conf"))
    return parts


def test_mirrors_are_read_from_both_forms_of_source_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = empty_sources(tmp_path, monkeypatch)
    (parts / "one.list").write_text(
        "deb http://one.example/linux bookworm main contrib\n"
        "deb [arch=amd64] http://one.example/linux bookworm-updates main\n"
        "deb http://security.example/linux-security bookworm-security main\n"
        "# deb http://off.example/linux bookworm main\n"
        "deb http://third.example/apt bookworm stable\n"
    )
    (parts / "two.sources").write_text(
        "Types: deb deb-src\nURIs: https://two.example/linux/\nSuites: trixie\nComponents: main\n"
    )
    assert apt.mirrors() == ["http://one.example/linux/", "https://two.example/linux/"]
