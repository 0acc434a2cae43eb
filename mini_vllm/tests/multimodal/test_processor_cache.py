"""What a core in a process of its own has, is not sent again: both sides of the socket keep and forget alike."""

import asyncio
import random

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.engine.async_llm import AsyncLLM
from mini_vllm.multimodal.cache import GIB, MultiModalProcessorSenderCache, MultiModalReceiverCache
from mini_vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from mini_vllm.tests.golden.packed import read_packed
from mini_vllm.tests.golden.record_video import FILE
from mini_vllm.tests.multimodal.tiny_llava import IMAGE, prompt, save_tiny_llava

GREEDY = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)


def feature(name, size, modality="image"):
    data = {"a": np.full(size, int(name) % 256, np.uint8)}
    return MultiModalFeatureSpec(data, modality, f"adapter:{name}", PlaceholderRange(0, 1), name)


class Pair:
    """Both sides, and what went from one to the other."""

    def __init__(self, size):
        self.sender, self.receiver = MultiModalProcessorSenderCache(size / GIB), MultiModalReceiverCache(size / GIB)

    def send(self, features):
        """Returns which were sent."""
        with self.sender.sending(features) as sent:
            pass
        got = self.receiver.get_and_update_features(sent)
        assert [each.mm_hash for each in got] == [each.mm_hash for each in features]
        for each, asked in zip(got, features, strict=True):
            assert np.array_equal(each.data["a"], asked.data["a"])
        assert list(self.sender._cache) == list(self.receiver._cache)
        return [each.data is not None for each in sent]


def test_both_sides_do_what_the_real_classes_do():
    recorded = read_packed(FILE)["cache"]
    for size, steps in recorded:
        pair = Pair(size)
        for asked, sent, order in steps:
            assert pair.send([feature(name, num_bytes) for name, num_bytes in asked]) == sent
            assert list(pair.sender._cache) == order
    assert sum(not any(sent) for _, steps in recorded for _, sent, _ in steps) > 10


@pytest.mark.parametrize("seed", range(3))
def test_both_sides_stay_alike_whatever_comes(seed):
    """Items larger than the cache, requests that evict what they need themselves, messages that fail, resets."""
    rng, pair = random.Random(seed), Pair(1000)
    sizes = [rng.choice((0, 10, 400, 999, 1000, 1001, 5000)) for _ in range(10)]
    for _ in range(300):
        features = [feature(str(i), sizes[i]) for i in rng.choices(range(10), k=rng.randrange(1, 6))]
        before = list(pair.sender._cache)
        kind = rng.random()
        if kind < 0.1:
            with pytest.raises(TypeError), pair.sender.sending(features):
                raise TypeError("cannot be sent")
            assert list(pair.sender._cache) == before
        elif kind < 0.15:
            pair.sender.clear_cache()
            pair.receiver.clear_cache()
        else:
            pair.send(features)
            assert pair.sender._cache.currsize == pair.receiver._cache.currsize <= 1000
    stats = pair.sender.make_stats()
    assert 0 < stats.hits < stats.total


def test_an_item_that_was_left_out_and_is_not_there_is_an_error_of_its_request():
    pair = Pair(1000)
    with pair.sender.sending([feature("1", 10)]):
        pass
    with (
        pair.sender.sending([feature("1", 10)]) as sent,
        pytest.raises(RuntimeError, match="cached item for mm_hash='1'"),
    ):
        pair.receiver.get_and_update_features(sent)


def test_a_reset_forgets_what_is_ready(tmp_path):
    folder = save_tiny_llava(tmp_path)
    settings = {"num_blocks": 50, "skip_tokenizer_init": True}
    llm = LLM(str(folder), **settings)

    async def reset(engine):
        engine.input_processor.multimodal.process(prompt([1, IMAGE], 0), [1, IMAGE])
        cache = engine.input_processor.multimodal.processor.cache
        assert len(cache._cache) == 1
        await engine.reset_mm_cache()
        engine.shutdown()
        return len(cache._cache)

    async def start():
        return await reset(AsyncLLM(str(folder), **settings))

    named = {**prompt([1, IMAGE, 2], 0), "multi_modal_uuids": {"image": "cat"}}
    unseen = {**named, "multi_modal_data": {"image": [None]}}
    llm.generate([named, unseen], GREEDY, use_tqdm=False)
    llm.llm_engine.reset_mm_cache()
    with pytest.raises(ValueError, match="Cache miss for image at index 0"):
        llm.generate(unseen, GREEDY)
    assert asyncio.run(start()) == 0


@pytest.mark.slow  # starts processes; the first two tests above are its fast twins
@pytest.mark.parametrize("cache_gb", [4, 0])
def test_a_picture_goes_to_the_core_s_process_once(cache_gb, tmp_path):
    pytest.importorskip("zmq")
    pytest.importorskip("msgspec")
    folder = save_tiny_llava(tmp_path)
    settings = {"num_blocks": 200, "skip_tokenizer_init": True, "mm_processor_cache_gb": cache_gb}
    prompts = [prompt([1, IMAGE, 2], 0), prompt([3, IMAGE, 2, IMAGE], 0, 1), prompt([4, IMAGE], 1)]
    expected = [list(one.outputs[0].token_ids) for one in LLM(str(folder), **settings).generate(prompts, GREEDY)]
    llm = LLM(str(folder), **settings, enable_multiprocessing=True)
    client, sizes = llm.llm_engine.core_client, []
    encode = client._encode_request

    def noted(request):
        sizes.append(len(payload := encode(request)))
        return payload

    client._encode_request = noted
    try:
        for _ in range(2):
            assert [list(one.outputs[0].token_ids) for one in llm.generate(prompts, GREEDY)] == expected
        picture = 3 * 24 * 24 * 4  # bytes: three colours, the tower's size, float32
        sent = [size // picture for size in sizes]
        assert sent == ([1, 1, 0, 0, 0, 0] if cache_gb else [1, 2, 1, 1, 2, 1])
        llm.llm_engine.reset_mm_cache()
        assert [list(one.outputs[0].token_ids) for one in llm.generate(prompts, GREEDY)] == expected
        assert [size // picture for size in sizes[6:]] == sent[:3]
    finally:
        llm.llm_engine.shutdown()
