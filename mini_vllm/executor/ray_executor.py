"""Ranks as actors of a Ray cluster, in a placement group: Ray finds the machines, starts the ranks and ends them.

    driver's node    bundle 0: rank 0, which is the engine's process    bundle 1: actor, rank 1
    another node     bundle 2: actor, rank 2                            bundle 3: actor, rank 3

No call of an actor belongs to a step: it would cost a millisecond, which is a step of a small model. One call for each
actor runs the busy loop of `node_workers.py` until the engine ends. Ranks of one node share memory; others have TCP.

Upstream twin: `vllm/v1/executor/ray_executor.py`, with upstream/vllm/v1/executor/ray_utils.py:526 —
`initialize_ray_cluster`. All ranks are actors there, and a compiled graph of Ray's brings them a step.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.process import current_process
from pathlib import Path
from typing import Any

from mini_vllm.config.resolved_model import ResolvedModel
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.distributed import rendezvous
from mini_vllm.executor.multiproc_executor import MultiprocExecutor
from mini_vllm.executor.node_workers import NodeWorkers, make_groups_in_memory, serve_rank
from mini_vllm.executor.pipeline_executor import PipelineExecutor

_GOODBYE_S = 5.0
_ENVIRONMENT = ("VLLM_", "MINI_VLLM_")
_OWN = ("VLLM_HOST_IP", "VLLM_HOST_PORT")


def assert_ray_available(argument: str = "distributed_executor_backend") -> None:
    """Raises ValueError where Ray is not installed, as upstream/vllm/v1/executor/ray_utils.py:268."""
    try:
        from ray import is_initialized  # noqa: F401  # a mere folder named `ray`, as /tmp has, can be imported
    except ImportError as error:
        raise ValueError(f"{argument}='ray' needs Ray ({error}): pip install 'mini-vllm[ray]'") from None


def environment_of_ranks() -> dict[str, str]:
    """The engine's variables, for a process that Ray starts; not those of this machine."""
    return {name: value for name, value in os.environ.items() if name.startswith(_ENVIRONMENT) and name not in _OWN}


class RankActor:
    """One rank in a process of Ray's. Made an actor by `RayWorkers`."""

    def make_groups(self, settings: bytes, ranks: tuple[int, ...]) -> None:
        """The groups in shared memory of a node where the engine is not; this actor's rank is the first of `ranks`."""
        config, resolved_model = pickle.loads(settings)
        self.in_memory = make_groups_in_memory(config, resolved_model, ranks)

    def hand_over(self) -> tuple[bytes, bytes]:
        """The groups for one other actor of this node."""
        return hand_over(self.in_memory)

    def run(
        self, rank: int, settings: bytes, address: tuple[str, int], in_memory: tuple[bytes, bytes] | None,
        environment: Mapping[str, str],
    ) -> None:  # fmt: skip
        """Serve the rank until the engine is gone. in_memory: from `hand_over`; None: those that this actor has made.

        Raises:
            RendezvousError: the ranks have not met.
        """
        os.environ.update(environment)
        if in_memory is not None:
            current_process().authkey, data = in_memory
            self.in_memory = pickle.loads(data)
        with contextlib.suppress(EOFError, OSError):  # rank 0 has closed the connection
            serve_rank(rank, os.getppid(), settings, address, getattr(self, "in_memory", {}))


def hand_over(in_memory: Mapping[int, Any]) -> tuple[bytes, bytes]:
    """What another process of this machine needs to have the same memory: file descriptors are sent when it asks, by a
    thread of this process, to whoever knows the key. Once for each."""
    return bytes(current_process().authkey), pickle.dumps(in_memory)


class RayWorkers(NodeWorkers):
    """See `LocalWorkers`.

    Raises:
        ValueError: Ray is not installed, or there is but one rank.
    """

    def __init__(self, config: EngineConfig, resolved_model: ResolvedModel) -> None:
        assert_ray_available()
        where = Path(resolved_model.model).resolve()  # an actor's working directory is another
        super().__init__(config, replace(resolved_model, model=type(resolved_model.model)(where)))
        self.main_is_there = False
        self._actors: list[Any] = []
        self._runs: list[Any] = []
        self._placement_group: Any = None
        self._is_owner = True

    def _bind(self) -> socket.socket:
        import ray

        if not ray.is_initialized():
            ray.init()
        return rendezvous.bind(ray.util.get_node_ip_address(), 0)

    def _start_processes(self, address: tuple[str, int]) -> Mapping[int, Any]:
        """An actor for each rank from 1 on."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundles = self._reserve()
        actor_class = ray.remote(RankActor)
        for bundle, _ in bundles[1:]:
            strategy = PlacementGroupSchedulingStrategy(self._placement_group, placement_group_bundle_index=bundle)
            self._actors.append(actor_class.options(num_cpus=1, scheduling_strategy=strategy).remote())
        nodes: dict[str, list[int]] = {}
        for rank, (_, node) in enumerate(bundles):
            nodes.setdefault(node, []).append(rank)
        environment = environment_of_ranks()
        own, groups = self._share_memory(nodes)
        for rank, actor in enumerate(self._actors, 1):
            self._runs.append(actor.run.remote(rank, self.settings, address, groups.get(rank), environment))
        return own

    def _share_memory(self, nodes: Mapping[str, list[int]]) -> tuple[Mapping[int, Any], dict[int, tuple[bytes, bytes]]]:
        """The first rank of each node makes the groups that are whole there; what the others get of it, by rank, and
        those of rank 0 itself. Before the busy loops begin: an actor takes call by call."""
        import ray

        own: Mapping[int, Any] = {}
        groups: dict[int, tuple[bytes, bytes]] = {}
        for first, *others in nodes.values():
            if first == 0:
                own = make_groups_in_memory(self.config, self.resolved_model, (first, *others))
                groups.update((rank, hand_over(own)) for rank in others)
                continue
            actor = self._actors[first - 1]
            ray.get(actor.make_groups.remote(self.settings, (first, *others)))
            groups.update((rank, ray.get(actor.hand_over.remote())) for rank in others)
        return own, groups

    def _reserve(self) -> list[tuple[int, str]]:
        """A CPU for each rank: by rank, the bundle of the placement group and its node. The first is here; ranks of a
        node come one after the other. A replica that Ray has placed has them already (`engine/core_actors.py`).

        Raises:
            ValueError: the cluster has not so many. RuntimeError: it has, but others use them.
        """
        import ray
        from ray.util import get_current_placement_group, placement_group

        if (mine := get_current_placement_group()) is not None:
            self._placement_group, self._is_owner = mine, False
            return [(bundle, ray.get_runtime_context().get_node_id()) for bundle in range(self.world_size)]
        found, here = int(ray.cluster_resources().get("CPU", 0)), ray.get_runtime_context().get_node_id()
        if found < self.world_size:
            raise ValueError(
                f"the Ray cluster has {found} CPUs, and each of the {self.world_size} ranks of "
                f"tensor_parallel_size={self.config.tensor_parallel_size} and "
                f"pipeline_parallel_size={self.config.pipeline_parallel_size} needs one"
            )
        selector: list[dict[str, str]] = [{"ray.io/node-id": here}, *[{} for _ in range(self.world_size - 1)]]
        self._placement_group = placement_group([{"CPU": 1}] * self.world_size, bundle_label_selector=selector)
        seconds = self.config.distributed_timeout_seconds
        if not self._placement_group.wait(seconds):
            raise RuntimeError(
                f"Ray has not found {self.world_size} free CPUs, one of them on the engine's node, in {seconds:g} s"
            )
        nodes = ray.util.placement_group_table(self._placement_group)["bundles_to_node_id"]
        order = sorted(nodes, key=lambda bundle: (bundle != 0, nodes[bundle] != here, nodes[bundle], bundle))
        return [(bundle, nodes[bundle]) for bundle in order]

    def _check(self) -> None:
        import ray

        ended, _ = ray.wait(self._runs, timeout=0) if self._runs else ([], [])
        if ended:
            try:
                ray.get(ended[0])
            except Exception as error:
                raise RuntimeError(f"an actor has ended before all ranks met: {error}") from None
            raise RuntimeError("an actor has ended before all ranks met")

    def end(self, owner: int) -> None:
        """Close the connections, which ends every rank; then the actors and the placement group go. The cluster, and
        this process's connection to it, stay."""
        super().end(owner)
        if os.getpid() != owner or not self._placement_group:
            return
        import ray
        from ray.util import remove_placement_group

        if ray.is_initialized():
            if self._runs:
                ray.wait(self._runs, num_returns=len(self._runs), timeout=_GOODBYE_S)
            for actor in self._actors:
                ray.kill(actor)
            if self._is_owner:
                remove_placement_group(self._placement_group)
        self._placement_group = None


class RayDistributedExecutor(MultiprocExecutor):
    """`MultiprocExecutor` whose ranks are actors.

    Upstream: upstream/vllm/v1/executor/ray_executor.py:64 — `RayDistributedExecutor`.
    """

    def _make_workers(self) -> RayWorkers:
        return RayWorkers(self.config, self.resolved_model)


class RayPipelineExecutor(PipelineExecutor):
    """`PipelineExecutor` whose ranks are actors."""

    def _make_workers(self) -> RayWorkers:
        return RayWorkers(self.config, self.resolved_model)
