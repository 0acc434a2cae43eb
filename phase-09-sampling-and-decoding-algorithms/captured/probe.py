"""Six questions to real vLLM 0.22.1 about sampling, on a CPU: writes probe.json beside this file.

.venv-vllm/bin/python phase-09-sampling-and-decoding-algorithms/captured/probe.py

seeds       a request with a seed, alone, again, beside a seeded neighbour, beside an unseeded one, beside a greedy one
chunks      the same request with its prompt in chunks: what becomes of the draws that are thrown away?
unseeded    two requests without a seed in two fresh engines of one engine seed
cold        the temperature that a request of 1e-6 gets, and what it samples
refused     what the door says to n=4 at temperature 0, and to a beam search of width 11
logprobs    log-probabilities of a greedy request with and without a bias: of which logits are they?
"""

import json
import os
import warnings
from pathlib import Path

SETTINGS = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]
PROMPT, OTHER = "Tell me a story about a fox.", "Tell me a story about a lamp."


def main() -> None:
    for key, value in SETTINGS.items():
        os.environ.setdefault(key, value)
    warnings.simplefilter("ignore")
    from vllm import LLM, SamplingParams, __version__
    from vllm.sampling_params import BeamSearchParams
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    def engine(**more):
        return LLM(
            str(ROOT / "models" / "pocket"), dtype="float32", enforce_eager=True, max_model_len=256, seed=0,
            max_num_seqs=8, distributed_executor_backend=UniProcExecutor, **more,
        )  # fmt: skip

    def tokens(llm, prompts, params):
        return [list(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False)]

    def tried(call):
        try:
            return call()
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    seeded = SamplingParams(temperature=1.0, seed=7, max_tokens=16)
    llm, found = engine(), {"vllm": __version__}
    found["seeds"] = {
        "alone": tokens(llm, [PROMPT], [seeded])[0],
        "again": tokens(llm, [PROMPT], [seeded])[0],
        "beside a seeded one": tokens(llm, [PROMPT, OTHER], [seeded, SamplingParams(seed=8, max_tokens=16)])[0],
        "beside an unseeded one": tokens(llm, [PROMPT, OTHER], [seeded, SamplingParams(max_tokens=16)])[0],
        "the same once more": tokens(llm, [PROMPT, OTHER], [seeded, SamplingParams(max_tokens=16)])[0],
        "beside a greedy one": tokens(llm, [PROMPT, OTHER], [seeded, SamplingParams(temperature=0, max_tokens=16)])[0],
    }
    found["cold"] = {
        "temperature": SamplingParams(temperature=1e-6).temperature,
        "type": SamplingParams(temperature=1e-6).sampling_type.name,
        "zero": SamplingParams(temperature=0, top_p=0.3, top_k=5, min_p=0.2).sampling_type.name,
    }
    found["refused"] = {
        "n": tried(lambda: SamplingParams(temperature=0, n=4)),
        "width 10": tried(lambda: len(llm.beam_search([{"prompt": "Hi"}], BeamSearchParams(10, 1))[0].sequences)),
        "width 11": tried(lambda: len(llm.beam_search([{"prompt": "Hi"}], BeamSearchParams(11, 1))[0].sequences)),
    }
    ask = {"temperature": 0.0, "max_tokens": 1, "logprobs": 1}
    found["logprobs"] = {}
    for name, more in (("plain", {}), ("bias", {"logit_bias": {5: 40.0}}), ("allowed", {"allowed_token_ids": [5]})):
        step = llm.generate([PROMPT], SamplingParams(**ask, **more), use_tqdm=False)[0].outputs[0].logprobs[0]
        found["logprobs"][name] = {token: [entry.logprob, entry.rank] for token, entry in step.items()}
    del llm
    found["unseeded"] = [tokens(engine(), [PROMPT, OTHER], SamplingParams(max_tokens=8)) for _ in range(2)]
    llm = engine(max_num_batched_tokens=16, enable_prefix_caching=False)
    found["chunks"] = {
        "of 16 tokens": tried(lambda: tokens(llm, [PROMPT * 3], [seeded])[0]),
        "in one piece": tokens(engine(enable_prefix_caching=False), [PROMPT * 3], [seeded])[0],
    }
    Path(__file__).with_name("probe.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
