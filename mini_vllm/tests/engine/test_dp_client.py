"""Several replicas behind one client: who gets a request, and what goes to all. The cores are threads here."""

import ast
import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mini_vllm import LLM, AsyncLLM, LLMEngine, SamplingParams
from mini_vllm.engine import EngineCoreRequest
from mini_vllm.lora.request import LoRARequest
from mini_vllm.tests.engine.async_helpers import collect
from mini_vllm.tests.engine.core_thread import CoreThread
from mini_vllm.tests.engine.engines import greedy
from mini_vllm.tests.engine.replicas import PROMPTS, alone, has_begun, until, with_replicas
from mini_vllm.tests.helpers import MODELS

pytest.importorskip("zmq")
pytest.importorskip("msgspec")
from mini_vllm.engine.dp_client import DPLBAsyncMPClient

UPSTREAM = Path(__file__).parents[3] / "upstream" / "vllm" / "v1" / "engine" / "core_client.py"


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    monkeypatch.setattr("mini_vllm.engine.mp_client.CoreEngineProcManager", CoreThread)


def balancer(counts, client_index=0, client_count=1, dead=()):
    """What the rule looks at, under our names and upstream's."""
    size = len(counts)
    return SimpleNamespace(
        link=SimpleNamespace(counts=counts), lb_engines=counts, dead=dict.fromkeys(dead, SimpleNamespace(reason="x")),
        alive=[], staying=[], leaving=(), core_engines=list(range(size)), reqs_in_flight={}, client_count=client_count,
        eng_start_index=(size * client_index) // client_count,
    )  # fmt: skip


def ask(rule, of, rank=None):
    request = EngineCoreRequest("a", [1], SamplingParams(), data_parallel_rank=rank)
    return rule(of, request)


def upstreams_rule():
    tree = ast.parse(UPSTREAM.read_text(encoding="utf-8"))
    owner = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "DPLBAsyncMPClient")
    method = next(n for n in owner.body if getattr(n, "name", "") == "get_core_engine_for_request")
    method.returns = None
    for argument in method.args.args:
        argument.annotation = None
    code = ast.Module([method], [])
    names = {"sys": sys, "get_late_interaction_engine_index": lambda *_: None}
    exec(compile(ast.fix_missing_locations(code), str(UPSTREAM), "exec"), names)

    def rule(of, request):
        known = {n: getattr(request, n) for n in ("data_parallel_rank", "request_id")}
        return names["get_core_engine_for_request"](of, SimpleNamespace(**known, pooling_params=None))

    return rule


@pytest.mark.skipif(not UPSTREAM.is_file(), reason="the pinned tree is not here")
@pytest.mark.parametrize("seed", range(5))
def test_the_router_decides_as_upstreams(seed):
    rng, upstream = np.random.default_rng(seed), upstreams_rule()
    for size in (2, 3, 8):
        count = int(rng.integers(1, 5))
        index = int(rng.integers(count))
        ours, theirs = (balancer([[0, 0] for _ in range(size)], index, count) for _ in range(2))
        for _ in range(60):
            if rng.random() < 0.2:  # the coordinator publishes
                counts = rng.integers(0, 6, (size, 2)).tolist()
                ours.link.counts, theirs.lb_engines = [list(c) for c in counts], [list(c) for c in counts]
            rank = int(rng.integers(size)) if rng.random() < 0.2 else None
            assert ask(DPLBAsyncMPClient.get_core_engine_for_request, ours, rank) == ask(upstream, theirs, rank)
            assert ours.link.counts == theirs.lb_engines


def test_each_front_end_begins_elsewhere():
    """Empty replicas: of 2 front ends the first one begins at replica 0, the second one at 2."""
    rule = DPLBAsyncMPClient.get_core_engine_for_request
    first, second = (balancer([[0, 0] for _ in range(4)], index, 2) for index in range(2))
    assert [ask(rule, first) for _ in range(5)] == [0, 1, 2, 3, 0]
    assert [ask(rule, second) for _ in range(5)] == [2, 3, 0, 1, 2]
    assert first.link.counts[0] == [4, 0]  # twice, and for the other front end too


def test_a_request_that_waits_counts_as_four_that_run():
    rule = DPLBAsyncMPClient.get_core_engine_for_request
    assert ask(rule, balancer([[1, 0], [0, 3]])) == 1
    assert ask(rule, balancer([[1, 0], [0, 5]])) == 0
    assert ask(rule, balancer([[0, 0], [0, 5]], dead=[0])) == 1
    with pytest.raises(ValueError, match=r"data_parallel_rank=0 is gone \(x\)"):
        ask(rule, balancer([[0, 0], [0, 5]], dead=[0]), rank=0)


def test_tokens_are_those_of_one_core_and_the_work_is_shared():
    expected = [output.outputs[0].token_ids for output in alone(PROMPTS, greedy())]

    async def body(llm):
        streams = [collect(llm, str(at), prompt) for at, prompt in enumerate(PROMPTS)]
        assert [outputs[-1].outputs[0].token_ids for outputs in await asyncio.gather(*streams)] == expected
        each = await llm.core_client.call_utility_of_each("make_stats")
        assert [stats.prefix_cache_stats.requests for stats in each.values()] == [3, 3]
        total = await llm.get_stats()
        assert total.num_scheduled_tokens == sum(stats.num_scheduled_tokens for stats in each.values())
        assert total.num_steps == sum(stats.num_steps for stats in each.values())
        assert llm.core_client.ready.num_gpu_blocks == 2 * 256

    with_replicas(body)


def test_a_request_runs_where_it_is_pinned_to():
    async def body(llm):
        for at in range(4):
            await collect(llm, str(at), "pinned", data_parallel_rank=1)
        each = await llm.core_client.call_utility_of_each("make_stats")
        assert [stats.prefix_cache_stats.requests for stats in each.values()] == [0, 4]
        for rank in (-1, 2, True, "1"):
            with pytest.raises(ValueError, match=r"data_parallel_rank must be a whole number from 0 to 1 \(data_par"):
                await collect(llm, "wrong", "x", data_parallel_rank=rank)
        outputs = await collect(llm, "n", "pinned", greedy(n=3, temperature=1.0), data_parallel_rank=0)
        assert outputs[-1].finished
        each = await llm.core_client.call_utility_of_each("make_stats")
        assert [stats.prefix_cache_stats.requests for stats in each.values()] == [3, 4]

    with_replicas(body)


def test_aborts_and_calls_go_to_whom_they_concern():
    async def body(llm):
        params = greedy(max_tokens=1500)
        tasks = [asyncio.create_task(collect(llm, str(at), "~", params)) for at in range(4)]
        await until(lambda: all(has_begun(llm, str(at), task) for at, task in enumerate(tasks)))
        assert not await llm.reset_prefix_cache()  # in none of them
        await llm.abort([str(at) for at in range(4)])
        assert {outputs[-1].outputs[0].finish_reason for outputs in await asyncio.gather(*tasks)} == {"abort"}
        while not await llm.reset_prefix_cache():
            await asyncio.sleep(0.002)
        each = await llm.core_client.call_utility_of_each("make_stats")
        assert [(stats.num_running_reqs, stats.num_waiting_reqs) for stats in each.values()] == [(0, 0), (0, 0)]
        await llm.check_health()
        with pytest.raises(AttributeError, match="no_such_call"):
            await llm.core_client.call_utility_async("no_such_call")
        (task,) = (asyncio.create_task(collect(llm, "last", "long", params, data_parallel_rank=1)),)
        await until(lambda: has_begun(llm, "last", task))
        assert not await llm.reset_prefix_cache()  # True in replica 0, False in replica 1
        await llm.abort("last")
        await task

    with_replicas(body)


def test_adapters_and_profiles_are_those_of_all_replicas():
    if not (MODELS / "pocket").is_dir():
        pytest.skip("the models are not here")
    lora = LoRARequest("pirate", 1, str(MODELS / "pocket-lora-pirate"))

    async def body(llm):
        of_each = llm.core_client.call_utility_of_each
        assert await llm.add_lora(lora) and not await llm.add_lora(lora) and await llm.list_loras() == {1}
        assert await of_each("list_loras") == {0: {1}, 1: {1}}
        assert await llm.pin_lora(1) and await llm.remove_lora(1)
        assert await of_each("list_loras") == {0: set(), 1: set()}
        assert await llm.core_client.call_utility_async("profile", True) == []
        await asyncio.gather(*[collect(llm, str(at), data_parallel_rank=at) for at in range(2)])
        events = await of_each("profile", False)
        assert all(events.values())

    with_replicas(body, str(MODELS / "pocket"), enable_lora=True)


def test_the_counts_of_replicas_reach_the_router():
    async def body(llm):
        client, params, states = llm.core_client, greedy(max_tokens=1500), llm.output_processor.request_states
        tasks = [asyncio.create_task(collect(llm, str(at), "~", params, data_parallel_rank=0)) for at in range(3)]

        def heard(counts):
            client.link.update()
            return client.link.counts == counts

        await until(lambda: heard([[0, 3], [0, 0]]))
        assert [client.get_core_engine_for_request(EngineCoreRequest("x", [1], params)) for _ in range(2)] == [1, 0]
        await llm.abort(list(states))
        await asyncio.gather(*tasks)
        await until(lambda: heard([[0, 0], [0, 0]]))

    with_replicas(body)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"data_parallel_size": 0}, "data_parallel_size must be at least 1, got 0"),
        ({"data_parallel_size": 10**7}, r"data_parallel_size=10000000 needs .* but this machine has"),
        ({"data_parallel_size": 2, "kv_transfer_config": {"kv_connector": "x", "kv_role": "kv_both"}}, "kv_"),
        ({"data_parallel_size": 2, "data_parallel_rank": 1}, "data_parallel_rank must be"),
        ({"data_parallel_size": 2, "data_parallel_backend": "rai"}, "data_parallel_backend must be 'mp' or 'ray'"),
        ({"data_parallel_backend": "ray", "nnodes": 2}, "nnodes=2 needs data_parallel_backend='mp', got 'ray'"),
        ({"data_parallel_backend": "ray", "data_parallel_size": True}, "data_parallel_size must be a whole number"),
    ],
)
def test_what_replicas_cannot_do_is_refused_before_anything_starts(arguments, match, monkeypatch):
    monkeypatch.setattr("mini_vllm.engine.mp_client.CoreEngineProcManager", None)
    with pytest.raises(ValueError, match=match):
        AsyncLLM(enable_multiprocessing=True, **arguments)


def test_the_pools_of_all_replicas_have_to_fit_together(monkeypatch):
    monkeypatch.setattr("mini_vllm.engine.mp_client.CoreEngineProcManager", None)
    monkeypatch.setattr("mini_vllm.utils.mem_utils.total_memory", lambda: 1 << 30)
    blocks = {"num_blocks": (1 << 30) // 160 * 2 // 3, "kv_cache_memory_bytes": None}
    with pytest.raises(ValueError, match=r"num_blocks=.* but this machine has"):
        AsyncLLM(enable_multiprocessing=True, data_parallel_size=2, **blocks)
    with pytest.raises(ValueError, match=r"data_parallel_size=2 needs .* but this machine has"):
        AsyncLLM(enable_multiprocessing=True, data_parallel_size=2, kv_cache_memory_bytes=600 << 20)


def test_engines_of_one_core_refuse_replicas_as_upstream():
    for make in (LLM, LLMEngine, AsyncLLM):
        with pytest.raises(ValueError, match=r"data_parallel_size=2\) is not supported for single-process usage"):
            make(data_parallel_size=2)
    with pytest.raises(ValueError, match=r"Engine\(data_parallel_backend='ray'\) is not supported for single-process"):
        LLM(data_parallel_backend="ray")
    with pytest.raises(ValueError, match="is not supported for single-process usage"):
        LLM(data_parallel_size=2, enable_multiprocessing=True)


def test_a_replica_that_cannot_start_ends_the_others(monkeypatch):
    started = []

    class Failing(CoreThread):
        def __init__(self, setup, addresses):
            started.append(self)
            if setup.config.data_parallel_rank == 1:
                setup.config.num_blocks = 1
            super().__init__(setup, addresses)

    monkeypatch.setattr("mini_vllm.engine.mp_client.CoreEngineProcManager", Failing)
    with pytest.raises(Exception, match="block"):
        with_replicas(None)
    assert len(started) == 2 and not any(each._thread.is_alive() for each in started)


def test_each_replica_has_its_own_metrics():
    pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    from mini_vllm.metrics.prometheus import exposition

    async def body(llm):
        for at, rank in enumerate([0, 1, 1, 1]):
            await collect(llm, str(at), "1234", greedy(max_tokens=3), data_parallel_rank=rank)
        (output,) = alone(["1234"], greedy(max_tokens=40))
        stop = greedy(max_tokens=40, stop=[output.outputs[0].text[3]])
        await collect(llm, "stop", "1234", stop, data_parallel_rank=0)
        task = asyncio.create_task(collect(llm, "gone", "~", greedy(max_tokens=1500), data_parallel_rank=1))
        await until(lambda: "gone" in llm.output_processor.request_states)
        await llm.abort("gone")
        await task
        found = {}
        for family in text_string_to_metric_families((await exposition(llm)).decode()):
            for sample in family.samples:
                key = sample.name, sample.labels.get("engine"), sample.labels.get("finished_reason")
                found[key] = found.get(key, 0) + sample.value

        def of_each(name, reason=None):
            return [found[name, str(rank), reason] for rank in range(2)]

        assert of_each("vllm:request_success_total", "length") == [1, 3]
        assert of_each("vllm:request_success_total", "stop") == [1, 0]
        assert of_each("vllm:request_success_total", "abort") == [0, 1]
        assert sum(of_each("vllm:request_prompt_tokens_count")) == 6 and of_each("vllm:generation_tokens_total")[0] >= 7
        assert of_each("vllm:num_requests_running") == [0, 0]
        assert (await llm.get_stats()).finished == {"length": 4, "stop": 1, "abort": 1}

    with_replicas(body)


def test_counts_of_replicas_add_up():
    from mini_vllm.layers.fused_moe.expert_load import ExpertLoad
    from mini_vllm.metrics.replicas import sum_of
    from mini_vllm.metrics.stats import PrefixCacheStats, SchedulerStats
    from mini_vllm.spec_decode.metrics import SpecDecodingStats

    def of(count):
        load = ExpertLoad(1, 2)
        load.counts += count
        cache, drafts = (
            PrefixCacheStats(hits=count),
            SpecDecodingStats(2, count, num_accepted_tokens_per_pos=[count, 1]),
        )
        return SchedulerStats(count, 1, 0.5 * count, cache, expert_load=load, spec_decoding_stats=drafts)

    total = sum_of([of(1), of(3)])
    assert (total.num_running_reqs, total.num_waiting_reqs, total.kv_cache_usage) == (4, 2, 1.0)
    assert total.prefix_cache_stats.hits == 4 and total.expert_load.counts.tolist() == [[4, 4]]
    assert (total.spec_decoding_stats.num_spec_tokens, total.spec_decoding_stats.num_drafts) == (2, 4)
    assert total.spec_decoding_stats.num_accepted_tokens_per_pos == [4, 2] and total.cudagraph_stats is None
