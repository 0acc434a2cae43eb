"""Records speculative decoding of the real vLLM v0.22.1 on models/pocket: tokens, and how many drafts were accepted.

Run where the real release is installed (`course vllm`), from the root of the repository:

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_spec_decode.py [METHOD …]

With names of methods, only those are recorded anew, and only by the release that recorded the others.
spec-decode.json.xz: for each method of `spec_decode_cases.py` the prompts alone and all together; of each answer the
tokens and the gap between the two likeliest at each; of each run the counters that `LLM.get_metrics` has.
"""

import importlib.metadata
import os
import platform
import sys
from pathlib import Path

from mini_vllm.tests.golden.packed import read_packed, write_packed

SETTINGS = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TORCHDYNAMO_DISABLE": "1", "OMP_NUM_THREADS": "1",
}  # fmt: skip
HERE = Path(__file__).resolve().parent
# The release forgets to note that it has read `token_map`, and then refuses heads that have one:
# upstream/vllm/model_executor/models/medusa.py:150 — "self.token_map = nn.Parameter" — is no entry of `loaded_params`.
LOADER = {"medusa": {"model_loader_extra_config": {"enable_weights_track": False}}}
COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos")


def counters(llm):
    """As they stand."""
    found = {metric.name.removeprefix("vllm:spec_decode_"): metric for metric in llm.get_metrics()}
    values = {name: getattr(found[name], "values", None) or getattr(found[name], "value", 0) for name in COUNTERS}
    return {name: list(value) if isinstance(value, list) else int(value) for name, value in values.items()}


def difference(after, before):
    """What one run added."""
    return {
        name: [a - b for a, b in zip(value, before[name], strict=True)]
        if isinstance(value, list)
        else value - before[name]
        for name, value in after.items()
    }


def answer(completion):
    """Tokens, and gaps."""
    gaps = []
    for entry in completion.logprobs:
        first, second = [*sorted((e.logprob for e in entry.values()), reverse=True), -1e9][:2]
        gaps.append(round(min(first - second, 99.0), 5))
    return {"token_ids": list(completion.token_ids), "gaps": gaps}


def record(method):
    """One engine for a method."""
    from vllm import LLM, SamplingParams

    from mini_vllm.tests.golden.spec_decode_cases import ENGINE, MAX_TOKENS, PROMPTS

    llm = LLM(
        "models/pocket", **ENGINE, speculative_config=method, disable_log_stats=False, enable_prefix_caching=False,
        **LOADER.get(method["method"], {}),
    )  # fmt: skip
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, logprobs=2, ignore_eos=True)
    runs, before = [], {name: 0 for name in COUNTERS} | {COUNTERS[-1]: [0] * method["num_speculative_tokens"]}
    for prompts in [*([prompt] for prompt in PROMPTS), PROMPTS]:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        after = counters(llm)
        runs.append({"answers": [answer(o.outputs[0]) for o in outputs], "counters": difference(after, before)})
        before = after
    return runs


def main():
    os.environ.update(SETTINGS)
    from mini_vllm.tests.golden.spec_decode_cases import METHODS

    provenance = {
        "recorder": "mini_vllm/tests/golden/record_spec_decode.py",
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}, CPU",
        **{name: importlib.metadata.version(name) for name in ("vllm", "torch", "numpy")},
    }
    file, runs = HERE / "spec-decode.json.xz", {}
    if sys.argv[1:]:
        kept = read_packed(file)
        if kept["provenance"] != provenance:
            sys.exit(f"recorded by {kept['provenance']}, and this is {provenance}: record all methods")
        runs = kept["runs"]
    for name in sys.argv[1:] or METHODS:
        runs[name] = record(METHODS[name])
        document = {"provenance": provenance, "runs": {each: runs[each] for each in METHODS if each in runs}}
        write_packed(file, document)


if __name__ == "__main__":
    main()
