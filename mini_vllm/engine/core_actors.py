"""Replicas as actors of a Ray cluster, each in a placement group of its own, and its ranks with it.

    this node       front end ── sockets ──┬── placement group: actor with the core and rank 0, actor with rank 1
                    coordinator ───────────┤
    another node                           └── placement group: actor with the core and rank 0, actor with rank 1

Two calls of an actor: `run`, which lasts as long as the core, and `end`. Requests and outputs travel over the sockets
that cores in processes of this machine have too; they are bound to this node's address here.

Upstream twins: `CoreEngineActorManager` in `vllm/v1/engine/utils.py`, `EngineCoreActor` in `vllm/v1/engine/core.py`.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mini_vllm.executor.ray_executor import assert_ray_available, environment_of_ranks
from mini_vllm.utils.checks import shown

if TYPE_CHECKING:
    from mini_vllm.config.vllm import EngineConfig
    from mini_vllm.engine.utils import CoreSetup, EngineZmqAddresses

_GRACE_S = 5.0
_SETTLE_S = 3.0
"""How long a CPU that was given back may take to be seen."""


class EngineCoreActor:
    """The core of one replica, in a process of Ray's.

    Upstream: upstream/vllm/v1/engine/core.py:2160 — `EngineCoreActor`.
    """

    def __init__(self) -> None:
        self._end: Callable[[], None] = _end_at_once

    def pid(self) -> int:
        """Of the process; the answer says that the actor is there."""
        return os.getpid()

    def run(self, payload: bytes, directory: str, environment: Mapping[str, str]) -> int:
        """Serve until the end; returns the exit code that a process would have.

        Args:
            payload: pickles of the addresses and the setup. directory: paths in the setup are relative to it.
        """
        from mini_vllm.engine.core_proc import EngineCoreProc

        os.environ.update(environment)
        with contextlib.suppress(OSError):
            os.chdir(directory)
        try:
            EngineCoreProc.run_engine_core(io.BytesIO(payload), self._keep)
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    def _keep(self, parent: int, end: Callable[[], None]) -> None:
        """In the place of `watch_front_end`: Ray ends the actors of a driver that is gone."""
        self._end = end

    def end(self) -> None:
        """Ask the core to end after the step under way."""
        self._end()


def _end_at_once() -> None:
    os._exit(1)


@dataclass(frozen=True)
class Place:
    """Where a replica will be.

    Attributes:
        placement_group: a CPU for each of its ranks, all on one node. node: the node's address.
    """

    placement_group: Any
    node: str

    def start(self, setup: CoreSetup, addresses: EngineZmqAddresses) -> Any:
        """The core there: what starts it and ends it, as `CoreEngineProcManager` does."""
        return CoreEngineActorManager(self, setup, addresses)

    def give_back(self) -> None:
        """Nothing is there any more; a second call does nothing."""
        import ray
        from ray.util import remove_placement_group

        if ray.is_initialized():
            remove_placement_group(self.placement_group)


class CoreEngineActorManager:
    """One core's actor, from start to end: in the place of a `CoreEngineProcManager`.

    Raises:
        ValueError: something in `setup` cannot be sent. RuntimeError: the actor has not come.

    Upstream: upstream/vllm/v1/engine/utils.py:330 — `CoreEngineActorManager`, which has all actors of an engine.
    """

    def __init__(self, place: Place, setup: CoreSetup, addresses: EngineZmqAddresses) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from mini_vllm.engine.utils import pickled

        payload = pickle.dumps((addresses, 0)) + pickled(replace(setup, place=None))
        self.identity, self._place = addresses.identity, place
        self._owner, self._stopping, self._reason = os.getpid(), False, ""
        self._monitor: threading.Thread | None = None
        strategy = PlacementGroupSchedulingStrategy(place.placement_group, placement_group_bundle_index=0)
        actor_class = ray.remote(EngineCoreActor)  # one call beside `run`
        options = {"num_cpus": 1, "max_concurrency": 2, "scheduling_strategy": strategy}
        self._actor = actor_class.options(**options).remote()
        seconds = setup.config.distributed_timeout_seconds
        try:
            self.pid = f"{ray.get(self._actor.pid.remote(), timeout=seconds)} on {place.node}"
        except Exception as error:
            self.process.kill()
            place.give_back()
            raise RuntimeError(f"a replica's actor has not come on {place.node}: {_cause(error)}") from None
        self._run = self._actor.run.remote(payload, os.getcwd(), environment_of_ranks())

    @property
    def process(self) -> CoreEngineActorManager:
        """What `kill` is asked of."""
        return self

    def kill(self) -> None:
        """End the actor's process now."""
        import ray

        with contextlib.suppress(Exception):
            ray.kill(self._actor)

    def monitor(self, on_death: Callable[[str], None]) -> None:
        """Call `on_death` with what happened, from a thread, as soon as the actor has ended unasked.

        Upstream: upstream/vllm/v1/engine/utils.py:920 — `monitor_engine_liveness`.
        """

        def wait() -> None:
            while not self._stopping and not self._ended_within(1.0):
                pass
            if not self._stopping:
                on_death(self.describe_end())

        self._monitor = threading.Thread(target=wait, daemon=True, name="MPClientEngineMonitor")
        self._monitor.start()

    def _ended_within(self, seconds: float) -> bool:
        import ray

        return not ray.is_initialized() or bool(ray.wait([self._run], timeout=seconds)[0])

    def describe_end(self) -> str:
        """How the actor ended, in words; that it runs, while it does."""
        import ray

        who = f"its process {self.pid}"
        if not ray.is_initialized():
            return f"{who} is gone with the connection to Ray"
        if not self._ended_within(0):
            return f"{who} cannot be reached"
        try:
            return f"{who} ended with exit code {ray.get(self._run)}"
        except Exception as error:
            return f"{who} is gone: {_cause(error)}"

    def ask_to_end(self) -> None:
        """Without a wait: `shutdown` waits."""
        import ray

        if not self._stopping and ray.is_initialized():
            with contextlib.suppress(Exception):
                self._actor.end.remote()
        self._stopping = True

    def shutdown(self) -> None:
        """Ask the actor to end, and wait; then make it, and give its place back. Nothing in a forked child."""
        import ray

        if os.getpid() != self._owner:
            return
        self.ask_to_end()
        if ray.is_initialized():
            self._ended_within(_GRACE_S)
            self.kill()
            self._place.give_back()


def _cause(error: Exception) -> str:
    """The line of Ray's report that says why, without what it advises."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = re.split(r" Some common causes| The task may or may not", lines[-1])[0] if lines else "no more is known"
    return f"{type(error).__name__}: {said}"


def connect(config: EngineConfig) -> str:
    """Be a driver of a Ray cluster. Returns this node's address, under which other nodes reach it.

    Raises:
        ValueError: Ray is not installed, or is asked for what is not built.
    """
    assert_ray_available("data_parallel_backend")
    if (strategy := os.environ.get("VLLM_RAY_DP_PACK_STRATEGY", "fill")) != "fill":
        raise ValueError(
            f"VLLM_RAY_DP_PACK_STRATEGY must be 'fill' or unset, got {shown(strategy)}: a replica is on one node, and "
            "there are as many of them on each as it has room for"
        )
    import ray

    if not ray.is_initialized():
        ray.init()
    return str(ray.util.get_node_ip_address())


def create_dp_placement_groups(config: EngineConfig, count: int) -> list[Place]:
    """Places for `count` replicas more: this node is filled first, then the others.

    Raises:
        ValueError: there are not so many; says what there is. RuntimeError: Ray has not given them in time.

    Upstream: upstream/vllm/v1/engine/utils.py:481 — `create_dp_placement_groups`, and :675 —
    `add_dp_placement_groups`.
    """
    from ray.util import placement_group

    ranks = config.tensor_parallel_size * config.pipeline_parallel_size
    bundles = [{"CPU": 1}] * ranks
    places = []
    for node_id, address in _find_room(count, ranks):
        selector = [{"ray.io/node-id": node_id}] * ranks
        places.append(Place(placement_group(bundles, bundle_label_selector=selector), address))
    end = time.monotonic() + config.distributed_timeout_seconds
    for place in places:
        if not place.placement_group.wait(max(0.1, end - time.monotonic())):
            for each in places:
                each.give_back()
            raise RuntimeError(
                f"Ray has not given {ranks} CPUs on {place.node} in {config.distributed_timeout_seconds:g} s: others "
                "were faster"
            )
    return places


def _find_room(count: int, ranks: int) -> list[tuple[str, str]]:
    """(id, address) of a node for each of `count` replicas."""
    import ray
    from ray._private.state import available_resources_per_node

    here, deadline = ray.get_runtime_context().get_node_id(), time.monotonic() + _SETTLE_S
    while True:
        nodes = sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: node["NodeID"] != here)
        free = available_resources_per_node()
        found = [
            (node["NodeID"], node["NodeManagerAddress"])
            for node in nodes
            for _ in range(int(free.get(node["NodeID"], {}).get("CPU", 0)) // ranks)
        ]
        could = sum(int(node["Resources"].get("CPU", 0)) // ranks for node in nodes)
        if len(found) >= count:
            return found[:count]
        if could < count or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    said = ", ".join(
        f"{free.get(node['NodeID'], {}).get('CPU', 0):g} of {node['Resources'].get('CPU', 0):g} CPUs free on "
        f"{node['NodeManagerAddress']}"
        for node in nodes
    )
    raise ValueError(
        f"data_parallel_size needs places for {count} replica{'s' * (count > 1)} in the Ray cluster, with {ranks} free "
        f"CPU{'s' * (ranks > 1)} on one node for each, and there are {len(found)}: {said}"
    )
