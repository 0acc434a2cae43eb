"""Sharing a step among threads changes nothing but the time."""

import numpy as np
import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.platforms.cpu import threads
from mini_vllm.tests.models.tiny_checkpoints import save_tiny


def answers(folder, prompts):
    llm = LLM(str(folder), num_blocks=200, max_num_batched_tokens=512)
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=0)
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    return [(o.outputs[0].token_ids, o.outputs[0].cumulative_logprob) for o in outputs]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("family", ["llama", "mistral-window"])
def test_shared_steps_give_the_same_answers(family, together, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    shared = rng.integers(3, 500, 32).tolist()
    prompts = [shared + rng.integers(3, 500, int(rng.integers(1, 60))).tolist() for _ in range(9)]
    prompts = [prompts[0] + prompts[1], *prompts] if together else [prompts[0] + prompts[1]]
    folder = save_tiny(family, tmp_path / family)
    monkeypatch.setattr(threads, "num_threads", lambda: 1)
    alone = answers(folder, prompts)
    for module in (
        "mini_vllm.platforms.cpu.threads",
        "mini_vllm.compilation.cpu_fused",
        "mini_vllm.attention.backends.paged_gather",
    ):
        monkeypatch.setattr(f"{module}.num_threads", lambda: 3)
    monkeypatch.setattr(threads, "MIN_ROWS", 4)
    threads._pool.cache_clear()
    shares = answers(folder, prompts)
    threads._pool.cache_clear()
    assert [tokens for tokens, _ in shares] == [tokens for tokens, _ in alone]
    np.testing.assert_allclose([lp for _, lp in shares], [lp for _, lp in alone], atol=1e-4)


def test_an_error_in_any_share_is_raised(monkeypatch):
    monkeypatch.setattr(threads, "num_threads", lambda: 2)

    def fail_on(share):
        if share == 1:
            raise ArithmeticError("share 1")

    with pytest.raises(ArithmeticError, match="share 1"):
        threads.run_shares(fail_on, [0, 1])


def test_blas_gets_its_threads_back():
    before = [library.get_num_threads() for library in threads._blas()]
    with threads.one_blas_thread():
        assert all(library.get_num_threads() == 1 for library in threads._blas())
    assert [library.get_num_threads() for library in threads._blas()] == before
