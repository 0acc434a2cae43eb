"""The worker's half of a connector around a step, with a connector that notes what it is asked."""

from types import SimpleNamespace

from mini_vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from mini_vllm.outputs import KVConnectorOutput, ModelRunnerOutput
from mini_vllm.worker.kv_connector import ActiveKVConnector, ConnectedAttention


class Noting:
    """calls: names of the methods in their order, with their first argument where it is a text."""

    def __init__(self):
        self.calls, self.ended, self.failed = [], (set(), set()), set()

    def __getattr__(self, name):
        def call(*args):
            self.calls.append((name, args[0]) if args and isinstance(args[0], str) else name)

        return call

    def get_finished(self, finished_req_ids):
        self.calls.append("get_finished")
        return self.ended

    def get_block_ids_with_load_errors(self):
        self.calls.append("get_block_ids_with_load_errors")
        return self.failed


def test_a_layer_is_computed_between_its_load_and_its_save():
    connector = Noting()
    active = ActiveKVConnector(connector)
    active.kv_caches = {"layer.0": "cache 0", "layer.1": "cache 1"}

    def attend(layer, q, k, v):
        connector.calls.append(("attend", layer))
        return q + k + v

    step = ConnectedAttention(SimpleNamespace(begin_step=lambda metadata: attend), active).begin_step(None)
    assert step(1, 1, 2, 3) == 6 and step(0, 1, 1, 1) == 3
    expected = []
    for layer in (1, 0):
        name = f"layer.{layer}"
        expected += [("wait_for_layer_load", name), ("attend", layer), ("save_kv_layer", name)]
    assert connector.calls == expected


def test_what_nobody_has_taken_is_told_in_the_next_step():
    connector = Noting()
    active = ActiveKVConnector(connector)
    connector.ended, connector.failed = ({"a"}, {"b"}), {4}
    active.post_forward(set())
    assert connector.calls.index("wait_for_save") < connector.calls.index("get_finished")
    assert connector.calls[-1] == "clear_connector_metadata"
    connector.ended, connector.failed, connector.calls = (None, {"c"}), {7}, []
    active.post_forward(set(), wait_for_save=False)
    assert "wait_for_save" not in connector.calls
    told = active.report(ModelRunnerOutput([], [])).kv_connector_output
    assert (told.finished_sending, told.finished_recving, told.invalid_block_ids) == ({"a"}, {"b", "c"}, {4, 7})
    assert active.report(ModelRunnerOutput([], [])).kv_connector_output is None


def test_a_transfer_has_ended_when_the_last_rank_says_so():
    def ranks(*reports):
        outputs = [ModelRunnerOutput([], []) for _ in reports]
        for output, ids in zip(outputs, reports, strict=True):
            output.kv_connector_output = KVConnectorOutput(finished_recving=set(ids)) if ids else None
        told = aggregator.aggregate(outputs).kv_connector_output
        return None if told is None else told.finished_recving

    aggregator = KVOutputAggregator(3)
    assert ranks("ab", "a", "") is None
    assert ranks("", "b", "a") == {"a"}
    assert ranks("", "", "ab") == {"b"}  # and "a" begins anew: an id may be used again
    assert ranks("a", "a", "") == {"a"}
