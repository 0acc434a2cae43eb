"""Records what a user of the real vLLM v0.22.1 sees of its offline API on models/pocket -> api.json.xz.

Run where the real release is installed (`course vllm`), from the root of the repository:

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_api.py

Recorded: the names, labels and buckets of `LLM.get_metrics()` after two requests, and its counters; the text of
log-probabilities around characters of several tokens; conversations as prompts; `flat_logprobs`, `logprob_token_ids`,
`spaces_between_special_tokens`, `repetition_detection`, `skip_reading_prefix_cache`.
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
CHATS = {
    "parts": {"messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}]}
    ]},
    "bare strings": {"messages": [{"role": "user", "content": ["Hi", "you"]}]},
    "one part": {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is a KV block?"}]}]},
    "no content": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}]},
    "refusal": {"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": "No."}]}]},
    "continued": {
        "messages": [{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One, two,"}],
        "continue_final_message": True, "add_generation_prompt": False,
    },
}  # fmt: skip
SAMPLING = {
    "flat": {"logprobs": 1, "flat_logprobs": True, "max_tokens": 3},
    "certain ids": {"logprob_token_ids": [5, 300, 7], "max_tokens": 2},
    "not detokenized": {"logprobs": 1, "detokenize": False, "max_tokens": 2},
    "repetition": {"repetition_detection": [3, 1, 4], "max_tokens": 60, "logit_bias": {"300": 100.0}},
}


def text_of_logprobs(llm, params):
    """Force the ids of a text with characters of several tokens, and see what each token is called."""
    text = "é 漢字 👋🏽 ok"
    tokenizer = llm.get_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    found = []
    for at in range(1, len(ids)):
        given = params(max_tokens=1, logprobs=2, allowed_token_ids=[ids[at]])
        found.append({"id": ids[at], "said": decoded(llm, ids[:at], given)})
    forced = run_forced(llm, ids, params)
    return {"text": text, "ids": ids, "alone": found, "together": forced}


def decoded(llm, prompt, params):
    output = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)[0].outputs[0]
    return [[t, entry.decoded_token] for step in output.logprobs for t, entry in step.items()][:1]


def run_forced(llm, ids, params):
    """One request whose answer is `ids`: the sampler is given logits that only the next of them has."""
    import torch

    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    sampler, plain = runner.sampler, runner.sampler.forward
    steps = iter(ids)

    def forward(logits, *args, **kwargs):
        logits = torch.full_like(logits, -50.0)
        logits[:, next(steps)] = 50.0
        return plain(logits, *args, **kwargs)

    sampler.forward = forward
    given = params(max_tokens=len(ids), logprobs=0)
    output = llm.generate({"prompt_token_ids": [1, 2, 3]}, given, use_tqdm=False)[0].outputs[0]
    sampler.forward = plain
    return [[t, entry.decoded_token] for step in output.logprobs for t, entry in step.items()]


def metrics_of(llm):
    found = []
    for metric in llm.get_metrics():
        entry = {"kind": type(metric).__name__, "name": metric.name}
        entry["labels"] = {k: v for k, v in metric.labels.items() if k != "model_name"}
        if hasattr(metric, "buckets"):
            entry["buckets"] = list(metric.buckets)
            entry["count"] = metric.count
        elif entry["kind"] == "Counter":
            entry["value"] = metric.value
        found.append(entry)
    return found


def completion(output):
    done = output.outputs[0]
    flat = dataclasses.asdict(done.logprobs) if dataclasses.is_dataclass(done.logprobs) else None
    entries = [[[t, e.logprob, e.rank, e.decoded_token] for t, e in step.items()] for step in done.logprobs or ()]
    return {
        "text": done.text, "token_ids": list(done.token_ids), "finish_reason": done.finish_reason,
        "stop_reason": done.stop_reason, "logprobs": entries, "flat": flat,
        "cumulative_logprob": done.cumulative_logprob, "num_cached_tokens": output.num_cached_tokens,
    }  # fmt: skip


def main():
    os.environ.update({name: os.environ.get(name, value) for name, value in SETTINGS.items()})
    import vllm
    from vllm.sampling_params import RepetitionDetectionParams
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    llm = vllm.LLM(
        str(ROOT / "models" / "pocket"), dtype="float32", enforce_eager=True, block_size=16, max_num_seqs=8, seed=0,
        max_num_batched_tokens=512, disable_log_stats=False, distributed_executor_backend=UniProcExecutor,
    )  # fmt: skip

    def params(**given):
        return vllm.SamplingParams(**{"temperature": 0.0, "ignore_eos": True, **given})

    prompts = ["What is a KV block?", "The scheduler plans a step, and the runner"]
    llm.generate(prompts, params(max_tokens=5), use_tqdm=False)
    record = {"prompts": prompts, "metrics": metrics_of(llm)}
    sampled = {}
    for name, given in SAMPLING.items():
        ready = dict(given)
        if "repetition_detection" in ready:
            ready["repetition_detection"] = RepetitionDetectionParams(*ready["repetition_detection"])
        if "logit_bias" in ready:
            ready["logit_bias"] = {int(k): v for k, v in ready["logit_bias"].items()}
        sampled[name] = {"given": given, **completion(llm.generate(prompts[0], params(**ready), use_tqdm=False)[0])}
    long = "word " * 60
    for name, given in {"cached once": {}, "cached again": {}, "skipped": {"skip_reading_prefix_cache": True}}.items():
        sampled[name] = {
            "given": given,
            **completion(llm.generate(long, params(max_tokens=2, **given), use_tqdm=False)[0]),
        }
    record["sampling"], record["long"] = sampled, long
    chats = {}
    for name, given in CHATS.items():
        try:
            output = llm.chat(**given, sampling_params=params(max_tokens=4), use_tqdm=False)[0]
            chats[name] = {"given": given, "prompt": output.prompt, "ids": output.prompt_token_ids}
        except Exception as error:
            chats[name] = {"given": given, "error": f"{type(error).__name__}: {error}"}
    record["chat"], record["text"] = chats, text_of_logprobs(llm, params)
    record["provenance"] = {"vllm": vllm.__version__, "python": sys.version.split()[0], "script": Path(__file__).name}
    write_packed(Path(__file__).parent / "api.json.xz", record)


if __name__ == "__main__":
    main()
