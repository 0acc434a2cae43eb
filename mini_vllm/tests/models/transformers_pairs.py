"""The same random checkpoint in transformers and here, and what both say about it.

The greedy check runs transformers once over prompt + our tokens: if its most likely token after each prefix is the one
that we chose, then its own greedy generation is ours (induction over the prefixes).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from mini_vllm import LLM, SamplingParams
from mini_vllm.attention.backend import AttentionMetadata
from mini_vllm.attention.quantized_kv_cache import make_kv_cache
from mini_vllm.attention.selector import make_attention
from mini_vllm.model_loader.default_loader import load_model

VOCAB = 151
NUM_TOKENS = 64


class Pair:
    """The same checkpoint in both libraries."""

    def __init__(self, family: str, sizes: dict[str, Any], seed: int, folder: Path, stacked: bool = False) -> None:
        torch.manual_seed(seed)
        config = getattr(transformers, f"{family}Config")(**sizes)
        model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config).eval()
        with torch.no_grad():  # biases and norms start as zeros and ones, which would hide mistakes
            for key, parameter in model.named_parameters():
                if parameter.dim() == 1:
                    parameter += torch.randn_like(parameter) * (0.2 if key.endswith("bias") else 0.1)
        model.save_pretrained(folder, save_original_format=not stacked)
        self.reference, self.folder = model, folder

    def reference_logits(self, sequences: list[list[int]]) -> list[np.ndarray]:
        """Logits after every token of every sequence; padded on the right, which a causal model does not see."""
        longest = max(map(len, sequences))
        ids = torch.zeros((len(sequences), longest), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, tokens in enumerate(sequences):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        with torch.no_grad():
            logits = self.reference(ids, attention_mask=mask).logits.numpy()
        return [logits[row, : len(tokens)] for row, tokens in enumerate(sequences)]

    def check_logits(self, tokens: np.ndarray, cuts: Sequence[int], max_model_len: int | None = None) -> float:
        """The largest difference of logits when `tokens` go through the plain form in chunks that end at `cuts`."""
        model = load_model(self.folder, max_model_len=max_model_len)
        [expected] = self.reference_logits([tokens.tolist()])
        size, table = 8, np.arange(1, 33)[None]
        shape = model.num_layers, 40, size, model.num_kv_heads, model.head_dim
        backend = make_attention(model, make_kv_cache(*shape, use_mla=model.use_mla))
        worst = 0.0
        for first, last in itertools.pairwise(cuts):
            at = np.arange(first, last)
            slots = table[0][at // size] * size + at % size
            metadata = AttentionMetadata(np.array([0, last - first]), np.array([last]), table, slots)
            logits = model.compute_logits(model.forward(tokens[at], at, backend.begin_step(metadata)))
            worst = max(worst, float(np.abs(logits - expected[first:last]).max()))
        return worst

    def check_greedy(self, count: int = 20, **engine_args: Any) -> None:
        """Ragged prompts: one batch, then one by one; both must be what transformers chooses."""
        sizes = {"num_blocks": 300, "block_size": 16, "max_num_batched_tokens": 256, **engine_args}
        llm = LLM(str(self.folder), **sizes)
        params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
        asked: list[Any] = [{"prompt_token_ids": p} for p in prompts(count)]
        together = [o.outputs[0].token_ids for o in llm.generate(asked, params, use_tqdm=False)]
        alone = [llm.generate([p], params, use_tqdm=False)[0].outputs[0].token_ids for p in asked]
        assert together == alone
        whole = [p + list(t) for p, t in zip(prompts(count), together, strict=True)]
        for prompt, tokens, logits in zip(prompts(count), together, self.reference_logits(whole), strict=True):
            assert len(tokens) == NUM_TOKENS
            assert logits[len(prompt) - 1 : -1].argmax(axis=-1).tolist() == list(tokens)


def prompts(count: int = 20) -> list[list[int]]:
    """Random, of 1 to 59 tokens."""
    rng = np.random.default_rng(11)
    return [rng.integers(3, VOCAB, n).tolist() for n in rng.integers(1, 60, count)]
