"""Files below the host's memory, through the whole engine: they outlive it, they are bounded, and whatever happens to
them, the tokens are the same."""

import logging
import os
import time
from pathlib import Path

import numpy as np
import pytest

from mini_vllm.distributed import shared_memory
from mini_vllm.kv_offload.tiering.fs import io
from mini_vllm.kv_offload.tiering.fs.io import load_block
from mini_vllm.tests.distributed.kv_transfer.offloading import (
    BLOCK,
    GREEDY,
    check,
    conversations,
    hits_of,
    make,
    make_tiers,
    save,
    serve,
    tiers_of,
    tokens_of,
)

PROMPTS = conversations()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("full"))


@pytest.fixture(scope="module")
def plain(folder):
    return tokens_of(serve(make(folder, offload=False), PROMPTS, rounds=1))


def files_of(root):
    return sorted(Path(root).rglob("*.bin"))


def tier_of(llm):
    return tiers_of(llm)[0]


@pytest.mark.parametrize("policy", ["lru", pytest.param("arc", marks=pytest.mark.slow)])
def test_files_outlive_the_engine(policy, folder, plain, tmp_path):
    first = make_tiers(folder, tmp_path, tier={"eviction_policy": policy})
    assert tokens_of(serve(first, PROMPTS, at_once=False)) == plain * 2
    assert len(files_of(tmp_path)) == 2 + 6 * 8, "every full block once"
    second = make_tiers(folder, tmp_path, tier={"eviction_policy": policy})
    outputs = serve(second, PROMPTS, rounds=1, at_once=False)
    assert tokens_of(outputs) == plain and hits_of(second) >= 6 * 24
    assert [output.num_cached_tokens for output in outputs] == [32] * 6
    assert tokens_of(serve(second, PROMPTS, rounds=3)) == plain * 3


@pytest.mark.parametrize("settings", [{"async_scheduling": True}, {"enable_prefix_caching": False}])
def test_the_same_tokens_with_other_settings(settings, folder, plain, tmp_path):
    for _ in range(2):
        llm = make_tiers(folder, tmp_path, **settings)
        assert tokens_of(serve(llm, PROMPTS)) == plain * 2


def test_a_request_that_needs_more_than_the_host_holds_begins_with_what_it_holds(folder, plain, tmp_path):
    serve(make_tiers(folder, tmp_path), PROMPTS, rounds=1, at_once=False)
    llm = make_tiers(folder, tmp_path, num_host_blocks=3)
    outputs = serve(llm, PROMPTS, rounds=2, at_once=False)
    assert tokens_of(outputs) == plain * 2 and outputs[0].num_cached_tokens == 12
    assert tokens_of(serve(llm, PROMPTS)) == plain * 2


@pytest.mark.parametrize("policy", [pytest.param("lru", marks=pytest.mark.slow), "arc"])
def test_there_are_never_more_bytes_than_allowed(policy, folder, plain, tmp_path):
    tier = {"max_bytes": 20 * (BLOCK + 400), "eviction_policy": policy}
    llm = make_tiers(folder, tmp_path, tier=tier)
    assert tokens_of(serve(llm, PROMPTS, at_once=False)) == plain * 2
    size = sum(file.stat().st_size for file in files_of(tmp_path))
    assert 0 < size <= tier["max_bytes"] and tier_of(llm).num_evicted > 0
    smaller = make_tiers(folder, tmp_path, tier={**tier, "max_bytes": 5 * (BLOCK + 400)})
    assert len(files_of(tmp_path)) <= 5, "what is too much goes at the start"
    assert tokens_of(serve(smaller, PROMPTS, rounds=1)) == plain


def shorten(file):
    file.write_bytes(file.read_bytes()[:-7])


def lengthen(file):
    file.write_bytes(file.read_bytes() + b"x")


def flip(file):
    data = bytearray(file.read_bytes())
    data[-100] ^= 4
    file.write_bytes(data)


def take_anothers(file):
    others = [other for other in files_of(file.parents[2]) if other != file]
    file.write_bytes(others[0].read_bytes())


def empty(file):
    file.write_bytes(b"")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        pytest.param(shorten, "bytes, expected", marks=pytest.mark.slow),
        pytest.param(lengthen, "bytes, expected", marks=pytest.mark.slow),
        (flip, "the checksum differs"),
        (take_anothers, "of another model or block"),
        pytest.param(empty, "0 bytes, expected", marks=pytest.mark.slow),
    ],
)
def test_a_file_with_a_fault_is_named_and_computed_again(fault, said, folder, plain, tmp_path, caplog):
    serve(make_tiers(folder, tmp_path), PROMPTS, rounds=1, at_once=False)
    files = files_of(tmp_path)
    for file in files[::3]:
        fault(file)
    llm = make_tiers(folder, tmp_path)
    with caplog.at_level(logging.WARNING):
        assert tokens_of(serve(llm, PROMPTS, rounds=2, at_once=False)) == plain * 2
    messages = [record.getMessage() for record in caplog.records]
    named = [file for file in files if any(str(file) in message and said in message for message in messages)]
    assert named and all("computed again" in message for message in messages)
    assert files_of(tmp_path) == files, "written again"
    header = tier_of(llm)._header
    for file in named:
        load_block(file, header(tier_of(llm).file_mapper.get_key(file)), np.empty(BLOCK, np.uint8))


def test_files_that_vanish_are_computed_again(folder, plain, tmp_path, caplog):
    serve(make_tiers(folder, tmp_path), PROMPTS, rounds=1, at_once=False)
    llm = make_tiers(folder, tmp_path)
    for file in files_of(tmp_path):
        file.unlink()
    with caplog.at_level(logging.WARNING):
        assert tokens_of(serve(llm, PROMPTS, rounds=2, at_once=False)) == plain * 2
    assert "has vanished: its block is computed again" in caplog.text


def test_what_can_neither_be_read_nor_deleted_is_computed_again(folder, plain, tmp_path, caplog):
    serve(make_tiers(folder, tmp_path), PROMPTS, rounds=1, at_once=False)
    for file in files_of(tmp_path):
        file.unlink()
        file.mkdir()
    llm = make_tiers(folder, tmp_path)
    with caplog.at_level(logging.WARNING):
        assert tokens_of(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == plain
        assert tokens_of(llm.generate(PROMPTS, GREEDY, use_tqdm=False)) == plain
    assert "cannot be read: its block is computed again" in caplog.text


def test_files_that_vanish_between_the_question_and_the_answer(folder, plain, tmp_path, caplog, monkeypatch):
    serve(make_tiers(folder, tmp_path), PROMPTS, rounds=1, at_once=False)
    llm = make_tiers(folder, tmp_path)
    load, count = load_block, []

    def gone(path, header, block):
        count.append(path)
        if len(count) % 3 == 1:
            path.unlink()
        load(path, header, block)

    monkeypatch.setattr("mini_vllm.kv_offload.tiering.fs.manager.load_block", gone)
    with caplog.at_level(logging.WARNING):
        assert tokens_of(serve(llm, PROMPTS, rounds=2, at_once=False)) == plain * 2
    assert count and "has vanished: its blocks are computed again" in caplog.text


def test_a_disk_that_takes_nothing(folder, plain, tmp_path, caplog, monkeypatch):
    def full(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(io.os, "replace", full)
    with caplog.at_level(logging.WARNING):
        assert tokens_of(serve(make_tiers(folder, tmp_path), PROMPTS)) == plain * 2
    assert "No space left" in caplog.text and not list(tmp_path.rglob("*.bin")) + list(tmp_path.rglob("*.tmp"))


def test_a_slow_disk_and_an_abort(folder, plain, tmp_path, monkeypatch):
    serve(make_tiers(folder, tmp_path), PROMPTS, rounds=1, at_once=False)
    load = load_block

    def slow(*given):
        time.sleep(0.01)
        load(*given)

    monkeypatch.setattr("mini_vllm.kv_offload.tiering.fs.manager.load_block", slow)
    llm = make_tiers(folder, tmp_path)
    engine = llm.llm_engine
    for name in "abc":
        engine.add_request(name, PROMPTS["abc".index(name)], GREEDY)
    engine.step()
    engine.abort_request(["a", "b"])
    ended = []
    while engine.has_unfinished_requests():
        ended += [output for output in engine.step() if output.finished]
    assert [output.request_id for output in ended] == ["c"] and tokens_of(ended) == plain[2:3]
    check(llm)
    assert tokens_of(serve(llm, PROMPTS, rounds=1)) == plain


def test_a_reset_deletes_the_files_of_this_model_alone(folder, plain, tmp_path):
    other = make_tiers(folder, tmp_path, block_size=8)
    serve(other, PROMPTS, rounds=1)
    of_other = files_of(tmp_path)
    llm = make_tiers(folder, tmp_path)
    serve(llm, PROMPTS, rounds=1)
    assert len(files_of(tmp_path)) > len(of_other)
    assert llm.reset_prefix_cache(reset_connector=True) and files_of(tmp_path) == of_other
    before = hits_of(llm)
    outputs = serve(llm, PROMPTS, rounds=1)
    assert tokens_of(outputs) == plain and hits_of(llm) == before


def test_other_weights_under_the_same_name_find_nothing(folder, tmp_path):
    serve(make_tiers(folder, tmp_path / "kv"), PROMPTS, rounds=1)
    other = tmp_path / folder.name
    other.mkdir()
    for file in folder.iterdir():
        data = bytearray(file.read_bytes())
        if file.suffix == ".safetensors":
            data[-2] ^= 1
        (other / file.name).write_bytes(data)
    llm = make_tiers(other, tmp_path / "kv")
    assert serve(llm, PROMPTS, rounds=1)[0].num_cached_tokens == 0 and hits_of(llm) == 0


def test_what_a_request_with_a_nan_has_computed_is_no_file(folder, tmp_path):
    llm = make_tiers(folder, tmp_path, max_num_batched_tokens=16)
    runner = llm.llm_engine.engine_core.model_runner
    logits = runner.compute_logits
    runner.compute_logits = lambda hidden: logits(hidden) * float("nan")
    assert llm.generate(PROMPTS[:1], GREEDY, use_tqdm=False)[0].outputs[0].finish_reason == "error"
    check(llm)
    assert files_of(tmp_path) == []


def test_what_a_crash_has_left_goes_after_an_hour(folder, tmp_path):
    serve(make_tiers(folder, tmp_path), PROMPTS[:1], rounds=1)
    file = files_of(tmp_path)[0]
    fresh, old = file.with_name(file.name + ".1.2.tmp"), file.with_name(file.name + ".3.4.tmp")
    for path in (fresh, old):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    make_tiers(folder, tmp_path)
    assert fresh.exists() and not old.exists()


@pytest.mark.slow
@pytest.mark.skipif(not shared_memory.is_supported(), reason="more than one rank needs Linux on x86-64")
def test_two_ranks_share_a_file(folder, plain, tmp_path):
    for _ in range(2):
        llm = make_tiers(folder, tmp_path, num_host_blocks=48, num_blocks=40, tensor_parallel_size=2)
        try:
            outputs = serve(llm, PROMPTS, rounds=1)
            assert tokens_of(outputs) == plain
        finally:
            llm.llm_engine.engine_core.shutdown()
    assert hits_of(llm) > 0 and len(files_of(tmp_path)) == 2 + 6 * 8


@pytest.mark.usefixtures("core_elsewhere")
def test_float32_and_a_core_in_a_process_of_its_own(folder, tmp_path):
    plain = tokens_of(serve(make(folder, offload=False, dtype="float32"), PROMPTS, rounds=1))
    cached = []
    while len(cached) < 2 or (cached[-1] < 32 and len(cached) < 20):  # what is not yet written at an end is dropped
        llm = make_tiers(folder, tmp_path, dtype="float32", num_blocks=24, enable_multiprocessing=True)
        try:
            outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
            assert tokens_of(outputs) == plain
        finally:
            llm.llm_engine.shutdown()
        cached.append(outputs[0].num_cached_tokens)
    assert cached[0] == 0 and cached[-1] == 32
