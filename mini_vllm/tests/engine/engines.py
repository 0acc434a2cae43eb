"""What the tests of engines share."""

from mini_vllm import LLMEngine, SamplingParams

TRIES = 8
"""Of a core that has some seconds to end by itself: on a busy machine that may be too few."""
LIMITS_S = (1.0, 4.0, 16.0, 64.0)


def with_a_limit(body):
    """`body(limit)`, seconds without progress after which a rank is given up. Where that has met one that was only
    late, as it may be on a busy machine, again with a longer limit."""
    for limit in LIMITS_S:
        try:
            return body(limit)
        except Exception as error:
            if "does not get on" not in str(error) or limit == LIMITS_S[-1]:
                raise


def greedy(**kwargs):
    return SamplingParams(**{"temperature": 0.0, "ignore_eos": True, "max_tokens": 8, **kwargs})


def start(model=None, **kwargs):
    """An engine whose core has a process of its own."""
    return LLMEngine(model, **{"num_blocks": 256, "enable_multiprocessing": True, **kwargs})
