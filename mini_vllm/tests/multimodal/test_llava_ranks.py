"""LLaVA over two ranks, which share every layer of the tower, the projector and the language model."""

import pytest

from mini_vllm.distributed.shared_memory import is_supported
from mini_vllm.tests.multimodal.test_llava import PROMPTS, make, tokens_of
from mini_vllm.tests.multimodal.tiny_llava import save_tiny_llava

pytestmark = pytest.mark.skipif(not is_supported(), reason="ranks need Linux on x86-64")


def test_two_ranks_say_what_one_says(tmp_path):
    folder = save_tiny_llava(tmp_path)
    expected = tokens_of(make(folder))
    llm = make(folder, tensor_parallel_size=2, max_num_batched_tokens=24)
    try:
        assert tokens_of(llm) == expected == tokens_of(llm, PROMPTS[::-1])[::-1]
    finally:
        llm.llm_engine.core_client.shutdown()
