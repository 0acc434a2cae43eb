"""Models whose layers keep a state, alone and beside attention: every request gets the tokens that it would get alone,
computed in one pass without a cache, whatever is scheduled with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mini_vllm import LLMEngine, SamplingParams
from mini_vllm.config.speculative import SpeculativeConfig
from mini_vllm.core.kv_cache_groups import bytes_per_block
from mini_vllm.spec_decode.ngram_proposer import NgramProposer
from mini_vllm.tests.layers.tiny_hybrid import VOCAB, TinyHybrid, is_greedy

KINDS: dict[str, list[Any]] = {"states": ["m", "m"], "hybrid": ["m", "f", "m"], "windows": ["f", "m", 6, "m"]}
MODES = ("none", "align", "all")
BLOCK = 8
slow = pytest.mark.slow


def make_engine(kinds: str, mode: str, **settings: Any) -> tuple[LLMEngine, TinyHybrid]:
    model = TinyHybrid(KINDS[kinds], writes_all=mode == "all")
    settings = {"block_size": BLOCK, "num_blocks": 200, "max_num_batched_tokens": 24, **settings}
    return LLMEngine(
        model=model, dtype="float64", skip_tokenizer_init=True, enable_prefix_caching=mode != "none", **settings
    ), model  # fmt: skip


def prompts() -> list[list[int]]:
    """Some share a beginning, some are shorter than a block, one is a single token."""
    rng = np.random.default_rng(1)
    base = rng.integers(0, VOCAB, 60).tolist()
    return [
        [*base[:40], 1, 2],
        base[:20],
        base[:50],
        [*base[:33], 7],
        [5],
        base[:8],
        rng.integers(0, VOCAB, 27).tolist(),
    ]


def serve(engine: LLMEngine, arrivals: dict[int, list[list[int]]], max_tokens: int = 10, **more: Any) -> dict[str, Any]:
    """The requests, by id; `arrivals`: step -> prompts that come before it."""
    requests: dict[str, Any] = {}
    step = 0
    while step <= max(arrivals) or engine.has_unfinished_requests():
        for prompt in arrivals.get(step, ()):
            name = str(len(requests))
            params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
            engine.add_request(name, {"prompt_token_ids": prompt}, params, **more)
            requests[name] = engine.scheduler.requests[name]
        engine.step()
        step += 1
    return requests


def check(model: TinyHybrid, requests: dict[str, Any], max_tokens: int = 10) -> None:
    for request in requests.values():
        output = list(request.output_token_ids)
        assert len(output) == max_tokens and is_greedy(model, list(request.prompt_token_ids), output), (
            request.request_id
        )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kinds", ["hybrid", pytest.param("states", marks=slow), pytest.param("windows", marks=slow)])
def test_chunks_and_mixed_batches_change_no_token(kinds: str, mode: str) -> None:
    engine, model = make_engine(kinds, mode)
    few, many = prompts()[:3], prompts()[3:]
    check(model, serve(engine, {0: few, 4: many[:2], 7: many[2:]}))
    assert engine.engine_core.kv_cache_manager.usage == 0.0


@pytest.mark.parametrize("mode", ["align", "all"])
@pytest.mark.parametrize("kinds", ["hybrid", pytest.param("states", marks=slow)])
def test_a_prefix_is_gone_on_from_and_not_computed_again(kinds: str, mode: str) -> None:
    engine, model = make_engine(kinds, mode)
    text = prompts()[2]
    requests = serve(engine, {0: [text], 15: [[*text, 3], [*text[:30], 4], [*text[:17], 5]]})
    check(model, requests)
    hits = [request.num_cached_tokens for request in requests.values()]
    assert hits == ([0, 48, 24, 16] if mode == "all" else [0, 48, 24, 0])


@pytest.mark.parametrize("mode", ["align", pytest.param("none", marks=slow), pytest.param("all", marks=slow)])
@pytest.mark.parametrize("policy", ["fcfs", pytest.param("priority", marks=slow)])
def test_a_preempted_request_comes_to_the_same_tokens(policy: str, mode: str) -> None:
    engine, model = make_engine(
        "hybrid",
        mode,
        num_blocks=28 if mode == "all" else 24,
        scheduling_policy=policy,
        scheduler_reserve_full_isl=False,
        max_num_seqs=6,
    )
    requests = serve(engine, {0: prompts()[:4], 3: prompts()[3:]}, 20)
    check(model, requests, 20)
    assert engine.stats.num_preemptions > 0


@pytest.mark.parametrize("mode", ["align", pytest.param("none", marks=slow), pytest.param("all", marks=slow)])
def test_blocks_that_another_request_had_leave_nothing_behind(mode: str) -> None:
    engine, model = make_engine("hybrid", mode, num_blocks=22, max_num_seqs=1)
    rng = np.random.default_rng(5)
    texts = [rng.integers(0, VOCAB, n).tolist() for n in (30, 9, 41, 1, 16, 25, 8, 33)]
    check(model, serve(engine, {0: texts}))


@pytest.mark.parametrize("mode", ["align", pytest.param("none", marks=slow), pytest.param("all", marks=slow)])
def test_one_step_ahead_it_is_the_same(mode: str) -> None:
    engine, model = make_engine("hybrid", mode, async_scheduling=True)
    check(model, serve(engine, {0: prompts()[:4], 5: prompts()[4:]}))


def test_a_state_that_is_read_from_the_wrong_block_changes_the_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    from mini_vllm.attention.backends.mamba_attn import MambaAttentionBackend

    build = MambaAttentionBackend.build

    def from_the_null_block(self: Any, metadata: Any) -> Any:
        step = build(self, metadata)
        step.state_indices_input = np.zeros_like(step.state_indices_input)
        return step

    monkeypatch.setattr(MambaAttentionBackend, "build", from_the_null_block)
    engine, model = make_engine("hybrid", "align")
    requests = serve(engine, {0: prompts()[:2]})
    assert not all(is_greedy(model, list(r.prompt_token_ids), list(r.output_token_ids)) for r in requests.values())


def test_states_have_arrays_of_their_own_shapes_and_the_pool_counts_them() -> None:
    engine, _ = make_engine("hybrid", "align")
    runner = engine.engine_core.model_runner
    groups = engine.engine_core.kv_cache_config.kv_cache_groups
    assert [group.kv_cache_spec.kind.value for group in groups] == ["mamba", "mamba", "full_attention"]
    arrays = [backend.layers[0] for backend in runner.attention.backends[:2]]
    assert [array.shape for array in arrays[0]] == [(200, 2, 20), (200, 2, 4, 3)]
    assert runner.kv_cache.num_layers == 1
    states = sum(array.nbytes for pair in arrays for array in pair)
    assert bytes_per_block(groups) * 200 == states + runner.kv_cache.nbytes


def test_a_model_of_states_alone_has_no_arrays_for_keys_and_values() -> None:
    engine, _ = make_engine("states", "none")
    assert engine.engine_core.model_runner.kv_cache is None
    assert engine.engine_core.kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size == 128


def test_the_mode_is_the_one_asked_for_where_the_model_has_it() -> None:
    def mode(kept: str, **settings: Any) -> str:
        groups = make_engine("hybrid", kept, **settings)[0].engine_core.kv_cache_config.kv_cache_groups
        return groups[0].kv_cache_spec.mamba_cache_mode

    assert [mode("all"), mode("all", mamba_cache_mode="align"), mode("all", mamba_cache_mode="all")] == [
        "all", "align", "all",
    ]  # fmt: skip
    assert [mode("align", mamba_cache_mode="all"), mode("none", mamba_cache_mode="all")] == ["align", "none"]
    with pytest.raises(ValueError, match="mamba_cache_mode must be one of none, align, all, got 'some'"):
        make_engine("hybrid", "align", mamba_cache_mode="some")


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"block_size": 2}, "block_size must be at least 4, got 2: a block of keys and values has 256 bytes, and a state"),
     ({"max_num_batched_tokens": 7, "max_num_seqs": 4}, "max_num_batched_tokens must be at least block_size=8 under"),
     ({"long_prefill_token_threshold": 5}, "long_prefill_token_threshold must be at least block_size=8 under"),
     ({"enable_chunked_prefill": False, "max_num_batched_tokens": 128}, "enable_chunked_prefill must be True under"),
     ({"speculative_config": SpeculativeConfig(8, "ngram")}, "num_speculative_tokens must be less than block_size=8")],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_settings_that_do_not_go_with_states_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_engine("hybrid", "align", **settings)


def draft_from(texts: list[list[int]], k: int, seed: int) -> Any:
    """A drafter that knows the texts, and is wrong now and then."""
    rng = np.random.default_rng(seed)

    def propose(self: Any, sampled: Any, num_tokens: Any, token_ids: Any, slot_mappings: Any = None) -> list[list[int]]:
        drafts = []
        for row, new in enumerate(sampled):
            known = token_ids[row, : num_tokens[row]].tolist()
            text = next((text for text in texts if text[: len(known)] == known), known) if new else known
            right = text[len(known) : len(known) + int(rng.integers(0, k + 1))]
            drafts.append([t if rng.random() < 0.8 else int(rng.integers(VOCAB)) for t in right])
        return drafts

    return propose


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kinds", ["hybrid", pytest.param("states", marks=slow), pytest.param("windows", marks=slow)])
def test_drafts_that_are_rejected_leave_no_trace_in_a_state(
    kinds: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [prompts()[0], prompts()[2], prompts()[4], prompts()[0][:30]]
    plain, model = make_engine(kinds, mode)
    of_plain = serve(plain, {0: texts}, 20)
    whole = [list(r.prompt_token_ids) + list(r.output_token_ids) for r in of_plain.values()]
    monkeypatch.setattr(NgramProposer, "propose", draft_from(whole, 4, 0))
    engine, _ = make_engine(kinds, mode, speculative_config=SpeculativeConfig(4, "ngram"))
    found = [whole[0][:57], [*whole[1][:65], 3], [*whole[0][:49], 4]]
    check(model, serve(engine, {0: texts[:2], 3: texts[2:], 25: found}, 20), 20)
    stats = engine.scheduler.drafts.spec_decoding_stats
    assert 20 < stats.num_accepted_tokens < stats.num_draft_tokens - 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_every_request_that_ends_has_its_tokens(seed: int) -> None:
    """Random traffic over a small pool: aborts, resets of the prefix cache, both policies, one step ahead or not."""
    rng = np.random.default_rng(seed)
    mode, kinds = str(rng.choice(MODES)), str(rng.choice(list(KINDS)))
    engine, model = make_engine(
        kinds, mode, num_blocks=int(rng.integers(40, 60)), max_num_seqs=int(rng.integers(1, 7)),
        max_num_batched_tokens=int(rng.choice([8, 20, 64])), scheduling_policy=str(rng.choice(["fcfs", "priority"])),
        scheduler_reserve_full_isl=bool(rng.random() < 0.5), async_scheduling=bool(rng.random() < 0.5),
    )  # fmt: skip
    pieces, requests = [rng.integers(0, VOCAB, int(n)).tolist() for n in rng.integers(3, 20, 4)], {}
    for step in range(90):
        for _ in range(int(rng.integers(0, 3)) if step < 25 else 0):
            name, chosen = str(len(requests)), rng.integers(0, 4, int(rng.integers(1, 4)))
            prompt = [token for i in chosen for token in pieces[i]]
            params = SamplingParams(temperature=0.0, max_tokens=int(rng.integers(1, 12)), ignore_eos=True)
            engine.add_request(name, {"prompt_token_ids": prompt}, params, priority=int(rng.integers(0, 3)))
            requests[name] = engine.scheduler.requests[name]
        if rng.random() < 0.1 and engine.scheduler.requests:
            engine.abort_request([str(rng.choice(list(engine.scheduler.requests)))])
        if rng.random() < 0.05:
            engine.scheduler.reset_prefix_cache(reset_running_requests=bool(rng.random() < 0.5))
        engine.step()
    while engine.has_unfinished_requests():
        engine.step()
    ended = [request for request in requests.values() if "ABORTED" not in request.status.name]
    assert ended
    for request in ended:
        output = list(request.output_token_ids)
        assert len(output) == request.sampling_params.max_tokens
        assert is_greedy(model, list(request.prompt_token_ids), output), (seed, mode, kinds, request.request_id)


def test_an_id_that_is_used_again_goes_on_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request ends in a step with drafts, and a step without tokens comes before the second one."""
    monkeypatch.setattr(NgramProposer, "propose", lambda self, sampled, *args, **more: [[1] for _ in sampled])
    engine, model = make_engine("states", "none", speculative_config=SpeculativeConfig(1, "ngram"))
    for prompt in ([*[1, 2, 3] * 15], [4, 5]):
        params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
        engine.add_request("again", {"prompt_token_ids": prompt}, params)
        request = engine.scheduler.requests["again"]
        while engine.has_unfinished_requests():
            engine.step()
        engine.step()
        check(model, {"again": request}, 6)
