"""The code for GPUs on a CPU: the same tokens as the numpy engine, however a step is made and planned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.needs_torch
torch = pytest.importorskip("torch")

from mini_vllm import LLM, SamplingParams  # noqa: E402
from mini_vllm.model_loader.random_checkpoint import save_random_checkpoint  # noqa: E402

POCKET = str(Path(__file__).parents[4] / "models" / "pocket")
PROMPTS = ["What is a KV block?", "Once upon a time there was", "def f(x):", "The scheduler"]


def tokens(prompts: list[str], params: Any, **args: Any) -> list[list[int]]:
    llm = LLM(POCKET, **args)
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]


def greedy(max_tokens: int = 24) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    return tokens(PROMPTS, greedy())


@pytest.mark.parametrize(
    "args",
    [{}, {"async_scheduling": False}, {"max_num_batched_tokens": 5, "max_num_seqs": 3}, {"num_blocks": 9},
     {"block_size": 4, "enable_prefix_caching": False}],
    ids=str,
)  # fmt: skip
def test_greedy_tokens_are_the_numpy_engines(args: dict[str, Any], expected: list[list[int]]) -> None:
    """Ahead of the tokens or not, in chunks, with preemption, with other blocks."""
    assert tokens(PROMPTS, greedy(), device="torch", **args) == expected


def test_it_plans_ahead_unless_told_otherwise() -> None:
    llm = LLM(POCKET, device="torch")
    assert llm.llm_engine.engine_core.config.async_scheduling
    assert not LLM(POCKET).llm_engine.engine_core.config.async_scheduling


def test_nobody_waits_for_a_step_before_the_next_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens of step n are fetched after step n + 1 was computed: on a GPU the host works meanwhile."""
    from mini_vllm.worker.gpu.async_utils import AsyncOutput
    from mini_vllm.worker.gpu.model_runner import GPUModelRunner

    order, forward, fetch = [], GPUModelRunner._forward, AsyncOutput._fetch
    monkeypatch.setattr(GPUModelRunner, "_forward", lambda self, inputs: (order.append("f"), forward(self, inputs))[1])
    monkeypatch.setattr(AsyncOutput, "_fetch", lambda self: (order.append("."), fetch(self))[1])
    LLM(POCKET, device="torch").generate(PROMPTS[:2], greedy(6))
    assert "".join(order).startswith("ff.f.f.f.f")


def test_a_row_that_the_host_must_sample_changes_no_other() -> None:
    """Log-probabilities, a penalty and a grammar beside greedy and seeded rows."""
    from mini_vllm.sampling_params import StructuredOutputsParams

    seeded = SamplingParams(temperature=0.8, top_k=40, top_p=0.9, seed=5, max_tokens=16, ignore_eos=True)
    special = [
        SamplingParams(temperature=0, max_tokens=16, logprobs=2, ignore_eos=True),
        SamplingParams(temperature=0, max_tokens=16, repetition_penalty=1.3, ignore_eos=True),
        SamplingParams(temperature=0, max_tokens=16, structured_outputs=StructuredOutputsParams(regex="[0-9]{5}")),
    ]
    alone = tokens(PROMPTS[:1], [seeded], device="torch")[0]
    llm = LLM(POCKET, device="torch")
    outputs = llm.generate([PROMPTS[0], *PROMPTS[1:]], [seeded, *special])
    assert outputs[0].outputs[0].token_ids == alone
    assert [o.outputs[0].token_ids for o in outputs[1:]] == tokens(PROMPTS[1:], special)
    assert outputs[1].outputs[0].logprobs is not None and len(outputs[1].outputs[0].logprobs) == 16


def test_prompt_logprobs_are_the_numpy_engines() -> None:
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    for mine, other in zip(*(LLM(POCKET, device=d).generate(PROMPTS, params) for d in ("torch", "cpu")), strict=True):
        assert mine.prompt_logprobs is not None and other.prompt_logprobs is not None
        for a, b in zip(mine.prompt_logprobs[1:], other.prompt_logprobs[1:], strict=True):
            assert a is not None and b is not None and a.keys() == b.keys()
            assert all(abs(a[k].logprob - b[k].logprob) < 1e-4 for k in a)


def test_draws_have_the_models_law() -> None:
    """4,000 first tokens against the model's probabilities, by chi-square at one in a thousand."""
    params = SamplingParams(temperature=1.3, top_k=8, max_tokens=1, logprobs=None)
    llm = LLM(POCKET, device="torch", max_num_seqs=256)
    drawn = [o.outputs[0].token_ids[0] for o in llm.generate([PROMPTS[1]] * 4000, params)]
    top = LLM(POCKET).generate([PROMPTS[1]], SamplingParams(max_tokens=1, logprobs=8))[0].outputs[0].logprobs
    assert top is not None
    likeliest = sorted(top[0].items(), key=lambda item: -item[1].logprob)[:8]
    weights = np.exp(np.array([lp.logprob for _, lp in likeliest]) / 1.3)
    expected = 4000 * weights / weights.sum()
    counts = np.array([drawn.count(token) for token, _ in likeliest])
    assert counts.sum() == 4000
    assert ((counts - expected) ** 2 / expected).sum() < 24.3  # chi-square, 7 degrees of freedom, p = 0.001


def test_qwen3s_norms_of_heads_and_biases(tmp_path: Path) -> None:
    sizes = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 200, "max_position_embeddings": 128}  # fmt: skip
    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "rms_norm_eps": 1e-6, "rope_theta": 1e4}
    folder = save_random_checkpoint(tmp_path / "qwen3", {**config, **sizes, "attention_bias": True})
    ids = [{"prompt_token_ids": [3, 5, 7, 11, 13] * 4}, {"prompt_token_ids": [2, 4]}]
    found = [
        [o.outputs[0].token_ids for o in LLM(str(folder), device=d, skip_tokenizer_init=True).generate(ids, greedy(12))]
        for d in ("cpu", "torch")
    ]
    assert found[0] == found[1]


def test_a_nan_ends_its_own_request(expected: list[list[int]]) -> None:
    llm = LLM(POCKET, device="torch")
    program = llm.llm_engine.engine_core.model_runner.program
    real, calls = program.compute_logits, []

    def broken(hidden: Any) -> Any:
        logits = real(hidden)
        calls.append(0)
        if len(calls) == 3:
            logits[1] = float("nan")
        return logits

    program.compute_logits = broken
    outputs = [o.outputs[0] for o in llm.generate(PROMPTS, greedy())]
    assert outputs[1].finish_reason == "error" and "NaN in the logits of request" in str(outputs[1].stop_reason)
    assert [o.token_ids for i, o in enumerate(outputs) if i != 1] == [e for i, e in enumerate(expected) if i != 1]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"device": "tpu"}, "device must be one of cpu, cuda, torch, got 'tpu'"),
        ({"device": "torch", "tensor_parallel_size": 2}, "tensor_parallel_size=2 is not there with device='torch'"),
        ({"device": "torch", "quantization": "int8"}, "quantization='int8' is not there with device='torch'"),
        ({"device": "torch", "kv_cache_dtype": "fp8"}, "kv_cache_dtype='fp8' is not there with device='torch'"),
        ({"device": "torch", "convert": "embed"}, "device must be 'cpu' with runner='pooling', got 'torch'"),
        ({"device": "torch", "dtype": "float64"}, "dtype must be one of auto, .* on a GPU, got 'float64'"),
    ],
    ids=str,
)
def test_what_is_not_there_is_refused_by_name(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LLM(POCKET, **args)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(ValueError, match=r"device=.cuda. needs (an NVIDIA GPU|the package triton)"):
        LLM(POCKET, device="cuda")
