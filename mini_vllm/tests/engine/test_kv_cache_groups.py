"""Sliding windows in the engine: the same tokens, fewer blocks; and what others hear of the prefix cache."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mini_vllm import LLM, LLMEngine, SamplingParams
from mini_vllm.config.kv_events import KVEventsConfig
from mini_vllm.distributed.kv_event_publisher import END_SEQ
from mini_vllm.model_loader.random_checkpoint import save_random_checkpoint
from mini_vllm.tests.helpers import FEW_GRAPHS

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"], "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "sliding_window": 10, "use_sliding_window": True,
}  # fmt: skip
KINDS = {"sliding": ["sliding_attention"] * 3, "hybrid": ["full_attention", "sliding_attention", "sliding_attention"]}


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_checkpoint(
        tmp_path_factory.mktemp(request.param), {**CONFIG, "layer_types": KINDS[request.param]}
    )


def traffic() -> tuple[list[dict[str, Any]], list[SamplingParams]]:
    rng = np.random.default_rng(3)
    prompts = [rng.integers(0, 60, n).tolist() for n in rng.integers(1, 60, 8)]
    prompts += [[*prompt, 5, 6, 7] for prompt in prompts[:4]]
    params = [SamplingParams(temperature=float(i % 2), max_tokens=20, seed=i) for i in range(len(prompts))]
    return [{"prompt_token_ids": prompt} for prompt in prompts], params


def run(folder: Path, **args: Any) -> tuple[list[list[int]], LLM]:
    llm = LLM(str(folder), dtype="float64", block_size=4, kv_oracle=True, **args)
    prompts, params = traffic()
    tokens = [o.outputs[0].token_ids for _ in range(2) for o in llm.generate(prompts, params, use_tqdm=False)]
    return tokens, llm


@pytest.fixture(scope="module")
def judge(folder: Path) -> list[list[int]]:
    """The tokens without any of it: dense attention, and all blocks of all layers kept."""
    return run(folder, num_blocks=600, attention_backend="dense", disable_hybrid_kv_cache_manager=True)[0]


@pytest.mark.parametrize(
    "changes",
    [{}, {"num_blocks": 60}, {"enable_prefix_caching": False, "num_blocks": 70}, {"async_scheduling": True},
     {"disable_hybrid_kv_cache_manager": True}, {"attention_backend": "paged_online"},
     {"cudagraph_mode": "FULL", "cudagraph_capture_sizes": FEW_GRAPHS}],
    ids=lambda changes: "-".join(changes) or "plain",
)  # fmt: skip
def test_the_tokens_are_those_of_the_plain_judge(folder: Path, judge: list[list[int]], changes: dict[str, Any]) -> None:
    tokens, llm = run(folder, **{"num_blocks": 600, **changes})
    assert tokens == judge
    assert llm.llm_engine.engine_core.kv_cache_manager.usage == 0.0


def test_blocks_outside_the_window_serve_others(tmp_path: Path) -> None:
    """Of 108 tokens, a window of 10 holds 4 blocks of 4: eight requests fit where all of one would."""
    folder = save_random_checkpoint(tmp_path, {**CONFIG, "layer_types": KINDS["sliding"]})
    engine = LLM(str(folder), block_size=4, num_blocks=1 + 8 * 12, max_num_batched_tokens=32, max_num_seqs=8).llm_engine
    manager, most = engine.engine_core.kv_cache_manager, 0
    params = SamplingParams(temperature=0.0, max_tokens=58, ignore_eos=True)
    for i in range(8):
        engine.add_request(str(i), {"prompt_token_ids": [i] * 50}, params)
    while engine.has_unfinished_requests():
        engine.step()
        tables = [manager.get_block_ids(name)[0] for name in engine.scheduler.requests]
        most = max([most, *(sum(block > 0 for block in table) for table in tables)])
    assert most <= 12 and engine.stats.num_preemptions == 0


def test_a_reset_in_flight_leaves_a_seeded_request_its_tokens() -> None:
    params = [SamplingParams(temperature=1.0, max_tokens=20, seed=i, ignore_eos=True) for i in range(3)]

    def tokens(resets: tuple[int, ...]) -> list[list[int]]:
        engine = LLMEngine(block_size=4, num_blocks=100, async_scheduling=True)
        for i, one in enumerate(params):
            engine.add_request(str(i), "abc" * (i + 1), one)
        requests, step = list(engine.scheduler.requests.values()), 0
        while engine.has_unfinished_requests():
            engine.step()
            step += 1
            if step in resets:
                engine.scheduler.reset_prefix_cache(reset_running_requests=True)
        return [request.output_token_ids for request in requests]

    assert tokens((4, 5, 9, 15)) == tokens(())


def test_events_reach_a_subscriber_and_can_be_asked_for_again() -> None:
    zmq, msgspec = pytest.importorskip("zmq"), pytest.importorskip("msgspec")
    context = zmq.Context.instance()
    name = f"inproc://events-{time.monotonic_ns()}"
    settings = {"enable_kv_cache_events": True, "endpoint": name, "replay_endpoint": f"{name}-replay", "topic": "kv"}
    engine = LLMEngine(block_size=4, num_blocks=20, kv_events_config=settings)
    try:
        engine.add_request("a", "hello world", SamplingParams(max_tokens=3, temperature=0.0, ignore_eos=True))
        while engine.has_unfinished_requests():
            engine.step()
        asker = context.socket(zmq.DEALER)
        asker.connect(f"{name}-replay")
        payloads: list[bytes] = []
        deadline = time.monotonic() + 60
        while not payloads and time.monotonic() < deadline:  # the thread may not have sent it yet
            asker.send_multipart((b"", (0).to_bytes(8, "big")))
            while asker.poll(60_000):
                _, number, payload = asker.recv_multipart()
                if number == END_SEQ:
                    break
                payloads.append(payload)
        asker.close(linger=0)
    finally:
        engine.scheduler.kv_event_publisher.shutdown()
    [_, [event, *_], rank] = msgspec.msgpack.decode(payloads[0])
    assert rank == 0 and event[0] == "BlockStored" and event[3] == list(b"hello wo") and event[4] == 4
    assert event[9:] == [0, "full_attention", None] and len(event[1]) == 2
    with pytest.raises(RuntimeError, match="closed"):
        engine.scheduler.kv_event_publisher.publish(None)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"enable": True}, "unknown key 'enable'; allowed: enable_kv_cache_events"),
        ({"publisher": "kafka"}, "publisher must be one of"),
        ({"hwm": 0}, "hwm must be"),
        ("yes", "kv_events_config must be a dict"),
        ({"enable_kv_cache_events": "yes"}, "must be True or False"),
        ({"enable_kv_cache_events": True, "endpoint": "nowhere"}, "no socket for 'nowhere'"),
    ],
)
def test_bad_settings_are_named(value: Any, message: str) -> None:
    if "endpoint" in value:
        pytest.importorskip("zmq"), pytest.importorskip("msgspec")
    with pytest.raises(ValueError, match=message):
        LLMEngine(kv_events_config=value)


def test_events_are_off_unless_asked_for() -> None:
    assert KVEventsConfig.of(None).publisher == "null" and LLMEngine().scheduler.kv_event_publisher is None
