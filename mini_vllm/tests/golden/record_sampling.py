"""Records prompt log-probabilities and beam search of the real vLLM v0.22.1 on models/pocket -> sampling.json.xz.

Run where the real release is installed (`course vllm`), from the root of the repository:

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_sampling.py

Recorded: every entry of `prompt_logprobs` (id, log-probability, rank, text) under several settings; of `beam_search`
the tokens, the sums and the text of every beam, for several widths, lengths, length penalties and both uses of the end
of sequence.
"""

import dataclasses
import os
import sys
from pathlib import Path

from mini_vllm.tests.golden.packed import write_packed

ROOT = Path(__file__).resolve().parents[3]
SETTINGS = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1",
}  # fmt: skip
PROMPTS = [
    "What is a KV block?",
    "The scheduler plans a step, and the runner",
    "é 漢字 👋🏽 ok",
    "Prefix caching " * 12,
]
PROMPT_LOGPROBS = {
    "none beside": {"prompt_logprobs": 0},
    "one": {"prompt_logprobs": 1},
    "five, and of the answer": {"prompt_logprobs": 5, "logprobs": 2, "max_tokens": 3},
    "flat": {"prompt_logprobs": 2, "flat_logprobs": True},
    "not detokenized": {"prompt_logprobs": 2, "detokenize": False},
    "True": {"prompt_logprobs": True},
    "warm": {"prompt_logprobs": 1, "temperature": 2.0, "top_k": 3, "seed": 1, "repetition_penalty": 1.5},
}
BEAMS = [
    {"beam_width": 1, "max_tokens": 10},
    {"beam_width": 2, "max_tokens": 12},
    {"beam_width": 3, "max_tokens": 16, "length_penalty": 0.0},
    {"beam_width": 4, "max_tokens": 24},
    {"beam_width": 4, "max_tokens": 24, "ignore_eos": True},
    {"beam_width": 5, "max_tokens": 8, "length_penalty": 2.0},
    {"beam_width": 5, "max_tokens": 20, "length_penalty": -1.0},
    {"beam_width": 8, "max_tokens": 30, "length_penalty": 0.6},
]


def of_prompt(output):
    steps = [(step or {}).items() for step in output.prompt_logprobs]
    entries = [[[t, e.logprob, e.rank, e.decoded_token] for t, e in step] for step in steps]
    flat = dataclasses.is_dataclass(output.prompt_logprobs)
    return {"entries": entries, "flat": flat, "token_ids": list(output.outputs[0].token_ids),
            "cached": output.num_cached_tokens, "first": None if flat else output.prompt_logprobs[0]}  # fmt: skip


def main():
    os.environ.update({name: os.environ.get(name, value) for name, value in SETTINGS.items()})
    import vllm
    from vllm.sampling_params import BeamSearchParams
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    llm = vllm.LLM(
        str(ROOT / "models" / "pocket"), dtype="float32", enforce_eager=True, block_size=16, max_num_seqs=16, seed=0,
        max_num_batched_tokens=512, distributed_executor_backend=UniProcExecutor,
    )  # fmt: skip

    def of_prompts(given):
        params = vllm.SamplingParams(**{"temperature": 0.0, "max_tokens": 1, **given})
        return [of_prompt(output) for output in llm.generate(PROMPTS, params, use_tqdm=False)]

    prompt_logprobs = {name: {"given": given, "outputs": of_prompts(given)} for name, given in PROMPT_LOGPROBS.items()}
    beams = []
    for given in BEAMS:
        outputs = llm.beam_search([{"prompt": prompt} for prompt in PROMPTS], BeamSearchParams(**given))
        beams.append({"given": given, "outputs": [
            [{"tokens": s.tokens, "cum_logprob": s.cum_logprob, "text": s.text, "finish_reason": s.finish_reason,
              "steps": len(s.logprobs)} for s in output.sequences]
            for output in outputs
        ]})  # fmt: skip
    provenance = {"vllm": vllm.__version__, "python": sys.version.split()[0], "script": Path(__file__).name}
    record = {"provenance": provenance, "prompts": PROMPTS, "prompt_logprobs": prompt_logprobs, "beams": beams}
    where = Path(__file__).with_name("sampling.json.xz")
    write_packed(where, record)
    print(f"{where.name}: {where.stat().st_size:,} bytes")


if __name__ == "__main__":
    sys.exit(main())
