"""Engines that offload, on a small random checkpoint: a pool that never holds all conversations, and what must hold."""

import time

import numpy as np

from mini_vllm import LLM, SamplingParams
from mini_vllm.model_loader.random_checkpoint import save_random_checkpoint
from mini_vllm.tests.engine.test_kv_cache_groups import CONFIG, KINDS

GREEDY = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
MIB = 1 << 20
SIZE = MIB / (1 << 30)  # GiB
BLOCK = 4 * 2 * 2 * 8 * 8 * 3  # bytes: tokens, key and value, heads, numbers of 8 bytes, layers


def save(folder, kind="full"):
    types = KINDS.get(kind, ["full_attention"] * 3)
    return save_random_checkpoint(folder, {**CONFIG, "layer_types": types}, std=0.3)


def conversations(count=6, length=33, shared=8):
    """Prompts that begin alike and go on apart."""
    rng = np.random.default_rng(5)
    begin = rng.integers(0, 60, shared).tolist()
    return [{"prompt_token_ids": begin + rng.integers(0, 60, length - shared).tolist()} for _ in range(count)]


def make(folder, offload=True, extra=None, **settings):
    transfer = {"kv_connector_extra_config": extra} if extra else None
    size = SIZE if offload else None
    return LLM(
        str(folder), kv_offloading_size=size, kv_transfer_config=transfer,
        **{"dtype": "float64", "block_size": 4, "num_blocks": 40, **settings},
    )  # fmt: skip


def transfer(root, num_host_blocks=24, **tier):
    extra = {
        "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": num_host_blocks * BLOCK,
        "secondary_tiers": [{"type": "fs_python", "root_dir": str(root), **tier}],
    }  # fmt: skip
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def make_tiers(folder, root, num_host_blocks=24, tier=None, **settings):
    given = transfer(root, num_host_blocks, **(tier or {}))
    settings = {"dtype": "float64", "block_size": 4, "num_blocks": 16, **settings}
    return LLM(str(folder), kv_transfer_config=given, **settings)


def serve(llm, prompts, rounds=2, at_once=True):
    """Outputs of all rounds; when all is over, nothing is held and nothing is on its way.

    One by one, each waits until the files of the one before are written: what a disk is still taking cannot leave the
    host's memory, so that with little of it a slow disk would get fewer blocks than a fast one.
    """
    outputs = []
    for _ in range(rounds):
        for batch in [prompts] if at_once else [[prompt] for prompt in prompts]:
            outputs += llm.generate(batch, GREEDY, use_tqdm=False)
            if not at_once:
                settle(llm)
    check(llm)
    return outputs


def tiers_of(llm):
    connector = llm.llm_engine.scheduler.connector
    manager = connector.connector.connector_scheduler.manager if connector else None
    return getattr(manager, "secondary_tiers", ())


def settle(llm):
    """Wait until no file is being written or read; the next step hears of it."""
    for tier in tiers_of(llm):
        tier._pool.wait_idle()


def check(llm):
    """After the last copy: every block is free, nobody reads one in the host's memory, none is lost there."""
    core, deadline = llm.llm_engine.engine_core, time.monotonic() + 120
    while core.has_requests() or core.batch_queue:
        core.step_fn()
        assert time.monotonic() < deadline, core.scheduler.requests
    manager = core.kv_cache_manager
    assert not core.scheduler.requests and manager.block_pool.get_num_free_blocks() == core.num_blocks - 1
    if core.scheduler.connector is None:
        return
    half = core.scheduler.connector.connector.connector_scheduler
    assert not half._req_status and not half._jobs.jobs and not half._jobs._block_id_to_pending_jobs
    assert not half._blocks_being_loaded
    settle(llm)
    for tier in tiers_of(llm):
        list(half.manager.take_events())
        assert not half.manager._transfer_jobs and not tier._jobs and not tier._void
        files = [path for path in tier.file_mapper.blocks_path.rglob("*") if path.is_file()]
        assert len(files) == tier._num_files <= tier._capacity and all(path.suffix == ".bin" for path in files)
    check_host(getattr(half.manager, "primary_tier", half.manager))


def check_host(manager):
    """Each place holds one block or is free, and all blocks are complete and unread."""
    policy = manager._policy
    rows = [policy.blocks] if hasattr(policy, "blocks") else [policy.t1, policy.t2]
    held = [block for row in rows for block in row.values()]
    assert all(block.ref_cnt == 0 for block in held)
    places = [block.block_id for block in held] + manager._free_list
    assert sorted(places) == list(range(manager._num_allocated_blocks))


def tokens_of(outputs):
    return [output.outputs[0].token_ids for output in outputs]


def hits_of(llm):
    return llm.llm_engine.scheduler.connector.prefix_cache_stats.hits


def worker_of(llm):
    return llm.llm_engine.engine_core.model_runner.kv_connector.kv_connector.connector_worker
