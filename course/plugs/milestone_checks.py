"""What a milestone proves: small claims about the engine, each run on a learner's parts and compared with ours.

A check takes the parts to use and returns nothing; it raises AssertionError with one sentence where the claim fails.
The toy model runs under the KV oracle, so that a wrong block is an error though the toy never reads it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from course.labs import ROOT, load
from mini_vllm import LLM, SamplingParams
from mini_vllm.engine.parts import EngineParts

MEMORY = ("free queue", "block hash", "block pool")
POCKET = ROOT / "models" / "pocket"  # in float64, so that the order of a sum cannot flip a near tie
DRAFTS = ROOT / "phase-08-speculative-decoding" / "labs" / "lab-05-your-proposer-serves-pocket" / "plug.py"
TOWER = ROOT / "phase-13-multimodal-models" / "labs" / "lab-05-patches-to-tokens" / "plug.py"
Prompts = list[dict[str, list[int]]]


@dataclass(frozen=True)
class Check:
    """`parts`: for whom it is; empty: for all."""

    claim: str
    run: Callable[[EngineParts], None]
    parts: tuple[str, ...] = ()


def greedy(max_tokens: int, **others: Any) -> SamplingParams:
    """The likeliest token, always, and no end before `max_tokens`."""
    return SamplingParams(**{"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, **others})


def tokens(prompts: Prompts, params: Any, parts: EngineParts | None, model: Any = None, **args: Any) -> tuple[Any, Any]:
    """Token ids of every output, and the engine."""
    llm = LLM(model, with_labs=parts, **args)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs], llm.llm_engine


def random_prompts(seed: int, n: int, longest: int, vocab: int = 250) -> Prompts:
    """`n` prompts of up to `longest` tokens, half of which begin alike."""
    rng = np.random.default_rng(seed)
    shared = rng.integers(10, vocab, longest // 2).tolist()
    made = []
    for i in range(n):
        own = rng.integers(10, vocab, int(rng.integers(1, longest // 2))).tolist()
        made.append({"prompt_token_ids": (shared if i % 2 else []) + own})
    return made


def same_tokens(parts: EngineParts) -> None:
    """Chunks, prefix hits and small blocks at once, under the oracle."""
    for block_size, budget, seats in ((3, 16, 4), (4, 64, 8), (16, 7, 3)):
        prompts = random_prompts(block_size, 12, 40)
        params = [greedy(3 + i % 7) for i in range(12)]
        args = {"block_size": block_size, "num_blocks": 400 // block_size, "max_num_batched_tokens": budget}
        args |= {"max_num_seqs": seats, "long_prefill_token_threshold": 5}
        mine, theirs = (tokens(prompts, params, p, **args) for p in (parts, None))
        assert mine[0] == theirs[0], f"tokens differ from the reference's (block_size {block_size}, budget {budget})"
        stats = [engine.stats for _, engine in (mine, theirs)]
        counts = [(s.num_steps, s.num_scheduled_tokens, s.prefix_cache.hits) for s in stats]
        assert counts[0] == counts[1], f"(steps, tokens, hits) are {counts[0]}, the reference's {counts[1]}"


def prefix_caching(parts: EngineParts) -> None:
    """Eight prompts share 64 tokens: 96 tokens computed instead of 544, as lab 03-06 counts them."""
    prompts: Prompts = [{"prompt_token_ids": [83] * 64 + [48 + i]} for i in range(8)]
    for caching, expected in ((False, 544), (True, 96)):
        _, engine = tokens(prompts, greedy(4), parts, num_blocks=256, block_size=4, enable_prefix_caching=caching)
        computed = engine.stats.num_scheduled_tokens
        assert computed == expected, f"{computed} tokens computed with prefix caching {caching}, expected {expected}"


def preemption(parts: EngineParts) -> None:
    """A pool of four usable blocks for two requests that need four each: slower, not different."""
    prompts, params = random_prompts(1, 6, 8), greedy(8)
    roomy, _ = tokens(prompts, params, None, num_blocks=256, block_size=4)
    cramped, engine = tokens(prompts, params, parts, num_blocks=5, block_size=4, enable_prefix_caching=False)
    assert engine.stats.num_preemptions, "nobody was preempted in a pool that is too small for two"
    assert cramped == roomy, "a preempted request got other tokens than in a roomy pool"
    free = engine.engine_core.kv_cache_manager.block_pool.get_num_free_blocks()
    assert free == 4, f"{4 - free} blocks are still taken when all requests have ended"


def limits(parts: EngineParts) -> None:
    """S2 and S3 seen from outside, and no step without work."""
    engine = LLM(with_labs=parts, num_blocks=64, block_size=4, max_num_batched_tokens=10, max_num_seqs=3).llm_engine
    for i, prompt in enumerate(random_prompts(2, 10, 24)):
        engine.add_request(str(i), prompt, greedy(3))  # type: ignore[arg-type]
    while engine.has_unfinished_requests():
        before = engine.stats.num_scheduled_tokens
        engine.step()
        step = engine.stats.num_scheduled_tokens - before
        assert 0 < step <= 10 and len(engine.scheduler.running) <= 3, f"a step of {step} tokens with a budget of 10"


def stop_conditions(parts: EngineParts) -> None:
    """EOS, a stop id, `min_tokens`, the two lengths: same tokens and same reasons."""
    prompts = random_prompts(3, 8, 20)
    likely = tokens(prompts, greedy(6), None, num_blocks=64)[0]
    params = [greedy(6, stop_token_ids=[ids[i % 6]], min_tokens=i % 4) for i, ids in enumerate(likely)]
    params[0], params[1] = greedy(400), SamplingParams(max_tokens=90, seed=5, ignore_eos=False, temperature=5.0)
    seen = []
    for its_parts in (parts, None):
        llm = LLM(with_labs=its_parts, num_blocks=64, max_model_len=128)
        outputs = [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]
        seen.append([(len(o.token_ids), o.finish_reason, o.stop_reason) for o in outputs])
    assert seen[0] == seen[1], f"(length, reason, stop id) are {seen[0]}, the reference's {seen[1]}"
    assert {reason for _, reason, _ in seen[1]} == {"stop", "length"}


def sampling(parts: EngineParts) -> None:
    """Greedy and random rows in one batch; a seed means the same tokens as in the reference."""
    prompts = random_prompts(4, 9, 12)
    knobs: list[dict[str, Any]] = [{"temperature": 0.0}, {"top_k": 5}, {"top_p": 0.7}, {"top_k": 9, "top_p": 0.8}]
    params = [SamplingParams(**{"max_tokens": 8, "seed": i, **knobs[i % 4]}) for i in range(9)]
    mine, theirs = (tokens(prompts, params, p, num_blocks=64)[0] for p in (parts, None))
    assert mine == theirs, "the tokens of seeded requests differ from the reference's"


def real_weights(parts: EngineParts) -> None:
    """The committed checkpoint: real keys and values, in chunks, with hits and preemption."""
    prompts = random_prompts(5, 4, 40, 4000)
    args = {"block_size": 4, "num_blocks": 24, "max_num_batched_tokens": 16, "max_num_seqs": 4, "dtype": "float64"}
    mine, theirs = (tokens(prompts, greedy(10), p, POCKET, **args)[0] for p in (parts, None))
    assert mine == theirs, "the committed checkpoint says something else than with the reference"


CHECKS = (
    Check("same tokens, steps and hits as the reference, KV oracle watching", same_tokens),
    Check("shared prefixes are computed once", prefix_caching, (*MEMORY, "scheduler step")),
    Check("preemption changes no token and loses no block", preemption, (*MEMORY, "scheduler step")),
    Check("budget and seats hold in every step", limits, ("scheduler step",)),
    Check("requests end where they must, for the right reason", stop_conditions, ("stop conditions",)),
    Check("seeded requests draw the reference's tokens", sampling, ("sampling", "batch sampling")),
    Check("drafts serve pocket: the same tokens in fewer steps", lambda p: load(DRAFTS).serves(p), ("proposer",)),
    Check("the committed checkpoint says the same", real_weights),
    Check(
        "JSON as by masks, in fewer steps", lambda p: p.jump_forward and p.jump_forward.func.prove(p), ("jump-forward",)
    ),
    Check(
        "pictures become the same rows, and get the same answers", lambda p: load(TOWER).serves(p), ("vision tower",)
    ),
)


def checks_for(part: str) -> list[Check]:
    """The claims that concern a part."""
    return [check for check in CHECKS if not check.parts or part in check.parts]


def workload(parts: EngineParts | None, num_requests: int = 50) -> tuple[list[list[int]], float]:
    """Token ids of greedy requests on the committed checkpoint in a pool a little too small, and tokens per second."""
    rng = np.random.default_rng(0)
    prompts = random_prompts(6, num_requests, 64, 4000)
    params = [greedy(int(n)) for n in rng.integers(8, 24, num_requests)]
    llm = LLM(POCKET, dtype="float64", with_labs=parts, num_blocks=64, max_num_seqs=16, max_num_batched_tokens=256)
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    made = [output.outputs[0].token_ids for output in outputs]
    return made, sum(map(len, made)) / seconds
