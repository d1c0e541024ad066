"""The engine of a Ray cluster.

A job is a Ray task that streams its events. It requests a CPU, its predicted memory, and, for the target gpu, one
``AMD_GPU``: a resource that nodes with such a card are started with. A job that is lost with its process or node is
reported as a transient failure, and the batch tries it again. Ray's own retries are off: they would restart the stream
without the journal's knowledge.

Before the first job, each node reports what influences its bundles (`onnx_bridge.batch.engines.ray_node.facts`): its
MIGraphX, GPU and version of the passes. Jobs run on the largest group of equal nodes; the others are excluded with a
note. The driver itself needs no MIGraphX.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from onnx_bridge.batch.engines.base import Attempt, Engine, Publish
from onnx_bridge.batch.engines.ray_node import facts, perform_on_node
from onnx_bridge.batch.events import LAST, Converted, Event, Failed, Task, Unsuitable
from onnx_bridge.batch.failure import lost
from onnx_bridge.batch.journal import Journal
from onnx_bridge.core.errors import InputError, RuntimeNotFound, Unreachable
from onnx_bridge.core.files.code_digest import LIBRARIES, code_digest
from onnx_bridge.core.files.digest import canonical_json
from onnx_bridge.core.version import VERSION
from onnx_bridge.migraphx.machine import Machine

GPU = "AMD_GPU"
"""Ray's name of AMD's cards, a resource that their nodes are started with."""
_CONNECT_SECONDS = 5.0
_LOCALHOST = ("localhost", "127.0.0.1", "[::1]")
_FACTS_SECONDS = 120.0
"""Seconds that nodes may take to report their facts, which may be the first task that they run at all."""
_GONE = "the node is gone"
_START = "start it with ray start --resources='{\"AMD_GPU\": 1}'"


class Ray(Engine):
    """A cluster.

    Args:
        address: the address of its head (``host:6379``); ``auto`` for the cluster of this machine; ``local`` for a new
            one on this machine, shut down by `close`; default: ``RAY_ADDRESS``, or ``auto``.
        jobs: how many jobs at a time; default: as many as the cluster can run.

    Raises:
        InputError: Ray is not installed.
        Unreachable: no cluster responds at the address.
    """

    remote = True

    def __init__(self, address: str | None = None, jobs: int | None = None) -> None:
        super().__init__()
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # or the output of raylets would go to standard output
        try:
            import ray
        except ImportError:
            what, hint = "Ray is not installed", "pip install 'onnx-bridge[ray]'"
            raise InputError(what, where="engine", hint=hint) from None
        self._ray: Any = ray
        self._limit = jobs
        self._connected = _connect(address or os.environ.get("RAY_ADDRESS") or "auto")
        self._running = 0
        self._streams: set[Any] = set()
        self._excluded: dict[str, str] = {}
        self._facts: dict[str, dict[str, Any]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def machine(self, target: str) -> tuple[Machine, str]:
        """Return the largest group of equal nodes, among those that have what the target needs."""
        nodes = {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")}
        if target not in ("auto", "gpu", "ref"):
            raise InputError("the target does not exist", where=f"target {target!r}", hint="one of: auto, ref, gpu")
        cards = {name for name, facts in nodes.items() if facts["Resources"].get(GPU)}
        if target == "gpu" and not cards:
            raise RuntimeNotFound(f"no node of the cluster has the resource {GPU}", where="target gpu", hint=_START)
        resolved = "gpu" if cards and target != "ref" else "ref"
        if resolved not in self._facts:
            self._facts[resolved] = self._select(nodes, cards if resolved == "gpu" else set(nodes), resolved)
        return msgspec.convert(self._facts[resolved]["machine"], Machine), resolved

    def _select(self, nodes: Mapping[str, Any], wanted: set[str], target: str) -> dict[str, Any]:
        """Return the facts of the largest group of equal nodes; the other nodes are excluded."""
        facts_by_node = self._collect_facts(wanted)
        groups: dict[str, list[str]] = {}
        for name in sorted(wanted):
            problem = _problem(facts_by_node[name], target) if name in facts_by_node else "the node did not respond"
            if problem is None:
                groups.setdefault(canonical_json(facts_by_node[name]), []).append(name)
            elif problem != _GONE:
                self._excluded[name] = problem
        if not groups:
            reasons = sorted(f"{_name(nodes[name])}: {self._excluded.get(name, _GONE)}" for name in wanted)
            what = f"no node of the cluster can convert: {'; '.join(reasons) or 'there is none'}"
            raise RuntimeNotFound(what, where="engine", hint="on each node: onnx-bridge runtime install")
        chosen = max(groups.values(), key=len)
        for name in {member for names in groups.values() for member in names}.difference(chosen):
            self._excluded[name] = "its MIGraphX, GPU or environment is different from most nodes'"
        self._names = {name: _name(node) for name, node in nodes.items()}
        return facts_by_node[chosen[0]]

    def _collect_facts(self, names: set[str]) -> dict[str, dict[str, Any]]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        pending = {}
        for name in names:
            strategy = NodeAffinitySchedulingStrategy(name, soft=False)
            task = self._ray.remote(_report_facts).options(num_cpus=0, max_retries=2, scheduling_strategy=strategy)
            pending[task.remote()] = name
        ready, _ = (
            self._ray.wait(list(pending), num_returns=len(pending), timeout=_FACTS_SECONDS) if pending else ([], [])
        )
        facts_by_node = {}
        for answer in ready:
            try:
                facts_by_node[pending[answer]] = self._ray.get(answer)
            except (self._ray.exceptions.TaskUnschedulableError, self._ray.exceptions.NodeDiedError):
                facts_by_node[pending[answer]] = {"problem": _GONE}
            except self._ray.exceptions.RayError as error:
                facts_by_node[pending[answer]] = {"problem": f"onnx-bridge does not run on it: {_one_line(error)}"}
        return facts_by_node

    def open(self, journal: Journal, publish: Publish) -> None:
        self._publish = publish

    def choose(self, sizes: Sequence[int]) -> int | None:
        """Return the largest; all are submitted, since Ray queues what the nodes cannot take yet."""
        if not sizes or (self._limit is not None and self._running >= self._limit):
            return None
        return len(sizes) - 1

    def submit(self, job: Any, task: Task, size: int) -> None:
        self._running += 1
        asyncio.run_coroutine_threadsafe(self._follow(Attempt(job, self._publish), task, size), self._loop)

    def wait(self) -> tuple[Any, Event]:
        job, event = super().wait()
        if isinstance(event, LAST):
            self._running -= 1
        return job, event

    def close(self) -> None:
        """Cancel all jobs, and disconnect from the cluster, unless the program was connected before."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._connected:  # any later call of Ray would start a cluster
            self._ray.shutdown()

    async def _stop(self) -> None:
        for stream in list(self._streams):
            with contextlib.suppress(Exception):  # a task that has ended cannot be cancelled
                self._ray.cancel(stream, force=True)
        following = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_default_executor()  # no event is handled afterwards

    @property
    def notes(self) -> list[str]:
        """The excluded nodes, each with the reason."""
        return [f"the node {self._names.get(name, name)} was excluded: {why}" for name, why in self._excluded.items()]

    async def _follow(self, attempt: Attempt, task: Task, size: int) -> None:
        gpu = task.request["conversion"]["target"] == "gpu"
        expected = self._facts["gpu" if gpu else "ref"]
        last: Event = Failed(lost("Lost", "the node reported no result", attempt.stage))
        stream = None
        try:
            stream = self._task(size, gpu, str(attempt.job)).remote(task, expected)
            self._streams.add(stream)
            async for answer in stream:
                node, event = await answer
                if isinstance(event, Unsuitable):
                    self._excluded[node] = event.failure.what
                slow = isinstance(event, Converted)  # the bundle is published
                delivered = await asyncio.to_thread(attempt.handle, event) if slow else attempt.handle(event)
                if isinstance(delivered, LAST):
                    last = delivered
                elif delivered is not None:
                    self.post(attempt.job, delivered)
        except Exception as error:  # Ray's errors have no common base class
            what = f"the job was lost on the cluster: {_one_line(error)}"
            last = Failed(lost(type(error).__name__, what, attempt.stage))
        finally:
            self._streams.discard(stream)
        self.post(attempt.job, last)

    def _task(self, size: int, gpu: bool, name: str) -> Any:
        alive = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        fitting = [resources for resources in alive if resources.get("CPU") and (resources.get(GPU) or not gpu)]
        most = max((int(resources.get("memory", 0)) for resources in fitting), default=0)
        options: dict[str, Any] = {"num_cpus": 1, "memory": min(size, most), "max_retries": 0}
        if gpu:
            options["resources"] = {GPU: 1}
        if self._excluded:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(sorted(self._excluded))})"}
        return self._ray.remote(_run_task).options(num_returns="streaming", name=f"convert {name}", **options)


def _report_facts() -> dict[str, Any]:
    return facts()


def _run_task(task: Task, expected: dict[str, Any]) -> Any:
    """Perform a Ray task; yield the events with the node."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    for event in perform_on_node(task, expected):
        yield node, event


def _problem(reported: Mapping[str, Any], target: str) -> str | None:
    """Return why a node that reported these facts cannot be used; None if it can."""
    if reported["problem"] is not None:
        return str(reported["problem"])
    if target not in reported["machine"]["targets"]:
        return f"its MIGraphX lacks the target {target}"
    if target == "gpu" and reported["machine"]["architecture"] is None:
        return "no AMD GPU that Ray's processes may use"
    if reported["code"] != code_digest():
        return f"its onnx-bridge is not this machine's {VERSION}, or its {', '.join(LIBRARIES)} have other versions"
    return None


def _connect(address: str) -> bool:
    """Connect to a cluster; False if the program was connected before. Raises InputError or Unreachable."""
    import ray

    if ray.is_initialized():
        return False
    where = f"address {address}"
    if "://" in address:
        hint = "run the command on one of its nodes, for example with `ray job submit`"
        raise InputError("a batch must be started on a node of the cluster", where=where, hint=hint)
    hint = "start one with `ray start --head`, or name another: `address='HOST:6379'`, or RAY_ADDRESS"
    if address not in ("auto", "local") and not _responds(address):
        raise Unreachable(f"no Ray cluster responds within {_CONNECT_SECONDS:g} s", where=where, hint=hint)
    before = signal.getsignal(signal.SIGTERM)
    dashboard = False if address == "local" else None  # allowed only if a cluster is started
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=dashboard)
    except Exception as error:  # Ray's errors have no common base class
        raise Unreachable(f"no Ray cluster can be connected to: {_one_line(error)}", where=where, hint=hint) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray replaces the handler
    return True


def _responds(address: str) -> bool:
    """Return whether a server speaks gRPC at the address; Ray would try for minutes, and then exit the program."""
    from ray.util import get_node_ip_address

    host, _, port = address.rpartition(":")
    # as Ray does itself
    host = str(get_node_ip_address()) if host in _LOCALHOST else host.strip("[]")  # type: ignore[no-untyped-call]
    if not host or not port.isdecimal():
        return False
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # an empty SETTINGS frame
    try:
        with socket.create_connection((host, int(port)), _CONNECT_SECONDS) as link:
            link.sendall(preface)
            head = link.recv(9, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(head) == 9 and head[3] == 4  # the server begins with its SETTINGS frame


def _name(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})"


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if hasattr(error, "cause") and lines else lines[0] if lines else "") or type(error).__name__
