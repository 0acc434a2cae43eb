"""Requests here that go on with the same request of P: the completions of one prompt (`n`).

P frees its blocks when it hears of one reader, so one of them reads. The others wait for that, and find what was read
in the prefix cache, or compute it. Upstream has each of them read, and the later ones may find the blocks reused.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mini_vllm.distributed.kv_transfer.kv_connector.nixl.metadata import RemoteMeta


@dataclass
class _Source:
    members: set[str] = field(default_factory=set)
    reader: str | None = None
    is_over: bool = False


class Sources:
    """Who reads what, by the engine and its name for the request."""

    def __init__(self) -> None:
        self._sources: dict[tuple[str, str], _Source] = {}
        self._key_of: dict[str, tuple[str, str]] = {}

    def add(self, req_id: str, remote: RemoteMeta) -> None:
        """One more that is to go on with it."""
        key = self._key_of[req_id] = remote.engine_id, remote.request_id
        self._sources.setdefault(key, _Source()).members.add(req_id)

    def may_read(self, req_id: str) -> bool | None:
        """Whether a request reads; None: another one does at present."""
        source = self._sources[self._key_of[req_id]]
        if source.reader in (None, req_id):
            return not source.is_over
        return False if source.is_over else None

    def begin(self, req_id: str) -> None:
        """A request reads from now on."""
        self._sources[self._key_of[req_id]].reader = req_id

    def end(self, req_id: str) -> None:
        """A load is over, well or not."""
        source = self._sources.get(self._key_of.get(req_id, ("", "")))
        if source is not None and source.reader == req_id:
            source.is_over = True

    def leave(self, req_id: str) -> bool:
        """A request has ended. True where it was the last, and none has read."""
        self.end(req_id)  # what it still reads, it reads for nobody
        key = self._key_of.pop(req_id, None)
        if key is None:
            return False
        source = self._sources[key]
        source.members.discard(req_id)
        if not source.members:
            del self._sources[key]
        return not source.members and source.reader is None
