"""Engines die at random stages of requests: each request ends with the tokens of one engine or with an error that has a
name, and no block stays in use.

In CI a modest, fixed number, of which every kind of death is one. More, and others, by hand or at night:

    CHAOS_TIMES=10 CHAOS_SEED=7 pytest -m slow mini_vllm/tests/distributed/kv_transfer/test_chaos.py
"""

import os

import pytest

pytest.importorskip("httpx", reason="needs the extra serve")
pytest.importorskip("fastapi", reason="needs the extra serve")

from mini_vllm.tests.distributed.kv_transfer.chaos import Oracle, Report, kill_in_process

TIMES, SEED = int(os.environ.get("CHAOS_TIMES", "1")), os.environ.get("CHAOS_SEED")


@pytest.fixture(autouse=True)
def any_port(monkeypatch):
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", "0")


@pytest.mark.slow
def test_a_simulated_death():
    report = kill_in_process(1, seed=3, num_prompts=2)
    assert sum(report.kills.values()) == 1 and sum(report.ends.values()) == 4


@pytest.mark.slow
@pytest.mark.timeout(600 * TIMES)
def test_simulated_deaths():
    report = kill_in_process(24 * TIMES, seed=int(SEED or 1))
    assert sum(report.kills.values()) == 24 * TIMES and sum(report.ends.values()) == 96 * TIMES
    assert report.kills["came too late"] < 8 * TIMES and report.ways["disaggregated"] > 24 * TIMES
    assert report.ways["recomputed"] > 2 * TIMES
    assert SEED or {"P cut", "D cut", "P dead", "D dead", "P breaks off a read", "a client leaves"} <= {*report.kills}


@pytest.mark.slow
@pytest.mark.timeout(900 * TIMES)
def test_killed_and_stopped_processes():
    from mini_vllm.tests.distributed.kv_transfer.fleet import kill_processes

    report = kill_processes(5 * TIMES, seed=int(SEED or 3))
    assert sum(report.kills.values()) == 5 * TIMES and sum(report.ends.values()) == 20 * TIMES
    assert SEED or len({name.partition(": ")[2] for name in report.kills}) == 3, "every kind of signal"


def test_the_judge_tells_wrong_answers():
    """What the harness asks is not true by itself."""
    oracle = Oracle([("/v1/completions", {})], [[1, 2, 3]])

    def event(*tokens):
        return f'data: {{"choices": [{{"token_ids": {list(tokens)}}}]}}\n\n'

    error = 'data: {"error": {"message": "the decode engine http://d:1 broke off; the answer is cut"}}\n\n'
    done = "data: [DONE]\n\n"
    oracle.check(0, event(1, 2) + event(3) + done, Report(), False)
    oracle.check(0, event(1, 2) + error + done, Report(), False)
    for text in (
        event(1, 2) + done,
        event(1, 9) + error + done,
        event(1, 2) + error,
        event(1, 2, 3),
        error + done,
        '{"error": {"message": "the decode engine http://d:1 broke off"}}',
        event(1) + error.replace("http://d:1", "it") + done,
    ):
        with pytest.raises(AssertionError):
            oracle.check(0, text, Report(), False)
