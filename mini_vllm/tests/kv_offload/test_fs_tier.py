"""The parts of the tier of files: settings, one file, the threads, the memory that ranks and scheduler share."""

import threading

import numpy as np
import pytest

from mini_vllm import LLM, LLMEngine
from mini_vllm.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from mini_vllm.kv_offload.tiering.fs import io
from mini_vllm.kv_offload.tiering.fs.io import DamagedFile, load_block, make_header, store_block
from mini_vllm.kv_offload.tiering.fs.thread_pool import DualQueueThreadPool
from mini_vllm.tests.distributed.kv_transfer.offloading import make_tiers, save, transfer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(tmp_path_factory.mktemp("full"))


@pytest.mark.parametrize(
    ("tier", "message"),
    [
        ({"type": None}, "must include 'type'"),
        ({"type": "fs"}, r"Unknown secondary tier type: 'fs'. Supported types: \['fs_python'\]"),
        ({"folder": "x"}, "secondary tier 'fs_python': got an unexpected keyword argument 'folder'"),
        ({"root_dir": ""}, "root_dir must be a folder's name, got ''"),
        ({"root_dir": "/proc/nowhere"}, "root_dir '/proc/nowhere'"),
        ({"max_bytes": 0}, "max_bytes must be at least 1, got 0"),
        ({"max_bytes": 100}, "max_bytes must be at least .*, which is one block's file: 100"),
        ({"max_bytes": 1 << 60}, "but the disk of .* has"),
        ({"eviction_policy": "fifo"}, r"eviction_policy must be one of \('lru', 'arc'\), got 'fifo'"),
        ({"n_read_threads": 0}, "n_read_threads must be at least 1, got 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(tier, message, folder, tmp_path):
    with pytest.raises(ValueError, match=message):
        make_tiers(folder, tmp_path, tier=tier)


def test_engines_that_cannot_have_tiers_are_refused(folder, tmp_path, tmp_path_factory):
    with pytest.raises(ValueError, match="secondary_tiers need a model of one KV cache group, got 3"):
        make_tiers(save(tmp_path_factory.mktemp("hybrid"), "hybrid"), tmp_path)
    with pytest.raises(ValueError, match="secondary_tiers need enable_lora=False"):
        make_tiers(folder, tmp_path, enable_lora=True)
    extra = transfer(tmp_path)["kv_connector_extra_config"]
    for change, message in (({"secondary_tiers": []}, "must be a list"), ({"store_threshold": 2}, "not supported")):
        given = {**transfer(tmp_path), "kv_connector_extra_config": {**extra, **change}}
        with pytest.raises(ValueError, match=message):
            LLM(str(folder), kv_transfer_config=given, dtype="float64", block_size=4, num_blocks=16)
    finished = LLM(str(folder), dtype="float64").llm_engine.engine_core.model
    with pytest.raises(ValueError, match="need a checkpoint's folder, got a finished model"):
        LLMEngine(finished, kv_transfer_config=transfer(tmp_path), dtype="float64", block_size=4, num_blocks=16)


def test_a_block_comes_back_and_a_half_written_one_is_nothing(tmp_path, monkeypatch):
    header, path = make_header({"model": "m"}), tmp_path / "a" / "b.bin"
    block, back = np.arange(100, dtype=np.uint8), np.zeros(100, np.uint8)
    store_block(path, header, block)
    load_block(path, header, back)
    assert (back == block).all() and [each.name for each in path.parent.iterdir()] == ["b.bin"]
    with pytest.raises(DamagedFile, match="of another model or block"):
        load_block(path, make_header({"model": "n"}), back)
    assert not path.exists()
    with pytest.raises(OSError, match="has vanished"):
        load_block(path, header, back)
    monkeypatch.setattr(io, "_checksum", lambda header, block: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store_block(path, header, block)
    assert list(path.parent.iterdir()) == []


def test_a_job_ends_with_its_last_task_and_fails_with_any():
    pool, go = DualQueueThreadPool(1, 1, "test"), threading.Event()

    def fail():
        raise OSError("no")

    pool.enqueue_load(1, [go.wait, lambda: None])
    pool.enqueue_store(2, [lambda: None, fail, lambda: None])
    pool.enqueue_store(3, [])
    go.set()
    pool.wait_idle()
    assert sorted(pool.get_finished()) == [(1, True), (2, False), (3, True)] and pool.get_finished() == []
    pool.shutdown()
    assert not any(thread.is_alive() for thread in pool._threads)


def test_the_shared_memory_has_no_name_once_the_engine_stands():
    with pytest.raises(FileNotFoundError):
        SharedOffloadRegion("test", 4, None, 2, 64)
    ranks = [SharedOffloadRegion("test", 4, rank, 2, 64) for rank in range(2)]
    whole = SharedOffloadRegion("test", 4, None, 2, 64).create_kv_memoryview()
    assert whole.shape == (4, 128)
    for rank, region in enumerate(ranks):
        region.create_next_view(4, 48)[2] = 1 + rank
        region.create_next_view(4, 16)[2] = 10 + rank
    assert whole[2].tolist() == [1] * 48 + [10] * 16 + [2] * 48 + [11] * 16 and not whole[[0, 1, 3]].any()
    with pytest.raises(FileNotFoundError):
        SharedOffloadRegion("test", 4, None, 2, 64)
    with pytest.raises(ValueError, match=r"cpu_bytes_to_use needs .* GiB in .*, which has"):
        SharedOffloadRegion("large", 1 << 20, 0, 1, 1 << 30)
