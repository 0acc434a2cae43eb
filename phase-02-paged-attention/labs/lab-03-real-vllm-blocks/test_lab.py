"""Lab 02-03: your predictions against true captures of vLLM 0.22.1, and, where it is installed, a run of your own."""

from __future__ import annotations

import json
import lzma
import re
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CAPTURED = HERE / "captured"
POCKET = HERE.parents[2] / "models" / "pocket"
OPT_BLOCK = 16 * 36_864


def facts(name):
    return json.loads(lzma.decompress((CAPTURED / f"{name}.json.xz").read_bytes()))


def logged(name):
    """(available GiB or None, tokens, max_model_len, concurrency) of a startup log."""
    log = (CAPTURED / name).read_text(encoding="utf-8")
    gib = re.search(r"Available KV cache memory: ([\d.]+) GiB", log)
    tokens = re.search(r"GPU KV cache size: ([\d,]+) tokens", log).group(1)
    length, times = re.search(r"concurrency for ([\d,]+) tokens per request: ([\d.]+)x", log).groups()
    return gib and float(gib.group(1)), int(tokens.replace(",", "")), int(length.replace(",", "")), float(times)


def h200(what):
    rows = [json.loads(line) for line in (CAPTURED / "h200-results.jsonl").read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["what"] == what]


# ---- on paper --------------------------------------------------------------------------------------------------------


def test_bytes(impl):
    assert impl.kv_bytes_per_token(12, 12, 64, 2) == 36_864, "OPT-125m in fp16"
    assert impl.kv_bytes_per_token(32, 8, 128, 2) == 131_072, "Llama-3-8B in bf16"
    assert impl.num_gpu_blocks(10 * OPT_BLOCK, 16, 36_864) == 10
    assert impl.num_gpu_blocks(10 * OPT_BLOCK - 1, 16, 36_864) == 9, "nine blocks and most of a tenth are nine blocks"
    assert impl.num_gpu_blocks(10 * OPT_BLOCK, 128, 36_864) == 1, "a block of 128 tokens is eight times as large"
    exact = impl.num_gpu_blocks(3 * 2**60 - 1, 1, 2**30)
    assert exact == 3 * 2**30 - 1, f"whole numbers, without a detour over floats: expected {3 * 2**30 - 1}, got {exact}"


def test_capacity(impl):
    assert impl.usable_tokens(8788, 16) == 140_592, "block 0 holds nobody's tokens"
    assert impl.max_concurrency(8788, 16, 2048) == pytest.approx(68.65625)
    assert impl.usable_tokens(10, 128) == 1152, "another block size"
    assert impl.max_concurrency(100, 16, 33) == pytest.approx(100 / 3), "33 tokens occupy 3 blocks"
    assert impl.max_concurrency(100, 8, 33) == 20.0, "and 5 blocks of 8"


def test_two_starts_give_the_card(impl):
    """A card of 1,000 bytes, 100 of them not for blocks, blocks of 10: 40 blocks at 0.5, 80 at 0.9."""
    assert impl.fit_memory(0.5, 40, 0.9, 80, 10) == pytest.approx((1000.0, 100.0))
    assert impl.fit_memory(0.9, 80, 0.5, 40, 10) == pytest.approx((1000.0, 100.0)), "the larger start first"
    assert impl.fit_memory(0.25, 30, 0.75, 90, 20) == pytest.approx((2400.0, 0.0)), "half the card: 60 blocks of 20"


def test_hits_on_paper(impl):
    assert impl.cached_tokens(1025, 1025, 16) == 1024
    assert impl.cached_tokens(1024, 1024, 16) == 1008, "the last token must be computed, and with it its block"
    assert impl.cached_tokens(1025, 520, 16) == 512 and impl.cached_tokens(6, 6, 16) == 0
    assert [impl.cached_tokens(n, n, 128) for n in (1025, 1024)] == [1024, 896], "another block size"
    assert impl.cached_tokens(100, 0, 16) == 0
    assert (
        impl.expected_hit_rate(8, 1025, 16) == pytest.approx(7 * 1024 / (8 * 1025)) == pytest.approx(0.8741, abs=5e-5)
    )
    assert impl.expected_hit_rate(8, 6, 16) == 0.0, "a prompt shorter than a block hits nothing, however often it comes"
    assert impl.expected_hit_rate(1, 1025, 16) == 0.0
    last = impl.expected_hit_rate(8, 1024, 16)
    assert last == pytest.approx(7 * 1008 / (8 * 1024)), f"63 of 64 blocks can be hit; got {last}"
    assert impl.expected_hit_rate(2, 9, 4) == pytest.approx(8 / 18), "another block size, two requests"


def test_blocks_of_a_request(impl):
    assert [impl.blocks_of_request(40, n, 16) for n in (1, 8, 9, 10, 25, 26)] == [3, 3, 3, 4, 4, 5]
    assert impl.blocks_of_request(1, 1, 16) == 1
    assert [impl.blocks_of_request(40, n, 8) for n in (1, 2, 9, 10)] == [5, 6, 6, 7], "another block size"


def test_one_request_through_the_queue(impl):
    free, hits = [4, 5, 6, 3, 2, 1], [1, 2]
    assert impl.serve_one(free, [], 2) == ([4, 5], [6, 3, 2, 1, 5, 4])
    assert impl.serve_one(free, hits, 1) == ([1, 2, 4], [5, 6, 3, 4, 2, 1])
    assert impl.serve_one(free, hits, 4) == ([1, 2, 4, 5, 6, 3], [3, 6, 5, 4, 2, 1])
    assert impl.serve_one(free, [4, 5], 1) == ([4, 5, 6], [3, 2, 1, 6, 5, 4]), "hits at the front are not new blocks"
    with pytest.raises(ValueError, match=r"^5 blocks wanted, 4 are free$"):
        impl.serve_one(free, hits, 5)
    assert (free, hits) == ([4, 5, 6, 3, 2, 1], [1, 2]), "queue and hits are the caller's, and were changed"
    assert impl.serve_one([7], [], 0) == ([], [7]), "a request that needs no block at all"


# ---- an H200, OPT-125m's shape ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["04-2048", "04-256", "05-2048", "09-2048"])
def test_h200_start(impl, name):
    gib, tokens, length, concurrency = logged(f"h200-start-{name}.log")
    (row,) = [r for r in h200("start") if r["exp"] == f"start_{name.replace('-', '_')}"]
    blocks = row["num_gpu_blocks"]
    per_token = impl.kv_bytes_per_token(12, 12, 64, 2)
    low, high = (impl.num_gpu_blocks(round((gib + d) * 2**30), 16, per_token) for d in (-0.005, 0.005))
    assert low <= blocks <= high, f"{gib} GiB, rounded to two digits, are {low} to {high} blocks; there are {blocks}"
    assert tokens == blocks * 16 == impl.usable_tokens(blocks, 16) + 16, "the log counts the null block"
    assert concurrency == round(impl.max_concurrency(blocks, 16, length), 2)


def test_h200_memory_is_a_straight_line(impl):
    blocks = {r["gpu_memory_utilization"]: r["num_gpu_blocks"] for r in h200("start") if r["exp"] != "opt_eager"}
    total, fixed = impl.fit_memory(0.4, blocks[0.4], 0.5, blocks[0.5], OPT_BLOCK)
    assert total / 2**30 == pytest.approx(139.8, abs=0.01), "GiB that the driver reports as the card's"
    assert fixed / 2**30 == pytest.approx(1.38, abs=0.01), "weights, activations, graphs, CUDA's own"
    predicted = (0.9 * total - fixed) / OPT_BLOCK
    assert abs(predicted - blocks[0.9]) < 2, f"predicted {predicted:.1f} blocks at 0.9, measured {blocks[0.9]}"
    assert blocks[0.9] / blocks[0.5] > 1.8, "the fixed part does not grow, so the cache grows faster than utilization"


def test_h200_blocks_do_not_depend_on_max_model_len(impl):
    blocks = {(r["gpu_memory_utilization"], r["max_model_len"]): r["num_gpu_blocks"] for r in h200("start")}
    for util in (0.4, 0.5, 0.9):
        assert blocks[util, 256] == blocks[util, 2048]
    ratio = impl.max_concurrency(blocks[0.4, 256], 16, 256) / impl.max_concurrency(blocks[0.4, 2048], 16, 2048)
    assert ratio == 8, "only the printed worst case moves"


def test_h200_hits(impl):
    for row in h200("prefix"):
        hit = impl.cached_tokens(1025, 1025, 16)
        expected = {
            "8 identical, one generate call": [0] + [hit] * 7,
            "the same prompt again, 8 in one call": [hit] * 8,
            "8 identical, one after another, after reset": [0] + [hit] * 7,
            "new prompt, and one sharing its first half": [0, impl.cached_tokens(1025, 512, 16)],
        }[row["case"]]
        assert row["num_cached_tokens"] == expected


# ---- a CPU, pocket ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "space"), [("hits", 1), ("space-2", 2), ("default", 1)])
def test_cpu_start(impl, name, space):
    run = facts(f"cpu-{name}")
    per_token = impl.kv_bytes_per_token(8, 2, 64, 4)
    assert run["num_blocks"] == impl.num_gpu_blocks(space * 2**30, run["block_size"], per_token)
    _, tokens, length, concurrency = logged(f"cpu-{name}.log")
    assert tokens == run["num_blocks"] * run["block_size"]
    assert concurrency == round(impl.max_concurrency(run["num_blocks"], run["block_size"], length), 2)
    assert run["block_size"] == (128 if name == "default" else 16), "the CPU backend prefers 128, the GPU 16"
    assert (run["gpu_memory_utilization"], run["hash_algo"], run["prefix_caching_in_effect"]) == (0.92, "sha256", True)


def test_cpu_hits(impl):
    run = facts("cpu-hits")
    cached = [hit for call in run["calls"] for hit in call["cached"]]
    full = impl.cached_tokens(1025, 1025, 16)
    assert cached == [0] + [full] * 7 + [impl.cached_tokens(1025, 512, 16), 0, impl.cached_tokens(6, 6, 16)]
    assert sum(cached[:8]) / (8 * 1025) == pytest.approx(impl.expected_hit_rate(8, 1025, 16))
    assert all(call["usage_after"] == 0.0 for call in run["calls"]), "nobody is left, and everything is still cached"


def predicted_calls(impl, run):
    """Block tables and free queues of the run's calls, from `serve_one` and a dictionary of what is cached."""
    free, cached, size = list(range(1, run["num_blocks"])), {}, run["block_size"]
    for call in run["calls"]:
        prompt, tokens = call["prompts"][0], call["prompts"][0] + call["tokens"][0]
        full = impl.cached_tokens(len(prompt), len(prompt), size) // size
        hits = []
        for i in range(full if run["prefix_caching_in_effect"] else 0):
            if tuple(prompt[: (i + 1) * size]) not in cached:
                break
            hits.append(cached[tuple(prompt[: (i + 1) * size])])
        needed = impl.blocks_of_request(len(prompt), len(call["tokens"][0]), size)
        table, free = impl.serve_one(free, hits, needed - len(hits))
        cached = {key: block for key, block in cached.items() if block not in table[len(hits) :]}
        for i in range((len(tokens) - 1) // size):
            cached.setdefault(tuple(tokens[: (i + 1) * size]), table[i])
        yield len(hits) * size, table, free


@pytest.mark.parametrize("name", ["cpu-pool", "cpu-pool-off"])
def test_you_predict_every_block_table_and_the_queue(impl, name):
    """Five requests in a pool of 12 blocks: each table and the whole free queue after each, as real vLLM had them."""
    run = facts(name)
    tables = {}
    for step in run["steps"]:
        tables |= step["tables"]
    real = list(tables.values())
    assert len(real) == len(run["calls"]) == 5
    for i, (hits, table, free) in enumerate(predicted_calls(impl, run)):
        call = run["calls"][i]
        assert hits == call["cached"][0]
        assert table == real[i], f"request {i}: predicted table {table}, real {real[i]}"
        assert free == call["free_after"], f"after request {i}: predicted queue {free}, real {call['free_after']}"


@pytest.mark.parametrize("name", ["cpu-pool", "cpu-pool-off"])
def test_mini_vllm_has_the_same_blocks_at_every_step(impl, name):
    from mini_vllm import LLMEngine, SamplingParams

    run = facts(name)
    eng = LLMEngine(num_blocks=12, block_size=16, max_model_len=128, enable_prefix_caching=name == "cpu-pool")
    manager, steps = eng.scheduler.kv_cache_manager, iter(run["steps"])
    for i, call in enumerate(run["calls"]):
        params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
        eng.add_request(str(i), {"prompt_token_ids": call["prompts"][0]}, params)
        assert impl.blocks_of_request(len(call["prompts"][0]), 12, 16) <= 7
        for _ in range(12):
            plan = eng.scheduler.schedule()
            real = next(steps)
            assert list(plan.num_scheduled_tokens.values()) == list(real["scheduled"].values())
            assert manager.get_block_ids(str(i))[0] == next(iter(real["tables"].values()))
            assert manager.usage == pytest.approx(real["usage"], abs=1e-6)
            queue = manager.block_pool.free_block_queue.get_all_free_blocks()
            assert [block.block_id for block in queue] == real["free"]
            eng.engine_core.model_runner.execute_model(plan)
            eng.scheduler.update_from_output(plan, eng.engine_core.model_runner.sample_tokens())


def test_the_cache_changed_no_token(impl):
    on, off = facts("cpu-pool"), facts("cpu-pool-off")
    assert [c["tokens"] for c in on["calls"]] == [c["tokens"] for c in off["calls"]]
    assert on["calls"][0]["tokens"] == on["calls"][1]["tokens"] == on["calls"][4]["tokens"]
    shared = impl.cached_tokens(40, 40, 16)
    assert [c["cached"] for c in on["calls"]] == [[0], [shared], [shared], [0], [shared]]
    assert [c["cached"] for c in off["calls"]] == [[0]] * 5


# ---- a run of your own -----------------------------------------------------------------------------------------------


@pytest.mark.real_vllm
def test_live(impl, real_vllm_python, tmp_path):
    """About half a minute: starts vLLM on models/pocket with twelve blocks and predicts what its pool does."""
    command = [str(real_vllm_python), str(HERE / "real_run.py"), "--model", str(POCKET), "--out", str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=540)
    assert done.returncode == 0, done.stdout[-3000:]
    run = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    for call, (hits, _, free) in zip(run["calls"], predicted_calls(impl, run), strict=True):
        assert (hits, free) == (call["cached"][0], call["free_after"])
