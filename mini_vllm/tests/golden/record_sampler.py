"""Records what the real vLLM 0.22.1 sampler does with fixed logits, into sampler.json.

Run it with the python of a CPU build of the pinned release (`course vllm` makes one):

    TORCHDYNAMO_DISABLE=1 OMP_NUM_THREADS=1 .venv-vllm/bin/python mini_vllm/tests/golden/record_sampler.py

Each case is a batch: the rows' parameters, the logits, and upstream's logits after all steps up to the draw
(`logprobs_mode="processed_logits"`), its raw top log-probabilities, its greedy choice. test_sampler_golden.py replays.
"""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

import torch
import vllm
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.logits_processor.interface import BatchUpdate
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from mini_vllm.tests.golden.packed import write_packed

VOCAB = 40
CASES: dict[str, list[dict]] = {
    "greedy": [{"temperature": 0.0}, {"temperature": 0.0, "top_k": 3, "top_p": 0.2}],
    "temperature": [{"temperature": 0.3}, {"temperature": 1.0}, {"temperature": 1.7}],
    "top_k": [{"top_k": 1}, {"top_k": 5}, {"top_k": 39}, {"top_k": 0}],
    "top_k_with_ties": [{"top_k": 3, "ties": True}, {"top_k": 9, "ties": True}],
    "top_p": [{"top_p": 0.05}, {"top_p": 0.5}, {"top_p": 0.9}, {"top_p": 0.999}],
    "top_p_with_ties": [{"top_p": 0.3, "ties": True}, {"top_p": 0.8, "ties": True}],
    "top_k_top_p": [{"top_k": 5, "top_p": 0.6}, {"top_k": 20, "top_p": 0.95}, {"top_k": 0, "top_p": 0.4}],
    "min_p": [{"min_p": 0.05}, {"min_p": 0.5, "temperature": 2.0}, {"min_p": 1.0}, {"min_p": 0.0}],
    "min_p_before_top_p": [{"min_p": 0.2, "top_p": 0.7, "top_k": 8, "temperature": 1.4}],
    "penalties": [
        {"repetition_penalty": 1.5},
        {"repetition_penalty": 0.7},
        {"frequency_penalty": 1.2},
        {"presence_penalty": -1.5},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.8, "temperature": 0.0},
    ],
    "masks": [
        {"allowed_token_ids": [3, 5, 8, 13, 21], "temperature": 0.0},
        {"min_tokens": 9, "stop_token_ids": [1, 4, 7]},
        {"min_tokens": 2, "stop_token_ids": [1, 4, 7]},
        {"logit_bias": {2: 50.0, 9: -100.0}, "temperature": 0.0},
        {"bad_words": [[6], [2, 11], [30, 12]], "temperature": 0.0},
    ],
    "everything": [
        {
            "temperature": 0.8, "top_k": 12, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2,
            "frequency_penalty": 0.3, "presence_penalty": 0.4, "logit_bias": {17: 3.0}, "bad_words": [[30, 2]],
            "min_tokens": 20, "stop_token_ids": [0, 39], "allowed_token_ids": [*range(0, 40, 2), 39, 17],
        },
        {"temperature": 0.0, "logit_bias": {4: 2.5}, "presence_penalty": 2.0},
    ],
}  # fmt: skip
PROMPT = [5, 6, 7, 8, 5, 5, 21]
OUTPUT = [9, 10, 9, 9, 30]


def record_case(rows: list[dict], generator: torch.Generator) -> dict:
    """One batch through upstream's Sampler. Returns the JSON of the case."""
    logits = torch.randn(len(rows), VOCAB, generator=generator) * 2.5
    for i, row in enumerate(rows):
        if row.get("ties"):
            logits[i] = logits[i].round()
    raw = Sampler().forward(logits.clone(), make_metadata(rows, num_logprobs=5)).logprobs_tensors
    processed = Sampler(logprobs_mode="processed_logits")
    tensors = processed.forward(logits.clone(), make_metadata(rows, num_logprobs=VOCAB)).logprobs_tensors
    greedy = processed.apply_logits_processors(logits.clone(), make_metadata(rows, 5), False).argmax(-1)
    final = torch.empty_like(logits)
    final.scatter_(1, tensors.logprob_token_ids[:, 1:].long(), tensors.logprobs[:, 1:])
    return {
        "rows": rows,
        "logits": logits.tolist(),
        "processed_logits": [[x if math.isfinite(x) else None for x in row] for row in final.tolist()],
        "greedy_token_ids": greedy.tolist(),
        "raw_top5_token_ids": raw.logprob_token_ids[:, 1:].tolist(),
        "raw_top5_logprobs": raw.logprobs[:, 1:].tolist(),
    }


def make_metadata(rows: list[dict], num_logprobs: int) -> SamplingMetadata:
    """Upstream's metadata for the rows, by its own logits processors."""
    params = [to_params(row) for row in rows]
    greedy = [p.temperature < 1e-5 for p in params]
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=len(rows)))
    cpu = torch.device("cpu")
    processors = [cls(config, cpu, False) for cls in (MinTokensLogitsProcessor, LogitBiasLogitsProcessor)]
    processors.append(MinPLogitsProcessor(config, cpu, False))
    added = [(i, p, PROMPT, list(OUTPUT)) for i, p in enumerate(params)]
    for processor in processors:
        processor.update_state(BatchUpdate(batch_size=len(rows), removed=[], added=added, moved=[]))
    allowed = torch.zeros(len(rows), VOCAB, dtype=torch.bool)
    for i, p in enumerate(params):
        if p.allowed_token_ids:
            allowed[i] = True
            allowed[i, p.allowed_token_ids] = False
    columns = {
        name: torch.tensor([getattr(p, name) for p in params], dtype=torch.float32)
        for name in ("temperature", "top_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
    }
    top_k = torch.tensor([p.top_k if 0 < p.top_k < VOCAB else VOCAB for p in params], dtype=torch.int32)
    return SamplingMetadata(
        temperature=None if all(greedy) else columns["temperature"],
        all_greedy=all(greedy),
        all_random=not any(greedy),
        top_p=columns["top_p"] if (columns["top_p"] < 1).any() else None,
        top_k=top_k if (top_k < VOCAB).any() else None,
        generators={},
        max_num_logprobs=num_logprobs,
        no_penalties=False,
        prompt_token_ids=torch.tensor([PROMPT] * len(rows)),
        frequency_penalties=columns["frequency_penalty"],
        presence_penalties=columns["presence_penalty"],
        repetition_penalties=columns["repetition_penalty"],
        output_token_ids=[list(OUTPUT) for _ in rows],
        allowed_token_ids_mask=allowed if allowed.any() else None,
        bad_words_token_ids={i: row["bad_words"] for i, row in enumerate(rows) if "bad_words" in row},
        logitsprocs=LogitsProcessors(processors),
    )


def to_params(row: dict) -> SamplingParams:
    """SamplingParams of a row; bad words are token ids here, set beside."""
    fields = {k: v for k, v in row.items() if k not in ("ties", "bad_words")}
    return SamplingParams(max_tokens=64, **fields)


def main() -> None:
    """Record all cases."""
    generator = torch.Generator().manual_seed(22)
    recorded = {name: record_case(rows, generator) for name, rows in CASES.items()}
    provenance = {
        "made_by": "mini_vllm/tests/golden/record_sampler.py",
        "vllm": vllm.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "symbols": ["vllm.v1.sample.sampler.Sampler", "vllm.v1.sample.logits_processor.builtin"],
    }
    data = {"provenance": provenance, "vocab_size": VOCAB, "prompt": PROMPT, "output": OUTPUT, "cases": recorded}
    target = Path(__file__).with_name("sampler.json.xz")
    write_packed(target, data)
    print(f"{target}: {len(recorded)} cases")


if __name__ == "__main__":
    main()
