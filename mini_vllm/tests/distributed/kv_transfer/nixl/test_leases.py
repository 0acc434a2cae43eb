"""How long P keeps blocks, and what aborts on either side do: nothing is freed while it is read, nothing is kept for
ever."""

import logging
import threading

import pytest

from mini_vllm import LLM
from mini_vllm.distributed.kv_transfer.kv_connector.nixl import scheduler as scheduler_half
from mini_vllm.distributed.kv_transfer.kv_connector.nixl import transports
from mini_vllm.tests.distributed.kv_transfer.nixl.pair import (
    LONG,
    PATIENCE_S,
    REMOTE_DECODE,
    all_heard,
    decode,
    drain,
    drain_together,
    drained,
    ended,
    greedy,
    make,
    needs_pocket,
    prefill,
    tokens_of,
    wait_until,
)
from mini_vllm.tests.helpers import POCKET

pytestmark = needs_pocket


@pytest.fixture(scope="module")
def plain():
    return tokens_of(LLM(str(POCKET)).generate([LONG], greedy(), use_tqdm=False))


@pytest.fixture(scope="module")
def engines():
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", "0")
        made = make(disable_log_stats=False), make(num_blocks=12, disable_log_stats=False)
    with ended(*made):
        yield made


@pytest.fixture
def pair(engines, clock):
    for llm in engines:
        connector = llm.llm_engine.scheduler.connector.connector
        connector.connector_scheduler._last_heartbeat_time = 0.0
        llm.reset_prefix_cache()
    return engines


def used(llm):
    core = llm.llm_engine.engine_core
    return core.num_blocks - 1 - core.kv_cache_manager.block_pool.get_num_free_blocks()


def step(llm, count=3):
    for _ in range(count):
        llm.llm_engine.engine_core.step_fn()


def test_a_lease_runs_out_and_the_reader_hears_of_it(pair, clock, caplog):
    p, d = pair
    (params,) = prefill(p, [LONG])
    clock.time += 29.9
    step(p)
    assert used(p) == 3
    clock.time += 0.2
    drain(p, 5)
    assert "its lease has run out" in caplog.text
    assert decode(d, [LONG], [params])[0].outputs[0].finish_reason == "error"
    assert "is not offered: its lease has run out" in caplog.text
    drain(d)


def test_heartbeats_of_a_request_that_waits_for_room(pair, clock):
    p, d = pair
    (params,) = prefill(p, [LONG])
    req_id = params["remote_request_id"]
    step(p, 1)
    d.llm_engine.add_request("big", LONG * 3, greedy(30))  # all the room that there is
    step(d, 1)
    d.llm_engine.add_request("waits", LONG[2:], greedy(2, params))
    for _ in range(20):  # 100 seconds; the lease alone would last 30
        clock.time += 5
        step(d, 1)
        wait_until(p, lambda: half(p)._reqs_to_send[req_id] >= clock.time + 20)
    assert used(p) == 3 and used(d) >= 9
    d.llm_engine.abort_request(["big", "waits"])
    drained(d, p)


def half(llm):
    return llm.llm_engine.engine_core.model_runner.kv_connector.kv_connector.connector_worker


def test_an_abort_on_d_before_the_load_frees_p(pair):
    p, d = pair
    (params,) = prefill(p, [LONG])
    d.llm_engine.add_request("a", LONG, greedy(4, params))
    d.llm_engine.abort_request(["a"])
    drained(d, p)


def test_an_abort_on_d_while_it_loads_keeps_the_blocks_until_that_is_over(pair, monkeypatch):
    p, d = pair
    (params,) = prefill(p, [LONG])
    gate, send = threading.Event(), transports.TcpTransport.send

    def waits(self, sock, freight, fill):
        assert gate.wait(PATIENCE_S)
        send(self, sock, freight, fill)

    monkeypatch.setattr(transports.TcpTransport, "send", waits)
    d.llm_engine.add_request("a", LONG, greedy(4, params))
    step(d)
    d.llm_engine.abort_request(["a"])
    step(d)
    assert used(d) == 3
    gate.set()
    drained(d, p)


def test_a_lease_that_runs_out_during_a_read_makes_it_void(pair, clock, monkeypatch, caplog):
    p, d = pair
    (params,) = prefill(p, [LONG])
    begun, gate, send = threading.Event(), threading.Event(), transports.TcpTransport.send

    def waits(self, sock, freight, fill):
        begun.set()
        assert gate.wait(PATIENCE_S)
        send(self, sock, freight, fill)

    monkeypatch.setattr(transports.TcpTransport, "send", waits)
    step(p)
    d.llm_engine.scheduler.connector.connector.connector_scheduler._last_heartbeat_time = clock.time
    d.llm_engine.add_request("a", LONG, greedy(4, params))
    step(d)
    assert begun.wait(PATIENCE_S)
    clock.time += 31
    drain(p, 5)  # its blocks are somebody else's now
    gate.set()
    drain(d)
    assert "ran out while it was read" in caplog.text


def test_an_abort_on_p_and_a_request_that_ends_otherwise_keep_nothing(pair):
    p, _ = pair
    p.llm_engine.add_request("a", LONG, greedy(20, REMOTE_DECODE))
    step(p, 2)
    p.llm_engine.abort_request(["a"])
    drain(p, 3)
    assert not half(p)._reqs_to_process and "a" not in half(p)._offers._offers
    p.llm_engine.add_request("a", LONG, greedy(1, REMOTE_DECODE))  # the same name again
    step(p, 1)
    assert "a" in half(p)._offers._offers
    p.llm_engine.abort_request(["a"])


def test_the_log_has_the_transfers(pair, plain, caplog, monkeypatch, clock):
    p, d = pair
    drain_together(clock, p)
    monkeypatch.setattr(scheduler_half, "LOG_INTERVAL_S", 0.0)
    caplog.set_level(logging.INFO)
    assert tokens_of(decode(d, [LONG], prefill(p, [LONG]))) == plain
    all_heard(d)
    lines = [record.getMessage() for record in caplog.records if "KV Transfer metrics" in record.getMessage()]
    assert lines[-1].startswith("KV Transfer metrics: Num successful transfers=1, Avg xfer time (ms)=")
    megabytes = 3 * 16 * 2 * 2 * 64 * 4 * 8 / 2**20
    assert f"Avg MB per transfer={megabytes}, Throughput (MB/s)=" in lines[-1]
    drained(p, d)
    counted = {metric.name: metric for metric in d.get_metrics() if "nixl" in metric.name}
    moved, failed = counted["vllm:nixl_bytes_transferred"], counted["vllm:nixl_num_failed_transfers"]
    assert moved.sum == moved.count * megabytes * 2**20 and moved.buckets["524288.0"] == moved.count > 0
    assert decode(d, [LONG[1:]], prefill(p, [LONG]))[0].outputs[0].finish_reason == "error"
    drain(d)
    drain_together(clock, p)
    again = {metric.name: metric for llm in (d, p) for metric in llm.get_metrics() if "nixl" in metric.name}
    assert again["vllm:nixl_num_kv_expired_reqs"].value > 0
    assert next(m for m in d.get_metrics() if m.name == failed.name).value == failed.value + 1
