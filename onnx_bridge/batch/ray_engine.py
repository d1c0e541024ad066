"""The jobs of a batch on a Ray cluster.

A job is a Ray task that streams what it has to tell, and asks for a processor, for the memory that it is foreseen to
take, and, for the target gpu, for one ``AMD_GPU``: a resource that nodes with such a card are started with. Ray places
them; what of them is lost, with its process or its node, is told as a failure by chance, and the batch tries it again
elsewhere. Ray's own retries would begin the stream anew in the middle of the old one, and the journal would not know.

Before the first job every node is asked what it brings into a bundle (`onnx_bridge.batch.ray_node.facts`): its
MIGraphX, its GPU, its version of the passes. Jobs go to the nodes that agree with the most others; the rest is left
out, and a note says why. The driver itself needs no MIGraphX.
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

from onnx_bridge.batch.engine import Attempt, Engine, Event, Land, failure
from onnx_bridge.batch.journal import Journal
from onnx_bridge.batch.ray_node import UNLIKE
from onnx_bridge.conversion.keys import canonical, code
from onnx_bridge.core.errors import InputError, RuntimeNotFound, Unreachable
from onnx_bridge.core.version import VERSION
from onnx_bridge.migraphx.machine import Machine

GPU = "AMD_GPU"
"""Ray's name for AMD's cards, which nodes with some are started with."""
_PATIENCE = 5.0
"""Seconds that a cluster may take to answer."""
_HERE = ("localhost", "127.0.0.1", "[::1]")
_FACTS = 120.0
"""Seconds that nodes may take to say what they have, which may be the first thing that they are asked at all."""
_GONE = "it is gone"
_START = "start it with ray start --resources='{\"AMD_GPU\": 1}'"


class Ray(Engine):
    """A cluster.

    Args:
        address: of its head (``host:6379``); ``auto`` for the one that this machine is a node of; ``local`` for one of
            this machine's own, for as long as this lasts; default: what ``RAY_ADDRESS`` says, or ``auto``.
        jobs: how many jobs at a time; default: as many as the cluster can take.

    Raises:
        InputError: Ray is not installed.
        Unreachable: no cluster answers there.
    """

    far = True

    def __init__(self, address: str | None = None, jobs: int | None = None) -> None:
        super().__init__()
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # what raylets say would go to standard output
        try:
            import ray
        except ImportError:
            what, hint = "Ray is not installed", "pip install onnx-bridge[ray]"
            raise InputError(what, where="--engine ray", hint=hint) from None
        self._ray: Any = ray
        self._most = jobs
        self._mine = _connect(address or os.environ.get("RAY_ADDRESS") or "auto")
        self._under_way = 0
        self._streams: set[Any] = set()
        self._left_out: dict[str, str] = {}
        self._agreed: dict[str, dict[str, Any]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def machine(self, target: str) -> tuple[Machine, str]:
        """The nodes that agree with the most others, of those that have what the target needs."""
        nodes = {each["NodeID"]: each for each in self._ray.nodes() if each["Alive"] and each["Resources"].get("CPU")}
        if target not in ("auto", "gpu", "ref"):
            raise InputError("there is no such target", where=f"target {target!r}", hint="one of: auto, ref, gpu")
        cards = {name for name, each in nodes.items() if each["Resources"].get(GPU)}
        if target == "gpu" and not cards:
            raise RuntimeNotFound(f"no node of the cluster has the resource {GPU}", where="target gpu", hint=_START)
        resolved = "gpu" if cards and target != "ref" else "ref"
        if resolved not in self._agreed:
            self._agreed[resolved] = self._agree(nodes, cards if resolved == "gpu" else set(nodes), resolved)
        return Machine.from_json(self._agreed[resolved]["machine"]), resolved

    def _agree(self, nodes: Mapping[str, Any], wanted: set[str], target: str) -> dict[str, Any]:
        told = self._ask(wanted)
        able: dict[str, list[str]] = {}
        for name in sorted(wanted):
            said = told.get(name, {"problem": "it did not answer"})
            if said["problem"] is None and target not in said["machine"]["targets"]:
                said = {"problem": f"its MIGraphX lacks the target {target}"}
            if said["problem"] is None and target == "gpu" and said["machine"]["architecture"] is None:
                said = {"problem": "no AMD GPU that Ray's processes may use"}
            if said["problem"] is None and (said["version"], said["passes"]) != (VERSION, code()):
                said = {"problem": f"another onnx-bridge than this machine's {VERSION}"}
            if said["problem"] is None:
                able.setdefault(canonical(said), []).append(name)
            elif said["problem"] != _GONE:
                self._left_out[name] = said["problem"]
        if not able:
            reasons = sorted(f"{_name(nodes[name])}: {self._left_out.get(name, _GONE)}" for name in wanted)
            what = f"no node of the cluster can convert: {'; '.join(reasons) or 'there is none'}"
            raise RuntimeNotFound(what, where="--engine ray", hint="on each node: onnx-bridge runtime install")
        chosen = max(able.values(), key=len)
        for name in {each for names in able.values() for each in names}.difference(chosen):
            self._left_out[name] = "another MIGraphX, GPU or settings of MIGraphX than most nodes have"
        self._names = {name: _name(each) for name, each in nodes.items()}
        return told[chosen[0]]

    def _ask(self, names: set[str]) -> dict[str, dict[str, Any]]:
        """What nodes bring into bundles."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        pending = {}
        for name in names:
            strategy = NodeAffinitySchedulingStrategy(name, soft=False)
            task = self._ray.remote(_facts).options(num_cpus=0, max_retries=2, scheduling_strategy=strategy)
            pending[task.remote()] = name
        ready, _ = self._ray.wait(list(pending), num_returns=len(pending), timeout=_FACTS) if pending else ([], [])
        told = {}
        for each in ready:
            try:
                told[pending[each]] = self._ray.get(each)
            except (self._ray.exceptions.TaskUnschedulableError, self._ray.exceptions.NodeDiedError):
                told[pending[each]] = {"problem": _GONE}
            except self._ray.exceptions.RayError as error:
                told[pending[each]] = {"problem": f"onnx-bridge does not run on it: {_said(error)}"}
        return told

    def open(self, journal: Journal, land: Land) -> None:
        """Get ready."""
        self._land = land

    def choose(self, sizes: Sequence[int]) -> int | None:
        """The largest, and all that there are: Ray knows what nodes can take, and asks for more of them."""
        if not sizes or (self._most is not None and self._under_way >= self._most):
            return None
        return len(sizes) - 1

    def submit(self, job: Any, task: Mapping[str, Any], size: int) -> None:
        """Have Ray place it."""
        self._under_way += 1
        asyncio.run_coroutine_threadsafe(self._follow(Attempt(job, self._land), task, size), self._loop)

    def wait(self) -> tuple[Any, Event]:
        """The next event, with its job."""
        job, event = super().wait()
        if event["event"] in ("finished", "failed"):
            self._under_way -= 1
        return job, event

    def close(self) -> None:
        """Stop what is under way, and leave the cluster, unless this program was on it before."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._mine:  # from here on, whatever is asked of Ray would start a cluster
            self._ray.shutdown()

    async def _stop(self) -> None:
        for each in list(self._streams):
            with contextlib.suppress(Exception):  # what has ended meanwhile cannot be stopped
                self._ray.cancel(each, force=True)
        following = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_default_executor()  # nothing is published afterwards

    @property
    def notes(self) -> list[str]:
        """Which nodes were left out, and why."""
        return [f"the node {self._names.get(name, name)} was left out: {why}" for name, why in self._left_out.items()]

    async def _follow(self, attempt: Attempt, task: Mapping[str, Any], size: int) -> None:
        """One task, from its beginning to its end."""
        gpu = task["settings"]["target"] == "gpu"
        agreed = self._agreed["gpu" if gpu else "ref"]
        last = failure("Lost", "the node said nothing more of it", attempt.stage)
        stream = None
        try:
            stream = self._task(size, gpu, str(attempt.job)).remote(dict(task), agreed)
            self._streams.add(stream)
            async for each in stream:
                event = await each
                node = event.pop("node")
                if event["event"] == "failed" and event["error"]["kind"] == UNLIKE:
                    self._left_out[node] = event["error"]["what"]
                publishing = event["event"] == "converted"  # which may take its time
                told = await asyncio.to_thread(attempt.told, event) if publishing else attempt.told(event)
                if told is not None and told["event"] in ("finished", "failed"):
                    last = told
                elif told is not None:
                    self._events.put((attempt.job, told))
        except Exception as error:  # Ray's own are not all of one kind
            last = failure(type(error).__name__, f"it was lost on the cluster: {_said(error)}", attempt.stage)
        finally:
            self._streams.discard(stream)
        self._events.put((attempt.job, last))

    def _task(self, size: int, gpu: bool, name: str) -> Any:
        alive = [each["Resources"] for each in self._ray.nodes() if each["Alive"]]
        fitting = [each for each in alive if each.get("CPU") and (each.get(GPU) or not gpu)]
        most = max((int(each.get("memory", 0)) for each in fitting), default=0)
        options: dict[str, Any] = {"num_cpus": 1, "memory": min(size, most), "max_retries": 0}
        if gpu:
            options["resources"] = {GPU: 1}
        if self._left_out:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(sorted(self._left_out))})"}
        return self._ray.remote(_errand).options(num_returns="streaming", name=f"convert {name}", **options)


def _facts() -> dict[str, Any]:
    from onnx_bridge.batch.ray_node import facts

    return facts()


def _errand(task: dict[str, Any], expected: dict[str, Any]) -> Any:
    import ray

    from onnx_bridge.batch.ray_node import errand

    node = ray.get_runtime_context().get_node_id()
    for event in errand(task, expected):
        yield {**event, "node": node}


def _connect(address: str) -> bool:
    """Join a cluster; whether this program was not on one before.

    Raises:
        InputError: the address is of a kind that this does not go with.
        Unreachable: nobody answers there.
    """
    import ray

    if ray.is_initialized():
        return False
    where = f"--address {address}"
    if "://" in address:
        hint = "run the command on one of its nodes, for example with `ray job submit`"
        raise InputError("only programs on a node of the cluster can lead a batch", where=where, hint=hint)
    hint = "start one with `ray start --head`, or name another: --address HOST:6379, or RAY_ADDRESS"
    if address not in ("auto", "local") and not _answers(address):
        raise Unreachable(f"no Ray cluster answers within {_PATIENCE:g} s", where=where, hint=hint)
    before = signal.getsignal(signal.SIGTERM)
    dashboard = False if address == "local" else None  # only who starts a cluster may say
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=dashboard)
    except Exception as error:  # Ray's own have no base in common
        raise Unreachable(f"no Ray cluster can be joined: {_said(error)}", where=where, hint=hint) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # which Ray has put its own in the place of
    return True


def _answers(address: str) -> bool:
    """Whether something speaks gRPC there; Ray itself would try for minutes, and end the program then."""
    from ray.util import get_node_ip_address

    host, _, port = address.rpartition(":")
    # as Ray does itself
    host = str(get_node_ip_address()) if host in _HERE else host.strip("[]")  # type: ignore[no-untyped-call]
    if not host or not port.isdecimal():
        return False
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # with no settings of ours
    try:
        with socket.create_connection((host, int(port)), _PATIENCE) as link:
            link.sendall(preface)
            head = link.recv(9, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(head) == 9 and head[3] == 4  # the settings of the other side come first


def _name(node: Mapping[str, Any]) -> str:
    return f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})"


def _said(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if hasattr(error, "cause") and lines else lines[0] if lines else "") or type(error).__name__
