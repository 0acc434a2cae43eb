"""`mm_encoder_tp_mode="data"`: whole items for each rank, and the same rows on all of them."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from mini_vllm.config.multimodal import MultiModalConfig
from mini_vllm.config.resolved_model import ResolvedModel
from mini_vllm.distributed.shared_memory import is_supported
from mini_vllm.models.vision import get_load_balance_assignment, run_dp_sharded_mrope_vision_model
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.golden.record_video import FILE
from mini_vllm.tests.multimodal.test_qwen2_vl import PROMPTS, make, tokens_of
from mini_vllm.tests.multimodal.tiny_llava import save_tiny_llava
from mini_vllm.tests.multimodal.tiny_qwen2_vl import FILMS, IMAGES, save_tiny_qwen2_vl


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny_qwen2_vl(tmp_path_factory.mktemp("qwen2_vl"))


@pytest.fixture(scope="module")
def llm(tiny):
    return make(tiny)


def test_who_takes_what_is_as_in_the_real_release():
    for sizes, ranks, expected in read_packed(FILE)["balance"]:
        assert list(get_load_balance_assignment(sizes, ranks)) == expected
    assert get_load_balance_assignment([1000, 100, 200, 50], 2) == ([0, 2, 1, 3], [1, 3], [1000, 350])


class Meeting(Exception):
    """A rank has come to where it would wait for the others."""


def run_ranks(size, task):
    """What `task(context)` gives on each of `size` ranks, one after another: each comes to the meeting, and is run
    again to leave it."""
    parts, results = {}, []
    for again in (False, True):
        for rank in range(size):

            def all_gather(x, rank=rank, again=again):
                if not again:
                    parts[rank] = x
                    raise Meeting
                assert len({part.shape for part in parts.values()}) == 1
                return np.concatenate([parts[each] for each in range(size)], axis=-1)

            context = SimpleNamespace(tp_rank=rank, tp_size=size, dtype=np.dtype("float64"), all_gather=all_gather)
            try:
                results.append(task(context))
            except Meeting:
                assert not again
    return results


@pytest.mark.parametrize("size", [2, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 3, 8))])
def test_every_rank_has_the_rows_of_all_items(size, llm):
    engine = llm.llm_engine
    model, processor = engine.engine_core.model, engine.input_processor.multimodal.processor
    for modality, items in (("image", IMAGES), ("video", FILMS)):
        data = [processor.prepare(modality, i, item).data for i, item in enumerate(items)]
        expected = model.embed_multimodal(**{key: [each[key] for each in data] for key in data[0]})
        patches, grids = ([each[key] for each in data] for key in data[0])
        of_ranks = run_ranks(size, partial(run_dp_sharded_mrope_vision_model, model.visual, patches, grids))
        assert len(of_ranks) == size
        for rows in of_ranks:
            for got, first, wanted in zip(rows, of_ranks[0], expected, strict=True):
                assert np.array_equal(got, first)
                np.testing.assert_allclose(got, wanted, atol=1e-12)


def test_a_model_that_knows_no_shared_items_shares_its_weights(tmp_path, tiny, llm, caplog):
    def mode_of(folder, mode):
        return ResolvedModel.from_folder(folder, MultiModalConfig(mm_encoder_tp_mode=mode)).mm_encoder_tp_mode

    llava = save_tiny_llava(tmp_path)
    assert (mode_of(tiny, "weights"), mode_of(tiny, "data"), mode_of(llava, "data")) == ("weights", "data", "weights")
    assert "This model does not support `--mm-encoder-tp-mode data`" in caplog.text
    one_rank = make(tiny, mm_encoder_tp_mode="data")
    assert tokens_of(one_rank, PROMPTS[5:6]) == tokens_of(llm, PROMPTS[5:6])


@pytest.mark.slow  # starts a process; the tests above are its fast twins
@pytest.mark.skipif(not is_supported(), reason="ranks need Linux on x86-64")
def test_two_ranks_that_share_the_items_say_what_one_says(tiny, tmp_path):
    expected = tokens_of(make(tiny))
    for folder, wanted in ((tiny, expected), (save_tiny_qwen2_vl(tmp_path, vision_config=THREE_HEADS), None)):
        llm = make(folder, tensor_parallel_size=2, mm_encoder_tp_mode="data")
        try:
            assert tokens_of(llm, PROMPTS) == (wanted or tokens_of(make(folder)))
        finally:
            llm.llm_engine.core_client.shutdown()


THREE_HEADS = {"depth": 2, "embed_dim": 48, "hidden_size": 48, "num_heads": 3, "mlp_ratio": 2, "patch_size": 14,
               "spatial_merge_size": 2, "temporal_patch_size": 2}  # fmt: skip
"""A tower that two ranks cannot share by its weights."""
