"""Runs real vLLM 0.22.1 on pocket, with drafts and without, and says what its counters say.
Given: nothing to edit here.

The interpreter must be the one that has vLLM (`course vllm` builds it for a CPU), not the course's own:

    .venv-vllm/bin/python real_run.py --model models/pocket --out FOLDER --arm ngram

Arms
    none    no drafts
    ngram   four drafts, copied from behind an earlier place of the last two to four tokens
    draft   three drafts from pocket-draft, a smaller model beside pocket

Four kinds of prompts, eight each, greedy, 64 tokens, one request at a time. For each kind: tokens, engine steps,
seconds, and what vLLM counts about drafts. Figures go to FOLDER/result.json.
"""

import argparse
import json
import os
import time
from pathlib import Path

SETTINGS = {
    "HF_HUB_OFFLINE": "1",  # a local folder is all we need
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB of KV cache on the CPU backend
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",  # of the n-gram proposer
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
KINDS = ("glossary", "again", "json", "story")
PER_KIND, MAX_TOKENS = 8, 64
THINGS = ("lamp", "boat", "fox", "river", "clock", "garden", "tower", "bell")
CITIES = ("Rome", "Oslo", "Cairo", "Lima", "Quito", "Kyoto", "Turin", "Delhi")
TERMS = ("a KV block", "a slot", "prefix caching", "preemption", "the token budget", "a block table", "chunked prefill",
         "the scheduler")  # fmt: skip


def prompts(kind: str, answers: list[str] | None = None) -> list[str]:
    """Eight texts of a kind. "again" asks the questions of "glossary" once more, below what was answered to them."""
    found = []
    for n in range(PER_KIND):
        thing, city, question = THINGS[n], CITIES[(n + 3) % 8], f"What is {TERMS[n]}?"
        found.append({
            "glossary": question,
            "again": f"{question}{answers[n] if answers else ''}\n{question}",
            "json": f"Write a JSON object with name {thing.title()}, age {n + 20} and city {city}.",
            "story": f"Tell me a story about a {thing}.",
        }[kind])  # fmt: skip
    return found


def counters(llm) -> dict:
    """What vLLM counts: `vllm:spec_decode_…`, under shorter names."""
    short = {
        "num_drafts": "drafts",
        "num_draft_tokens": "draft_tokens",
        "num_accepted_tokens": "accepted",
        "num_accepted_tokens_per_pos": "accepted_per_pos",
    }
    found = {}
    for metric in llm.get_metrics():
        name = short.get(metric.name.removeprefix("vllm:spec_decode_"))
        if name:
            found[name] = list(metric.values) if hasattr(metric, "values") else metric.value
    return found


def difference(after, before):
    """What was counted in between."""
    if isinstance(after, list):
        return [a - b for a, b in zip(after, before, strict=True)]
    return after - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="checkpoint folder; the draft model stands beside it")
    parser.add_argument("--out", required=True, type=Path, help="folder for result.json")
    parser.add_argument("--arm", choices=["none", "ngram", "draft"], default="ngram")
    args = parser.parse_args()
    for key, value in SETTINGS.items():
        os.environ.setdefault(key, value)
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    from vllm import LLM, SamplingParams, __version__
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    speculative = {
        "none": None,
        "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
        "draft": {"method": "draft_model", "model": f"{args.model}-draft", "num_speculative_tokens": 3},
    }[args.arm]
    options = {"dtype": "float32", "max_model_len": 512, "seed": 0, "disable_log_stats": False}
    if not torch.cuda.is_available():
        options |= {"enforce_eager": True, "distributed_executor_backend": UniProcExecutor}
    llm = LLM(model=args.model, speculative_config=speculative and dict(speculative), **options)
    steps, engine_step = [0], llm.llm_engine.step

    def step():
        steps[0] += 1
        return engine_step()

    llm.llm_engine.step = step
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
    llm.generate(prompts("story")[:2], params, use_tqdm=False)
    rows, answers = [], []
    for kind in KINDS:
        before, steps[0], began, tokens = counters(llm), 0, time.perf_counter(), []
        for text in prompts(kind, answers):
            output = llm.generate([text], params, use_tqdm=False)[0].outputs[0]
            tokens.append(list(output.token_ids))
            answers.append(output.text)
        seconds = round(time.perf_counter() - began, 4)
        counted = {name: difference(value, before[name]) for name, value in counters(llm).items()}
        rows.append({"kind": kind, "requests": len(tokens), "tokens": sum(map(len, tokens)), "steps": steps[0],
                     "seconds": seconds, **counted, "first_tokens": [ids[:8] for ids in tokens],
                     "checksum": sum(at * token for ids in tokens for at, token in enumerate(ids))})  # fmt: skip
    options.pop("distributed_executor_backend", None)
    result = {"vllm": __version__, "arm": args.arm, "speculative_config": speculative, "options": options, "rows": rows}
    if speculative and "model" in speculative:
        result["speculative_config"] = {**speculative, "model": "models/pocket-draft"}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
