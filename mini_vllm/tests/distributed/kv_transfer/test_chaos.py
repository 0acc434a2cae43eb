"""Engines die at random stages of requests: each request ends with the tokens of one engine or with an error that has a
name, and no block stays in use."""

import pytest

pytest.importorskip("httpx", reason="needs the extra serve")
pytest.importorskip("fastapi", reason="needs the extra serve")

from mini_vllm.tests.distributed.kv_transfer.chaos import Oracle, Report, kill_in_process


@pytest.fixture(autouse=True)
def any_port(monkeypatch):
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", "0")


@pytest.mark.slow
def test_a_simulated_death():
    report = kill_in_process(1, seed=3, num_prompts=2)
    assert sum(report.kills.values()) == 1 and sum(report.ends.values()) == 4


@pytest.mark.slow
def test_sixty_simulated_deaths():
    report = kill_in_process(60, seed=1)
    assert sum(report.kills.values()) == 60 and sum(report.ends.values()) == 240
    assert report.kills["came too late"] < 20 and report.ways["disaggregated"] > 60 and report.ways["recomputed"] > 5


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_dozen_killed_and_stopped_processes():
    from mini_vllm.tests.distributed.kv_transfer.fleet import kill_processes

    report = kill_processes(12, seed=2)
    assert sum(report.kills.values()) == 12 and sum(report.ends.values()) == 48


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
