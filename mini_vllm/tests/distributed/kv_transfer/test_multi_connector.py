"""Two connectors as one: who loads, that both save, who keeps blocks, and what becomes of a load that fails."""

from types import SimpleNamespace

import pytest

from mini_vllm import LLM
from mini_vllm.config.kv_transfer import KVTransferConfig
from mini_vllm.config.vllm import EngineConfig
from mini_vllm.core.kv_cache_groups import make_kv_cache_config
from mini_vllm.distributed.kv_transfer.kv_connector import KVConnectorRole
from mini_vllm.distributed.kv_transfer.kv_connector.multi_connector import (
    MultiConnector,
    MultiKVConnectorMetadata,
    MultiKVConnectorWorkerMetadata,
)
from mini_vllm.distributed.kv_transfer.kv_connector.offloading.common import OffloadingWorkerMetadata
from mini_vllm.outputs import KVConnectorOutput
from mini_vllm.tests.distributed.kv_transfer.offloading import (
    GREEDY,
    MIB,
    check_host,
    conversations,
    hits_of,
    make,
    save,
    serve,
    tokens_of,
)

PROMPTS = conversations()


def settings(folder, order=("ExampleConnector", "OffloadingConnector"), policy="recompute"):
    extra = {"ExampleConnector": {"shared_storage_path": str(folder)}, "OffloadingConnector": {"cpu_bytes_to_use": MIB}}
    connectors = [{"kv_connector": n, "kv_role": "kv_both", "kv_connector_extra_config": extra[n]} for n in order]
    return {
        "kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_load_failure_policy": policy,
        "kv_connector_extra_config": {"connectors": connectors},
    }  # fmt: skip


def make_multi(folder, store, num_blocks=40, **more):
    transfer = settings(store, **{k: more.pop(k) for k in ("order", "policy") if k in more})
    return LLM(
        str(folder), kv_transfer_config=transfer, dtype="float64", block_size=4, num_blocks=num_blocks, **more
    )  # fmt: skip


def children_of(llm):
    return llm.llm_engine.scheduler.connector.connector._connectors


def run(llm, rounds=1):
    """As `serve`, which looks at one connector alone."""
    outputs = [output for _ in range(rounds) for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]
    core = llm.llm_engine.engine_core
    while core.has_requests() or core.batch_queue:
        core.step_fn()
    assert core.kv_cache_manager.block_pool.get_num_free_blocks() == core.num_blocks - 1
    half = next(child for child in children_of(llm) if hasattr(child, "connector_scheduler")).connector_scheduler
    assert not half._jobs.jobs and not half._req_status
    check_host(half.manager)
    return outputs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="module")
def plain(folder):
    return tokens_of(serve(make(folder, offload=False), PROMPTS, rounds=1))


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    "order", [("ExampleConnector", "OffloadingConnector"), ("OffloadingConnector", "ExampleConnector")]
)
def test_the_first_that_has_tokens_loads_and_both_save(order, ahead, folder, plain, tmp_path):
    llm = make_multi(folder, tmp_path, order=order, async_scheduling=ahead)
    assert tokens_of(run(llm)) == plain
    assert len(list(tmp_path.iterdir())) == len(PROMPTS), "all prompts are files"
    host = next(child for child in children_of(llm) if hasattr(child, "connector_scheduler"))
    assert host.connector_scheduler.manager._num_allocated_blocks >= 6 * 10 - 5 * 2, "and all their blocks in the host"
    before = hits_of(llm)
    llm.reset_prefix_cache()
    assert tokens_of(run(llm)) == plain and hits_of(llm) > before
    worker = llm.llm_engine.engine_core.model_runner.kv_connector.kv_connector
    loaded = next(c for c in worker._connectors if hasattr(c, "connector_worker")).connector_worker.num_bytes
    assert (loaded["CPU", "GPU"] > 0) == (order[0] == "OffloadingConnector")


def test_another_engine_finds_the_files_and_fills_its_own_host(folder, plain, tmp_path):
    run(make_multi(folder, tmp_path))
    llm = make_multi(folder, tmp_path, num_blocks=18)
    outputs = run(llm, rounds=2)
    assert tokens_of(outputs) == plain * 2 and outputs[0].num_cached_tokens == 32


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_what_was_computed_on_a_damaged_file_is_not_kept_in_the_host(policy, ahead, folder, plain, tmp_path):
    run(make_multi(folder, tmp_path))
    for file in tmp_path.glob("*/*.safetensors"):
        file.write_bytes(file.read_bytes()[:-5])
    order = "OffloadingConnector", "ExampleConnector"
    llm = make_multi(folder, tmp_path, order=order, policy=policy, async_scheduling=ahead)
    first = run(llm)
    reasons = [output.outputs[0].finish_reason for output in first]
    assert ("error" in reasons) == (policy == "fail")
    for _ in range(2):
        llm.reset_prefix_cache()
        again = run(llm)
        good = [i for i, output in enumerate(again) if output.outputs[0].finish_reason != "error"]
        assert [tokens_of(again)[i] for i in good] == [plain[i] for i in good]
    assert tokens_of(again) == plain


def test_all_of_them_forget(folder, plain, tmp_path):
    llm = make_multi(folder, tmp_path, order=("OffloadingConnector", "ExampleConnector"))
    run(llm)
    assert llm.reset_prefix_cache(reset_connector=True)
    for path in tmp_path.iterdir():
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    before = hits_of(llm)
    assert tokens_of(run(llm)) == plain and hits_of(llm) == before


class Child:
    """Says what it is told to say."""

    def __init__(self, count=0, in_background=False, kept=False, params=None, sent=(), meta=None):
        self.answer, self.ended, self.sent, self.meta = (count, in_background), (kept, params), list(sent), meta
        self.told = []

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self.answer

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self.told.append((len(blocks.blocks[0]), num_external_tokens))

    def request_finished(self, request, block_ids):
        return self.ended

    def build_connector_meta(self, output):
        return "plan"

    def bind_connector_metadata(self, metadata):
        self.told.append(metadata)

    def get_finished(self, finished_req_ids):
        return (self.sent.pop(0) if self.sent else None), None

    def build_connector_worker_meta(self):
        return self.meta

    def update_connector_output(self, output):
        self.told.append(output.kv_connector_worker_meta)


def multi_of(*children):
    config = EngineConfig(kv_transfer_config=settings("/tmp"), num_blocks=8)
    multi = MultiConnector.__new__(MultiConnector)
    multi._connectors, multi._requests_to_connector, multi._extra_async_saves = list(children), {}, {}
    multi._connector_metadata = None
    assert config.disable_hybrid_kv_cache_manager, "one of the two knows one group alone"
    return multi


REQUEST = SimpleNamespace(request_id="a")


def test_the_chosen_one_gets_the_blocks():
    none, first, second = Child(), Child(8, True), Child(4)
    multi = multi_of(none, first, second)
    assert multi.get_num_new_matched_tokens(REQUEST, 0) == (8, True)
    blocks = SimpleNamespace(blocks=([1, 2, 3],))
    multi.update_state_after_alloc(REQUEST, blocks, 8)
    assert (none.told, first.told, second.told) == ([(0, 0)], [(3, 8)], [(0, 0)])
    second.answer = None, False
    assert multi.get_num_new_matched_tokens(REQUEST, 0) == (None, False), "one does not know yet"
    none.answer = first.answer = second.answer = 0, False
    assert multi.get_num_new_matched_tokens(REQUEST, 0) == (0, False)
    multi.update_state_after_alloc(REQUEST, blocks, 0)
    assert first.told[-1] == (0, 0), "who loaded for an earlier admission is not chosen any more"


def test_blocks_are_kept_until_all_that_keep_them_have_sent_them():
    multi = multi_of(Child(kept=True, sent=[{"a"}]), Child(), Child(kept=True, sent=[None, {"a"}]))
    assert multi.request_finished(REQUEST, [1]) == (True, None)
    plan = multi.build_connector_meta(None)
    assert plan == MultiKVConnectorMetadata(("plan",) * 3, {"a": 1})
    assert multi.build_connector_meta(None).extra_async_saves == {}, "said once"
    multi.bind_connector_metadata(plan)
    assert multi.get_finished(set()) == (None, None)
    assert multi.get_finished(set()) == ({"a"}, None)
    assert multi._extra_async_saves == {}


def test_one_of_them_may_say_something_at_the_end():
    said = {"remote": 1}
    assert multi_of(Child(), Child(params=said)).request_finished(REQUEST, [1]) == (False, said)
    with pytest.raises(RuntimeError, match="Only one connector can produce KV transfer params"):
        multi_of(Child(params=said), Child(params=said)).request_finished(REQUEST, [1])


def test_reports_of_the_ranks_are_summed_up_for_each():
    def report(*jobs):
        return OffloadingWorkerMetadata(dict.fromkeys(jobs, 1)) if jobs else None

    one, other = (MultiKVConnectorWorkerMetadata(parts) for parts in ((report(1), None), (report(1, 2), report(5))))
    both = one.aggregate(other)
    assert [part.completed_jobs for part in both.metadata] == [{1: 2, 2: 1}, {5: 1}]
    children = Child(meta=report(3)), Child()
    multi = multi_of(*children)
    meta = multi.build_connector_worker_meta()
    assert meta.metadata[1] is None
    output = KVConnectorOutput(kv_connector_worker_meta=meta)
    multi.update_connector_output(output)
    assert children[0].told[0].completed_jobs == {3: 1} and children[1].told == [None]
    assert output.kv_connector_worker_meta is meta
    assert multi_of(Child(), Child()).build_connector_worker_meta() is None


@pytest.mark.parametrize(
    ("connectors", "message"),
    [
        (None, r"\['connectors'\] must be a list of at least one connector's settings, got None"),
        ([], "must be a list of at least one"),
        ([{}], r"\['connectors'\]\[0\] must name a kv_connector"),
        ([{"kv_connector": "ExampleConnector"}], "kv_role must be given"),
        ([{"kv_connector": "ExampleConnector", "kv_role": "kv_both", "nobody": 1}], "unknown key 'nobody'"),
        ([{"kv_connector": "ExampelConnector", "kv_role": "kv_both"}], "did you mean 'ExampleConnector'"),
    ],
)
def test_settings_that_cannot_be_are_refused(connectors, message):
    transfer = {**settings("/tmp"), "kv_connector_extra_config": {"connectors": connectors}}
    with pytest.raises(ValueError, match=message):
        EngineConfig(kv_transfer_config=transfer)


def test_names_of_the_engine_and_ranks(tmp_path):
    given = settings(tmp_path)
    given["kv_connector_extra_config"]["connectors"][1]["engine_id"] = "mine"
    config = KVTransferConfig(**given, engine_id="theirs")
    assert [child.engine_id for child in MultiConnector.child_configs(config)] == ["theirs", "mine"]
    with pytest.raises(ValueError, match="tensor_parallel_size must be 1"):
        EngineConfig(kv_transfer_config=given, tensor_parallel_size=2)
    of_host = settings(tmp_path, order=("OffloadingConnector",))
    config = EngineConfig(kv_transfer_config=of_host, tensor_parallel_size=2)
    assert not config.disable_hybrid_kv_cache_manager
    with pytest.raises(ValueError, match="needs a model with keys and values"):
        MultiConnector(config, KVConnectorRole.SCHEDULER, make_kv_cache_config(8, 4))
