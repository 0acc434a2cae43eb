"""What the tests of engines share."""

from mini_vllm import LLMEngine, SamplingParams


def greedy(**kwargs):
    return SamplingParams(**{"temperature": 0.0, "ignore_eos": True, "max_tokens": 8, **kwargs})


def start(model=None, **kwargs):
    """An engine whose core has a process of its own."""
    return LLMEngine(model, **{"num_blocks": 256, "enable_multiprocessing": True, **kwargs})
