"""The example connector, but loads end some steps later, in the background, and blocks are kept a while."""

from __future__ import annotations

from dataclasses import dataclass, field

from mini_vllm.distributed.kv_transfer.kv_connector.example_connector import (
    ExampleConnector,
    ExampleConnectorMetadata,
    ReqMeta,
)

STEPS = 3


@dataclass
class BackgroundMetadata(ExampleConnectorMetadata):
    """And the loads that begin, by the ids of their requests; and whose blocks are kept from now on."""

    loads: dict[str, ReqMeta] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)


class BackgroundConnector(ExampleConnector):
    def __init__(self, *args):
        super().__init__(*args)
        self.begun, self.loading, self.kept = {}, set(), []  # the scheduler's half
        self.under_way, self.sending = {}, {}  # the worker's half: id -> [steps left, what]

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        count, _ = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return count, count > 0

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens:
            tracked = self._requests.pop(request.request_id)
            first = self._num_stored(request) - num_external_tokens
            self.begun[request.request_id] = self._meta(tracked, False, first)
            self.loading.add(request.request_id)

    def build_connector_meta(self, scheduler_output):
        begun, kept, self.begun, self.kept = self.begun, self.kept, {}, []
        return BackgroundMetadata(super().build_connector_meta(scheduler_output).requests, begun, kept)

    def update_connector_output(self, connector_output):
        self.loading -= connector_output.finished_recving or set()

    def request_finished(self, request, block_ids):
        if request.request_id in self.loading:
            return False, None
        self.kept.append(request.request_id)
        return True, {"blocks": len(block_ids)}

    def start_load_kv(self, forward_context, **kwargs):
        metadata = self._metadata()
        self.under_way.update({name: [STEPS, meta] for name, meta in metadata.loads.items()})
        self.sending.update(dict.fromkeys(metadata.kept, STEPS))
        stores = metadata.requests
        for entry in self.under_way.values():
            entry[0] -= 1
            if entry[0] == 0:
                metadata.requests = [entry[1]]
                super().start_load_kv(forward_context)
        metadata.requests = stores

    def get_finished(self, finished_req_ids):
        received = {name for name, (left, _) in self.under_way.items() if left <= 0}
        for name in received:
            del self.under_way[name]
        self.sending = {name: left - 1 for name, left in self.sending.items()}
        sent = {name for name, left in self.sending.items() if left <= 0}
        for name in sent:
            del self.sending[name]
        return sent, received
