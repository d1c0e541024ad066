"""Batches on a Ray cluster: three raylets on this machine, an S3 server, and a node that is lost during a batch."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray
from moto.server import ThreadedMotoServer
from ray.cluster_utils import Cluster
from typer.testing import CliRunner

import onnx_bridge
from onnx_bridge.batch.engines import ray as ray_engine
from onnx_bridge.batch.engines import ray_node
from onnx_bridge.batch.engines.ray import Ray
from onnx_bridge.cli.main import app
from onnx_bridge.core.errors import InputError, RuntimeNotFound, Unreachable
from onnx_bridge.core.files.code_digest import code_digest
from onnx_bridge.core.files.locations import RemotePath
from onnx_bridge.migraphx.runtime import Runtime
from tests.batch.requests import convert_all, job
from tests.batch.test_batch import events as events_here
from tests.batch.test_batch import statuses, write
from tests.batch.test_locations import events, upload, with_data

_LIMIT = 240.0
"""Seconds after which a wait has timed out."""

GATE = """
import os, time
from dataclasses import dataclass
from pathlib import Path
from passes import register
from passes.rewriting.base import Pass, Result

@register
@dataclass(frozen=True)
class Gate(Pass):
    '''Waits until it is opened.'''
    name = 'gate'
    def run(self, model, context):
        (Path({folder!r}) / f'at-{{os.getpid()}}').touch()
        while not (Path({folder!r}) / 'open').exists():
            time.sleep(0.05)
        return Result(model)
"""


def wait_for(what: Callable[[], Any], process: subprocess.Popen[str] | None = None) -> Any:
    deadline = time.monotonic() + _LIMIT
    while not (found := what()):
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.05)
    return found


@dataclass
class Nodes:
    """A cluster whose head runs no jobs, and two nodes that run one each, the second of which declares a GPU."""

    cluster: Cluster
    plain: Any
    card: Any

    @property
    def address(self) -> str:
        return str(self.cluster.address)


PLAIN: dict[str, Any] = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 << 20, "memory": 1 << 30}


@pytest.fixture(scope="module")
def surroundings() -> Iterator[pytest.MonkeyPatch]:
    """The environment of all nodes, and of the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        settings = {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "240",
            "RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE": "1",  # where /dev/shm is small
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1,localhost",
        }
        for name, value in settings.items():
            patch.setenv(name, value)
        yield patch


@pytest.fixture(scope="module")
def s3(surroundings: pytest.MonkeyPatch) -> Iterator[RemotePath]:
    """A bucket of a real server."""
    import boto3
    import s3fs

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    surroundings.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    boto3.client("s3").create_bucket(Bucket="models")
    yield RemotePath("s3://models")
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


@pytest.fixture(scope="module")
def nodes(runtime: Runtime, s3: RemotePath, surroundings: pytest.MonkeyPatch) -> Iterator[Nodes]:
    temporary = tempfile.mkdtemp(prefix="r", dir="/tmp")  # names of sockets must be short
    surroundings.setenv("TMPDIR", temporary)  # where Ray has its own, too
    cluster = Cluster(initialize_head=True, head_node_args={**PLAIN, "num_cpus": 0})
    try:
        card = cluster.add_node(**PLAIN, resources={"AMD_GPU": 1})
        yield Nodes(cluster, cluster.add_node(**PLAIN), card)
    finally:
        cluster.shutdown()
        shutil.rmtree(temporary, ignore_errors=True)


def waiting(node: Any, folder: Path) -> list[int]:
    """The processes of a node that wait at the gate."""
    raylet = node.all_processes["raylet"][0].process.pid
    return [pid for each in folder.glob("at-*") if raylet in parents(pid := int(each.name[3:])) and not is_gone(pid)]


def parents(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        while pid > 1:
            stat = Path(f"/proc/{pid}/stat").read_text()
            pid = int(stat.rpartition(")")[2].split()[1])
            found.append(pid)
    return found


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_node_is_lost(nodes: Nodes, s3: RemotePath, tmp_path: Path) -> None:
    """Its jobs are done by other nodes, once; another machine, without MIGraphX, finds nothing left to do."""
    for index in range(4):
        write(tmp_path / f"models/m{index}.onnx", index)
    with_data(tmp_path / "models/sub/external.onnx")
    (tmp_path / "models/broken.onnx").write_text("no model")
    upload(tmp_path / "models", s3 / "lost/models")
    (tmp_path / "gate.py").write_text(GATE.format(folder=str(tmp_path)))
    command = [sys.executable, "-m", "onnx_bridge", "--passes", str(tmp_path / "gate.py"), "convert"]
    command += ["s3://models/lost/models", "-o", "s3://models/lost/out", "--engine", "ray", "--address", nodes.address]
    command += ["--pipeline", "gate,minimal", "--target", "ref", "--json"]
    environment = {**os.environ, "ONNX_BRIDGE_CACHE": str(tmp_path / "first")}
    batch = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        wait_for(lambda: waiting(nodes.plain, tmp_path) and waiting(nodes.card, tmp_path), batch)
        (lost,) = waiting(nodes.plain, tmp_path)
        nodes.cluster.remove_node(nodes.plain, allow_graceful=False)
        wait_for(lambda: is_gone(lost))
        (tmp_path / "open").touch()
        said, errors = batch.communicate()
    finally:
        batch.kill()
        nodes.plain = nodes.cluster.add_node(**PLAIN)
    assert batch.returncode == 1, errors
    results = {each["name"]: each for each in json.loads(said)["jobs"]}
    good = {"m0", "m1", "m2", "m3", "sub/external"}
    assert {name: each["status"] for name, each in results.items()} == {
        **dict.fromkeys(good, "converted"),
        "broken": "failed",
    }
    assert "not an ONNX model" in results["broken"]["error"]["what"]
    recorded = Counter(events(s3 / "lost"))
    assert any(event == "again" for event, _ in recorded)
    assert {name for event, name in recorded.elements() if event == "done"} == good
    assert max(count for (event, _), count in recorded.items() if event in ("done", "failed")) == 1
    assert not (s3 / "lost/out/.batch/staging").files()
    assert set((s3 / "lost/out/.batch/logs").files()) == {f"{name}.log" for name in good}
    bundle = tmp_path / "bundle"
    for name in (s3 / "lost/out/sub/external").files():
        (s3 / "lost/out/sub/external" / name).download(bundle / name)
    onnx_bridge.load(bundle)
    environment["ONNX_BRIDGE_CACHE"] = str(tmp_path / "second")
    again = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert json.loads(again.stdout)["counts"] == {"kept": 5, "skipped": 1}, again.stderr
    new = Counter(events(s3 / "lost")) - recorded
    assert {event for event, _ in new} == {"run", "end"}


@pytest.fixture
def joined(nodes: Nodes) -> Iterator[None]:
    """This program is connected to the cluster, and stays connected when an engine is closed."""
    ray.init(nodes.address, log_to_driver=False, logging_level=logging.ERROR)
    yield
    assert ray.is_initialized()
    ray.shutdown()


def test_a_folder_that_nodes_share(nodes: Nodes, joined: None, tmp_path: Path) -> None:
    write(tmp_path / "models/a.onnx", 0)
    write(tmp_path / "models/sub/b.onnx", 1)
    out, request = tmp_path / "out", job(target="ref", check=True)
    outcome = convert_all([tmp_path / "models"], out, request, engine=Ray(nodes.address))
    assert statuses(outcome) == {"a": "converted", "sub/b": "converted"}
    bundle = onnx_bridge.load(out / "sub/b")
    assert bundle.manifest.source["path"] == str(tmp_path / "models/sub/b.onnx")
    assert sorted(each.name for each in (out / "a").iterdir()) == ["a.mxr", "a.onnx", "manifest.json"]
    assert "compile" in (out / ".batch/logs/a.log").read_text()
    assert not (out / ".batch/staging").exists()
    request = job(target="ref", check=True, atol=0.5)
    outcome = convert_all([tmp_path / "models"], out, request, engine=Ray(nodes.address, jobs=1))
    assert statuses(outcome) == {"a": "checked", "sub/b": "checked"}
    recorded = Counter(events_here(out))
    assert (recorded["done", "a"], recorded["checked", "a"], recorded["start", "a"]) == (1, 2, 2)


def test_jobs_run_on_suitable_nodes(nodes: Nodes) -> None:
    """A job for a GPU runs on the node that declares one; excluded nodes get none."""
    engine = Ray(nodes.address)
    try:

        def where(gpu: bool) -> str:
            """Return where a job runs; the node rejects it, since it expects other facts."""
            node, event = ray.get(next(engine._task(1 << 40, gpu, "a").remote({}, {})))
            assert event.failure.kind == "UnsuitableNode"
            assert event.failure.transient
            return str(node)

        assert where(gpu=True) == nodes.card.node_id
        engine._excluded = {nodes.card.node_id: "it is different"}
        assert where(gpu=False) == nodes.plain.node_id
        engine._excluded = {nodes.plain.node_id: "it is different"}
        assert where(gpu=False) == nodes.card.node_id
        machine, target = engine.machine("ref")
        assert (target, machine.identity) == ("ref", engine._facts["ref"]["machine"]["identity"])
        with pytest.raises(InputError, match="the target does not exist"):
            engine.machine("cuda")
    finally:
        engine.close()
    assert not ray.is_initialized()
    engine.close()


def test_no_suitable_node(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Ray(nodes.address)
    facts: dict[str, Any] = {}
    monkeypatch.setattr(engine, "_collect_facts", lambda names: dict.fromkeys(names, facts))
    try:
        facts |= {"problem": "there is no MIGraphX on this machine"}
        with pytest.raises(RuntimeNotFound, match=r"no node of the cluster can convert: .*no MIGraphX") as error:
            engine.machine("ref")
        assert "runtime install" in str(error.value)
        machine = {"identity": "2", "architecture": None, "environment": {}, "targets": ["ref", "gpu"]}
        facts |= {"problem": None, "machine": machine, "code": code_digest()}
        with pytest.raises(RuntimeNotFound, match="no AMD GPU"):
            engine.machine("gpu")
        monkeypatch.setattr(ray_engine, "GPU", "ANOTHER")
        with pytest.raises(RuntimeNotFound, match="has the resource ANOTHER"):
            engine.machine("gpu")
        assert engine.machine("auto")[1] == "ref"
    finally:
        engine.close()


def test_scratch_folders_of_two_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that starts while another creates its folder does not remove that one as abandoned."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    create, found = tempfile.mkdtemp, []
    second = threading.Thread(target=lambda: found.append(ray_node._scratch.__wrapped__()))

    def create_slowly(dir: Path) -> str:  # named as in tempfile
        folder = create(dir=dir)
        if threading.current_thread() is not second:
            second.start()
            second.join(0.5)
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", create_slowly)
    found.append(ray_node._scratch.__wrapped__())
    second.join()
    assert len(set(found)) == 2
    assert all(folder.is_dir() for folder in found)


class TestWithoutACluster:
    def test_no_cluster_responds(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            monkeypatch.setattr(ray_engine, "_CONNECT_SECONDS", 0.2)
            with pytest.raises(Unreachable, match=r"no Ray cluster responds.*ray start --head"):
                Ray(f"127.0.0.1:{port}")
        with pytest.raises(Unreachable, match=f"127.0.0.1:{port}"):
            Ray(f"127.0.0.1:{port}")
        monkeypatch.setenv("RAY_ADDRESS", "nowhere")
        with pytest.raises(Unreachable, match="nowhere"):
            Ray()

    def test_an_address_of_another_kind(self) -> None:
        with pytest.raises(InputError, match="on a node of the cluster"):
            Ray("ray://127.0.0.1:10001")

    def test_without_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "ray", None)
        with pytest.raises(InputError, match=r"onnx-bridge\[ray\]"):
            Ray()

    @pytest.mark.parametrize(
        ("options", "what"), [(["--address", "a:1"], "--engine ray"), (["--engine", "rai"], "did you mean ray")]
    )
    def test_usage(self, options: list[str], what: str) -> None:
        done = CliRunner().invoke(app, ["convert", "a.onnx", "-o", "out", *options])
        assert isinstance(done.exception, InputError)
        assert what in str(done.exception)
