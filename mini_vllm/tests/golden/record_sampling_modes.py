"""Records `logprobs_mode` and `thinking_token_budget` of the real vLLM v0.22.1 on models/pocket.

Run where the real release is installed (`course vllm`), from the root of the repository; some minutes. One part alone
where it is named, "modes" or "thinking", and the other is kept:

    PYTHONPATH=. .venv-vllm/bin/python mini_vllm/tests/golden/record_sampling_modes.py [PART]

sampling-modes.json.xz: of each row of `sampling_mode_cases.py` every entry that was reported (id, value, rank), under
each mode, without drafts and with those of an n-gram; and the tokens under each thinking budget, without drafts, with
an n-gram's and with a draft model's.

One patch: on a CPU the release fails where a budget forces a token, because it pins memory for a driver that is not
there; here `async_tensor_h2d` makes a plain tensor.
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


def engine(**more):
    import torch
    from vllm import LLM
    from vllm.v1.executor.uniproc_executor import UniProcExecutor
    from vllm.v1.sample import thinking_budget_state

    from mini_vllm.tests.golden.sampling_mode_cases import ENGINE

    thinking_budget_state.async_tensor_h2d = lambda data, dtype, device: torch.tensor(data, dtype=dtype)
    return LLM("models/pocket", **ENGINE, distributed_executor_backend=UniProcExecutor, **more)


def entries(completion):
    """[[[id, value, rank], …], …]; minus infinity is None."""
    value = lambda x: None if x == float("-inf") else x  # noqa: E731
    return [[[token, value(e.logprob), e.rank] for token, e in step.items()] for step in completion.logprobs]


def ask(llm, rows, **more):
    """Every prompt with every row, in one batch."""
    from vllm import SamplingParams

    from mini_vllm.tests.golden.sampling_mode_cases import LOGPROBS, PROMPTS

    prompts = [prompt for prompt in PROMPTS for _ in rows]
    params = [SamplingParams(logprobs=LOGPROBS, ignore_eos=True, **{**row, **more}) for _ in PROMPTS for row in rows]
    outputs = [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]
    return [{"token_ids": list(o.token_ids), "entries": entries(o)} for o in outputs]


def of_mode(mode, drafts):
    from mini_vllm.tests.golden.sampling_mode_cases import FIRST_STEP, GREEDY, MAX_TOKENS, ONE_LEFT

    llm = engine(logprobs_mode=mode, speculative_config=drafts)
    found = {"greedy": ask(llm, GREEDY, max_tokens=MAX_TOKENS)}
    if drafts is None:  # with drafts the release's CPU runner fails on rows that draw: its kernel is a GPU's
        found["mixed"] = ask(llm, [*GREEDY, *ONE_LEFT], max_tokens=MAX_TOKENS)
        found["first step"] = ask(llm, FIRST_STEP, max_tokens=1)
    return found


def of_thinking(config, drafts):
    from vllm import SamplingParams

    from mini_vllm.tests.golden.sampling_mode_cases import BUDGETS, THINKING_PROMPTS, THINKING_TOKENS

    llm = engine(reasoning_config=config, speculative_config=drafts)
    found = []
    for temperature in (0.0,) if drafts else (0.0, 0.6):
        asked = [(prompt, budget) for prompt in THINKING_PROMPTS for budget in BUDGETS]
        params = [
            SamplingParams(temperature=temperature, top_k=1, seed=1, max_tokens=THINKING_TOKENS, ignore_eos=True,
                           thinking_token_budget=budget, logprobs=2)
            for _, budget in asked
        ]  # fmt: skip
        outputs = llm.generate([prompt for prompt, _ in asked], params, use_tqdm=False)
        for output in outputs:
            values = [sorted((e.logprob for e in step.values()), reverse=True) for step in output.outputs[0].logprobs]
            gaps = [round(min((*each, -99.0)[0] - (*each, -99.0)[1], 99.0), 5) for each in values]
            found.append({"token_ids": list(output.outputs[0].token_ids), "gaps": gaps})
    return found


def main():
    os.environ.update(SETTINGS)
    from mini_vllm.tests.golden.sampling_mode_cases import DRAFT_MODEL, MODES, NGRAM, THINKING

    provenance = {
        "recorder": "mini_vllm/tests/golden/record_sampling_modes.py",
        "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}, CPU",
        **{name: importlib.metadata.version(name) for name in ("vllm", "torch", "numpy")},
    }
    drafts = {"none": None, "ngram": NGRAM, "draft_model": DRAFT_MODEL}
    where = HERE / "sampling-modes.json.xz"
    record = read_packed(where) if where.exists() else {}
    record["provenance"] = provenance
    if "thinking" not in sys.argv:
        record["modes"] = {m: {"none": of_mode(m, None), "ngram": of_mode(m, NGRAM)} for m in MODES}
        write_packed(where, record)
    if "modes" not in sys.argv:
        record["thinking"] = {
            name: {k: of_thinking(config, d) for k, d in drafts.items()} for name, config in THINKING.items()
        }
    write_packed(where, record)
    print(f"{where.name}: {where.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
