"""As much of Ray as `engine/core_actors.py` asks for: nodes with CPUs, placement groups, actors that are threads."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import Future, wait
from types import ModuleType, SimpleNamespace
from typing import Any


class ActorDiedError(Exception):
    """As Ray's."""


class _Method:
    def __init__(self, actor: _Actor, name: str) -> None:
        self.actor, self.name = actor, name

    def remote(self, *args: Any) -> Future[Any]:
        found: Future[Any] = Future()

        def run() -> None:
            try:
                result = getattr(self.actor.made, self.name)(*args)
            except BaseException as error:
                result = error
            if not found.done():
                (found.set_exception if isinstance(result, BaseException) else found.set_result)(result)

        self.actor.calls.append(found)
        threading.Thread(target=run, daemon=True, name=self.name).start()
        return found


class _Actor:
    def __init__(self, made: Any) -> None:
        self.made = made
        self.calls: list[Future[Any]] = []

    def __getattr__(self, name: str) -> _Method:
        return _Method(self, name)


class ThreadedRay:
    """A cluster. nodes: CPUs by address, of which `free` are left; the first is the driver's.

    Attributes:
        groups: (node, CPUs) of each placement group that was not given back. actors: in the order of their start.
    """

    def __init__(self, nodes: dict[str, int]) -> None:
        self.cpus, self.is_up = dict(nodes), False
        self.groups: list[Any] = []
        self.actors: list[_Actor] = []

    def free(self) -> dict[str, dict[str, float]]:
        """By node, as `available_resources_per_node`: a node without a free CPU names none."""
        left = dict(self.cpus)
        for group in self.groups:
            left[group.node] -= group.size
        return {node: {"CPU": float(count)} if count else {} for node, count in left.items()}

    def placement_group(self, bundles: list[Any], bundle_label_selector: list[dict[str, str]]) -> Any:
        """On the node that the selector names."""
        assert all(bundle == {"CPU": 1} for bundle in bundles) and len(bundle_label_selector) == len(bundles)
        (node,) = {each["ray.io/node-id"] for each in bundle_label_selector}
        group = SimpleNamespace(node=node, size=len(bundles), wait=lambda seconds: True)
        self.groups.append(group)
        return group

    def remove(self, group: Any) -> None:
        """A second time changes nothing."""
        self.groups = [each for each in self.groups if each is not group]

    def kill(self, actor: _Actor) -> None:
        """Its calls end at once; a core that still runs in it is asked to end."""
        for call in actor.calls:
            if not call.done():
                call.set_exception(ActorDiedError("The actor is dead.\nIt was killed. Some common causes include: x"))
        if actor.made._end.__name__ != "_end_at_once":
            actor.made.end()

    def _remote(self, made: type) -> Any:
        def start() -> _Actor:
            self.actors.append(_Actor(made()))
            return self.actors[-1]

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=start))

    def install(self, monkeypatch: Any) -> ThreadedRay:
        """In the place of Ray's modules."""

        def init() -> None:
            self.is_up = True

        def ready(found: list[Future[Any]], timeout: float) -> Any:
            done = wait(found, timeout).done
            return list(done), [each for each in found if each not in done]

        here, ray = next(iter(self.cpus)), ModuleType("ray")
        described = [
            {"NodeID": node, "Alive": True, "NodeManagerAddress": f"at {node}", "Resources": {"CPU": float(count)}}
            for node, count in reversed(self.cpus.items())
        ]
        vars(ray).update(
            init=init, is_initialized=lambda: self.is_up, nodes=lambda: described, remote=self._remote, kill=self.kill,
            get=lambda found, timeout=None: found.result(timeout), wait=ready,
            get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: here),
        )  # fmt: skip
        util, strategies = ModuleType("ray.util"), ModuleType("ray.util.scheduling_strategies")
        private, state = ModuleType("ray._private"), ModuleType("ray._private.state")
        vars(util).update(
            placement_group=self.placement_group, remove_placement_group=self.remove,
            get_node_ip_address=lambda: "127.0.0.1",
        )  # fmt: skip
        vars(strategies)["PlacementGroupSchedulingStrategy"] = lambda group, placement_group_bundle_index: group
        vars(state)["available_resources_per_node"] = self.free
        vars(ray)["util"] = util
        for module in (ray, util, strategies, private, state):
            monkeypatch.setitem(sys.modules, module.__name__, module)
        return self
