"""`n` completions of a prompt: each a request of its own, and the prompt's full blocks held once."""

from __future__ import annotations

import pytest

from mini_vllm import LLM, LLMEngine, SamplingParams

BLOCK = 4


def engine(**args):
    return LLMEngine(num_blocks=128, **{"block_size": BLOCK, "max_num_seqs": 16, **args})


def blocks_of(made, index):
    return made.scheduler.kv_cache_manager.get_block_ids(f"{index}_r")[0]


def in_use(made):
    pool = made.scheduler.kv_cache_manager.block_pool
    return pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()


@pytest.mark.parametrize(("num_prompt", "n"), [(33, 4), (9, 4), (32, 3), (3, 5), (64, 8)])
def test_the_children_hold_the_prompts_full_blocks_once(num_prompt, n):
    """All but the last token's block: the last token has to be computed by each, for its logits."""
    made = engine()
    params = SamplingParams(n=n, seed=7, max_tokens=5, ignore_eos=True)
    made.add_request("r", {"prompt_token_ids": list(range(1, num_prompt + 1))}, params)
    made.step()
    shared = (num_prompt - 1) // BLOCK
    tables = [blocks_of(made, i) for i in range(n)]
    assert all(table[:shared] == tables[0][:shared] for table in tables)
    tails = [block for table in tables for block in table[shared:]]
    assert len(set(tails)) == len(tails) and not set(tails) & set(tables[0][:shared])
    pool = made.scheduler.kv_cache_manager.block_pool
    assert {pool.blocks[block].ref_cnt for block in tables[0][:shared]} <= {n}
    assert in_use(made) == shared + len(tails)
    # Tokens computed: the prompt once, and of each other child what the shared blocks do not hold.
    computed = made.engine_core.num_scheduled_tokens
    assert computed == num_prompt + (n - 1) * (num_prompt - shared * BLOCK)


def test_without_the_cache_each_has_its_own():
    made = engine(enable_prefix_caching=False)
    made.add_request("r", {"prompt_token_ids": list(range(1, 34))}, SamplingParams(n=4, seed=7, max_tokens=5))
    made.step()
    tables = [blocks_of(made, i) for i in range(4)]
    assert len({block for table in tables for block in table}) == sum(map(len, tables)) == in_use(made)
    assert made.engine_core.num_scheduled_tokens == 4 * 33


def test_shared_blocks_go_back_when_the_last_child_ends():
    made = engine()
    params = SamplingParams(n=3, seed=1, max_tokens=12, ignore_eos=True)
    made.add_request("r", {"prompt_token_ids": list(range(1, 18))}, params)
    made.step()
    shared = blocks_of(made, 0)[:4]
    pool = made.scheduler.kv_cache_manager.block_pool
    for ended, left in (("0_r", 2), ("2_r", 1), ("1_r", 0)):
        made.core_client.abort_requests([ended])
        made.step()
        assert {pool.blocks[block].ref_cnt for block in shared} == {left}
    assert in_use(made) == 0


def test_they_are_what_n_requests_with_these_seeds_give():
    """Child `i` has seed + i: its tokens are those of a request of its own, and no two streams are one."""
    llm = LLM(num_blocks=128, block_size=BLOCK)
    params = {"max_tokens": 8, "ignore_eos": True, "temperature": 1.3, "top_p": 0.9}
    [together] = llm.generate("a prompt", SamplingParams(n=4, seed=7, **params), use_tqdm=False)
    alone = [llm.generate("a prompt", SamplingParams(seed=7 + i, **params), use_tqdm=False)[0] for i in range(4)]
    assert [c.token_ids for c in together.outputs] == [o.outputs[0].token_ids for o in alone]
    assert len({tuple(c.token_ids) for c in together.outputs}) == 4 and [c.index for c in together.outputs] == [
        0,
        1,
        2,
        3,
    ]
    again = llm.generate("a prompt", SamplingParams(n=4, seed=7, **params), use_tqdm=False)[0]
    assert [c.token_ids for c in again.outputs] == [c.token_ids for c in together.outputs]
