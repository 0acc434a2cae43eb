"""Slots, the adapters in memory, and what is refused."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from mini_vllm import LLM, AsyncLLM, LoRARequest, SamplingParams
from mini_vllm.config.lora import LoRAConfig
from mini_vllm.lora.lora_model import TENSORS_NAME
from mini_vllm.lora.model_manager import LRUCacheLoRAModelManager
from mini_vllm.lora.peft_helper import CONFIG_NAME
from mini_vllm.lora.punica_wrapper.punica_cpu import TOGETHER_ROWS, PunicaWrapperCPU
from mini_vllm.lora.worker_manager import LRUCacheWorkerLoRAManager
from mini_vllm.model_loader.default_loader import load_model
from mini_vllm.tests.lora.adapters import save_adapter
from mini_vllm.tests.models.tiny_checkpoints import save_tiny

ONE = SamplingParams(temperature=0, max_tokens=1)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_tiny("llama", tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapters(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    return [LoRARequest(f"{i}", i, str(save_adapter(folder / f"{i}", base, seed=i))) for i in range(1, 6)]


def manager(base, **settings):
    return LRUCacheWorkerLoRAManager(load_model(str(base)), LoRAConfig(**settings))


def activate(worker, *requests):
    worker.set_active_adapters(requests, np.array([r.lora_int_id for r in requests], np.int64))
    return worker.adapter_manager.lora_index_to_id


def test_slots_go_to_whoever_is_asked_for_and_are_taken_from_the_one_unused_for_longest(base, adapters):
    a, b, c, d, _ = adapters
    worker = manager(base, max_loras=2)
    assert activate(worker, a) == [1, None]
    assert activate(worker, b) == [1, 2]
    assert activate(worker, a) == [1, 2] and worker.num_loads == 2
    assert activate(worker, c) == [1, 3], "2 was used before 1"
    assert activate(worker, d, a) == [1, 4], "1 is in the step: it keeps its slot although 3 was used later"
    assert worker.list_adapters() == {1, 4} and worker.num_loads == 4


def test_an_adapter_in_memory_comes_back_without_being_read(base, adapters):
    worker = manager(base, max_loras=1, max_cpu_loras=3)
    for request in adapters[:3]:
        activate(worker, request)
    assert activate(worker, adapters[0]) == [1] and worker.num_loads == 3
    activate(worker, adapters[3])
    assert worker.list_adapters() == {1, 3, 4}, "2 was used least recently"
    assert activate(worker, adapters[1]) == [2] and worker.num_loads == 5


def test_a_pinned_adapter_stays(base, adapters):
    worker = manager(base, max_loras=2)
    activate(worker, adapters[0])
    assert worker.pin_adapter(1)
    for request in adapters[1:4]:
        assert activate(worker, request)[0] == 1
    worker.pin_adapter(4)
    with pytest.raises(RuntimeError, match="all 2 entries are pinned"):
        activate(worker, adapters[4])
    with pytest.raises(ValueError, match=r"Pinning failed. LoRA 9 is not registered."):
        worker.pin_adapter(9)
    assert worker.remove_adapter(1) and not worker.remove_adapter(1)
    assert activate(worker, adapters[4]) == [5, 4]


def test_more_adapters_than_slots_is_the_second_guard(base, adapters):
    worker = manager(base, max_loras=1)
    with pytest.raises(RuntimeError, match=r"requested LoRAs \(2\) is greater than the number of LoRA slots \(1\)"):
        activate(worker, *adapters[:2])


def test_the_buffers_are_reserved_whatever_comes(base):
    made = LRUCacheLoRAModelManager(load_model(str(base)), LoRAConfig(max_loras=3, max_lora_rank=8))
    sizes = [sum(np.prod(shape) for shape in module.shapes.values()) for module in made.modules.values()]
    per_slot = sum(8 * sum(out + into for out, into in module.shapes.values()) for module in made.modules.values())
    assert made.nbytes == 3 * per_slot * 4 and len(sizes) == len(made.modules)
    some = LRUCacheLoRAModelManager(load_model(str(base)), LoRAConfig(target_modules=["o_proj"]))
    assert {name.rpartition(".")[2] for name in some.shapes} == {"o_proj"}


@pytest.mark.parametrize("num_tokens", [5, 40, 200])
@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("uneven", [False, True])
def test_both_products_are_the_sum_over_rows(num_tokens, slices, uneven):
    """Whichever is taken, and for a part of the step as for the whole, and with padding behind it."""
    rng = np.random.default_rng(num_tokens)
    slots, rank, inputs, sizes = 4, 8, 24, [16, 8, 8][:slices]
    a = rng.standard_normal((slots, slices, rank, inputs))
    b = [rng.standard_normal((slots, rank, size)) for size in sizes]
    indices = rng.integers(-1, slots, num_tokens)
    if uneven:  # one slot has most of the rows, one has none
        indices[num_tokens // 4 :] = 2
        indices[indices == 1] = 3
    x, y = rng.standard_normal((num_tokens + 3, inputs)), rng.standard_normal((num_tokens + 3, sum(sizes)))
    expected = y.copy()
    for row, slot in enumerate(indices):
        if slot >= 0:
            expected[row] += np.concatenate([x[row] @ a[slot, i].T @ b[i][slot] for i in range(slices)])
    wrapper = PunicaWrapperCPU(slots, rank)
    wrapper.update_metadata(indices)
    whole, parts = y.copy(), y.copy().T.copy()
    wrapper.add_lora_linear(whole, x, a, b)
    for first in range(0, num_tokens, 32):
        here = slice(first, min(first + 32, num_tokens))
        wrapper.add_lora_linear(parts[:, here].T, x[here], a, b, first)
    assert np.allclose(whole, expected, rtol=0, atol=1e-12) and np.allclose(parts.T, expected, rtol=0, atol=1e-12)
    part = wrapper._part(0, num_tokens)
    assert uneven or num_tokens < 40 or part.together == (num_tokens <= slots * TOGETHER_ROWS)
    wrapper.update_metadata(np.full(num_tokens, -1))
    before = whole.copy()
    wrapper.add_lora_linear(whole, x, a, b)
    assert (whole == before).all(), "no row has an adapter"


def _break(folder, base, change=None, tensors=None, **settings):
    save_adapter(folder, base, seed=9, **settings)
    if change:
        config = json.loads((folder / CONFIG_NAME).read_text())
        config.update(change)
        (folder / CONFIG_NAME).write_text(json.dumps({k: v for k, v in config.items() if v is not ...}))
    if tensors is not None:
        (folder / TENSORS_NAME).write_bytes(tensors)
    return LoRARequest("bad", 7, str(folder))


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"rank": 32}, ValueError, "LoRA rank 32 is greater than max_lora_rank 16"),
        ({"change": {"bias": "all"}}, ValueError, "adapter bias is not supported"),
        ({"change": {"use_dora": True}}, ValueError, "DoRA is not supported"),
        ({"change": {"modules_to_save": ["lm_head"]}}, ValueError, "modules_to_save must be empty"),
        ({"change": {"alpha_pattern": {"q_proj": 3}}}, ValueError, "alpha_pattern must be empty"),
        ({"change": {"peft_type": "IA3"}}, ValueError, "peft_type must be 'LORA', got 'IA3'"),
        ({"change": {"r": 0}}, ValueError, "r must be a whole number of at least 1, got 0"),
        ({"change": {"r": 2}}, ValueError, r"lora_A.weight must have shape \(2, \d+\), got \(4, \d+\)"),
        ({"change": {"lora_alpha": "8"}}, ValueError, "lora_alpha must be a number, got '8'"),
        ({"change": {"lora_alpha": ...}}, ValueError, "must have lora_alpha"),
        ({"targets": ("q_proj", "embed_tokens")}, ValueError, "target modules must be among .*embed_tokens"),
        ({"targets": ("q_proj", "embed_tokens")}, ValueError, "adapters of embeddings and output matrices"),
        ({"tensors": b"not safetensors"}, ValueError, "truncated or not safetensors"),
    ],
)  # fmt: skip
def test_an_adapter_that_cannot_be_served_is_refused_before_anything_is_queued(
    base, adapters, tmp_path, how, error, words
):
    llm = LLM(str(base), enable_lora=True, num_blocks=32, max_model_len=32, skip_tokenizer_init=True)
    with pytest.raises(error, match=f"(?s)LoRA adapter 'bad' cannot be served: .*{words}"):
        llm.generate([[1, 2]], ONE, lora_request=_break(tmp_path / "bad", base, **how), use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests() and llm.llm_engine.list_loras() == set()
    assert llm.generate([[1, 2]], ONE, lora_request=adapters[0], use_tqdm=False)[0].finished


def test_what_else_is_refused(base, adapters, tmp_path):
    with pytest.raises(ValueError, match="lora_int_id must be a whole number above 0"):
        LoRARequest("x", 0, "y")
    with pytest.raises(ValueError, match="lora_path must be the folder of the adapter"):
        LoRARequest("x", 1)
    plain = LLM(str(base), num_blocks=32, max_model_len=32, skip_tokenizer_init=True)
    with pytest.raises(ValueError, match="lora_request needs an engine with enable_lora=True, got '1'"):
        plain.generate([[1, 2]], ONE, lora_request=adapters[0], use_tqdm=False)
    llm = LLM(str(base), enable_lora=True, num_blocks=32, max_model_len=32, skip_tokenizer_init=True)
    with pytest.raises(ValueError, match="LoRA adapter 'gone' is not there"):
        llm.generate([[1, 2]], ONE, lora_request=LoRARequest("gone", 3, str(tmp_path)), use_tqdm=False)
    with pytest.raises(TypeError, match="lora_request must be a LoRARequest or None, got int: 5"):
        llm.generate([[1, 2]], ONE, lora_request=5, use_tqdm=False)
    with pytest.raises(ValueError, match="one for each of 1 prompts, got 2"):
        llm.generate([[1, 2]], ONE, lora_request=adapters[:2], use_tqdm=False)
    llm.generate([[1, 2]], ONE, lora_request=adapters[0], use_tqdm=False)
    for name, number in (("1", 2), ("other", 1)):
        with pytest.raises(ValueError, match="a name and a number belong together"):
            llm.generate([[1, 2]], ONE, lora_request=LoRARequest(name, number, adapters[1].path), use_tqdm=False)
    with pytest.raises(ValueError, match="load_inplace=True replaces it"):
        llm.generate([[1, 2]], ONE, lora_request=LoRARequest("1", 1, adapters[1].path), use_tqdm=False)
    again = LoRARequest("1", 1, adapters[1].path, load_inplace=True)
    with pytest.raises(ValueError, match="'1' must have load_inplace=False, got True: `add_lora` replaces an adapter"):
        llm.generate([[1, 2]], ONE, lora_request=again, use_tqdm=False)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"enable_lora": True, "max_lora_rank": 17}, r"max_lora_rank must be one of \(1, 8, 16, .*, got 17"),
        ({"enable_lora": True, "max_loras": 0}, "max_loras must be at least 1, got 0"),
        ({"enable_lora": True, "max_loras": 3, "max_cpu_loras": 2}, r"must be at least max_loras \(3\), got 2"),
        ({"max_loras": 2}, "max_loras needs enable_lora=True, got 2"),
        ({"enable_lora": True, "lora_target_modules": ["embed"]}, "no projection named"),
        ({"enable_lora": True, "fully_sharded_loras": True}, "fully_sharded_loras must be False"),
        ({"enable_lora": True, "max_loras": 10**9}, "max_loras=1000000000 with max_lora_rank=16"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(base, settings, words):
    with pytest.raises(ValueError, match=words):
        LLM(str(base), num_blocks=32, max_model_len=32, skip_tokenizer_init=True, **settings)


def test_an_adapter_is_replaced_in_place_and_its_blocks_are_forgotten(base, adapters, tmp_path):
    llm = LLM(str(base), enable_lora=True, num_blocks=32, max_model_len=32, block_size=4, skip_tokenizer_init=True)
    engine, prompt = llm.llm_engine, [[3] * 9]
    first = LoRARequest("mine", 1, adapters[0].path)
    assert engine.add_lora(first) and not engine.add_lora(first)
    engine.pin_lora(1)
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=1)
    before = llm.generate(prompt, params, lora_request=first, use_tqdm=False)[0]
    second = LoRARequest("mine", 1, adapters[1].path, load_inplace=True)
    assert engine.add_lora(second)
    after = llm.generate(prompt, params, lora_request=LoRARequest("mine", 1, adapters[1].path), use_tqdm=False)[0]
    fresh = LLM(str(base), enable_lora=True, num_blocks=32, max_model_len=32, skip_tokenizer_init=True)
    expected = fresh.generate(prompt, params, lora_request=adapters[1], use_tqdm=False)[0]
    assert after.num_cached_tokens == 0
    assert after.outputs[0].logprobs == expected.outputs[0].logprobs != before.outputs[0].logprobs
    engine.add_request("runs", [1, 2], params)
    engine.step()
    with pytest.raises(RuntimeError, match="only while no request runs"):
        engine.add_lora(second)


def test_an_adapter_that_changed_on_disk_does_not_meet_the_blocks_of_the_former_one(base, adapters, tmp_path):
    mine = LoRARequest("mine", 1, str(shutil.copytree(adapters[0].path, tmp_path / "mine")))
    llm = LLM(str(base), enable_lora=True, num_blocks=32, max_model_len=32, block_size=4, skip_tokenizer_init=True)
    prompt, params = [[3] * 9], SamplingParams(temperature=0, max_tokens=3)
    first = llm.generate(prompt, params, lora_request=mine, use_tqdm=False)[0]
    llm.llm_engine.remove_lora(1)  # it comes back as it was, and so do its blocks
    second = llm.generate(prompt, params, lora_request=mine, use_tqdm=False)[0]
    assert second.outputs[0].token_ids == first.outputs[0].token_ids and second.num_cached_tokens == 8
    shutil.copy(Path(adapters[1].path, TENSORS_NAME), mine.lora_path)
    llm.llm_engine.remove_lora(1)
    failed = llm.generate(prompt, params, lora_request=mine, use_tqdm=False)[0].outputs[0]
    assert failed.finish_reason == "error" and "'mine' cannot be served: its files in" in failed.stop_reason
    assert llm.llm_engine.add_lora(dataclasses.replace(mine, load_inplace=True))
    third = llm.generate(prompt, params, lora_request=mine, use_tqdm=False)[0]
    assert third.num_cached_tokens == 0 and third.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("multiprocessing", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_streams_with_adapters(base, adapters, multiprocessing):
    async def main():
        llm = AsyncLLM(
            str(base), enable_lora=True, max_loras=2, num_blocks=64, max_model_len=32, skip_tokenizer_init=True,
            enable_multiprocessing=multiprocessing,
        )  # fmt: skip
        params = SamplingParams(temperature=0, max_tokens=4)

        async def one(i, request):
            last = None
            async for output in llm.generate([4, 5, 6], params, f"r{i}", lora_request=request):
                last = output
            return list(last.outputs[0].token_ids)

        with pytest.raises(ValueError, match="'gone' is not there"):
            await one(99, LoRARequest("gone", 50, str(base / "nowhere")))
        found = await asyncio.gather(*(one(i, r) for i, r in enumerate([None, *adapters[:4]])))
        names = await llm.list_loras()
        llm.shutdown()
        return found, names

    found, names = asyncio.run(main())
    llm = LLM(str(base), enable_lora=True, max_loras=4, num_blocks=64, max_model_len=32, skip_tokenizer_init=True)
    params = SamplingParams(temperature=0, max_tokens=4)
    expected = llm.generate([[4, 5, 6]] * 5, params, lora_request=[None, *adapters[:4]], use_tqdm=False)
    assert found == [list(output.outputs[0].token_ids) for output in expected]
    assert len(names) == 2


def test_what_upstream_serves_and_this_engine_does_not_is_named(base, tmp_path):
    """Experts, embeddings and output matrices: each with a sentence."""
    from mini_vllm.lora.lora_model import _not_served
    from mini_vllm.lora.utils import parse_fine_tuned_lora_name

    assert "adapters of experts are not served" in _not_served(["model.layers.0.block_sparse_moe.experts.3.w1"])
    assert "output matrices are not served" in _not_served(["lm_head"])
    assert _not_served(["model.layers.0.mlp.odd"]) == ""
    for name in ("model.embed_tokens.lora_embedding_A", "lm_head.base_layer.weight"):  # as PEFT writes them
        with pytest.raises(ValueError, match="of an embedding or an output matrix: those are not served"):
            parse_fine_tuned_lora_name(f"base_model.model.{name}")
