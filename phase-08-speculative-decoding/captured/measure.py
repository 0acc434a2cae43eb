"""What drafts buy and what rows cost on pocket, in CPU time: writes pocket-cpu.json beside this file.

OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python phase-08-speculative-decoding/captured/measure.py

gains   pocket without drafts, with ngram (7 drafts), with pocket-draft, pocket-eagle and pocket-medusa (3); greedy, one
        chat at a time, until it ends or has 64 tokens; six chats of each kind. All engines answer one before any
        answers the next. Of 5 rounds each chat counts with its least time, since neighbours on the machine only add.
        Time inside of `propose` is kept apart, and so is what the first token takes without drafts.
rows    a proposer of junk, all of it rejected: steps of 1, 4, 8 and 32 requests with 1 to 8 rows each, in turns,
        at 70 to 430 tokens of context. Of sixty steps the fourth fastest counts.
Both are CPU time of one thread (`time.thread_time`): wall time says little on a machine that others use too.
"""

import json
import lzma
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from mini_vllm import LLM, LLMEngine, SamplingParams  # noqa: E402

POCKET = str(ROOT / "models" / "pocket")
TOKENS, PROMPTS, ROUNDS = 64, 6, 5
METHODS = {
    "none": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 7, "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "draft_model": {"method": "draft_model", "model": f"{POCKET}-draft", "num_speculative_tokens": 3},
    "eagle": {"method": "eagle", "model": f"{POCKET}-eagle", "num_speculative_tokens": 3},
    "medusa": {"method": "medusa", "model": f"{POCKET}-medusa", "num_speculative_tokens": 3},
}
TERMS = ("KV block", "Prefill", "Decode", "Preemption", "Attention", "Prefix caching")
THINGS = ("lamp", "boat", "fox", "river", "clock", "garden")
BATCHES, ROWS, STEPS, CONTEXT = (1, 4, 8, 32), (1, 2, 3, 4, 6, 8), 60, 64


def chats():
    """kind -> chats: a question, the same question again after its answer, a sum, a story."""
    glossary = {
        entry["term"]: entry["answer"]
        for entry in json.loads(lzma.decompress((ROOT / "models" / "training" / "glossary.json.xz").read_bytes()))
    }
    found: dict = {"question": [], "asked again": [], "sum": [], "story": []}
    for i in range(PROMPTS):
        ask = f"What is meant by {TERMS[i]}?"
        found["question"].append([("user", ask)])
        found["asked again"].append([("user", ask), ("assistant", glossary[TERMS[i]]), ("user", ask)])
        found["sum"].append([("user", f"What is {17 + 9 * i} + {25 + 4 * i}?")])
        found["story"].append([("user", f"Tell me a story about a {THINGS[i]} and a {THINGS[i - 1]}.")])
    return {kind: [[{"role": r, "content": c} for r, c in chat] for chat in each] for kind, each in found.items()}


class Junk:
    """Proposes `Junk.count` tokens for every request that got one."""

    count = 0

    def __init__(self, vllm_config):
        pass

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None):
        return [[5] * Junk.count if sampled else [] for sampled in sampled_token_ids]


class Timed:
    """A proposer that adds up what it takes."""

    def __init__(self, drafts):
        self.drafter, self.seconds = drafts.drafter, 0.0
        self.propose, drafts.drafter.propose = drafts.drafter.propose, self.timed

    def timed(self, *args, **kwargs):
        start = time.thread_time()
        found = self.propose(*args, **kwargs)
        self.seconds += time.thread_time() - start
        return found


def start(method):
    """An engine, and the stopwatch in its proposer."""
    llm = LLM(POCKET, max_model_len=1024, enable_prefix_caching=False, num_blocks=128, speculative_config=method)
    drafts = llm.llm_engine.engine_core.model_runner.drafts
    return llm, Timed(drafts) if drafts else None


def answer(llm, stopwatch, chat, tokens=TOKENS):
    """One chat: CPU seconds, seconds of them in the proposer, steps, drafts, accepted, tokens."""
    stats, params = llm.llm_engine.stats, SamplingParams(temperature=0.0, max_tokens=tokens)
    spec = stats.spec_decoding
    before = (spec.num_draft_tokens, spec.num_accepted_tokens, *spec.num_accepted_tokens_per_pos) if spec else ()
    steps, at = llm.llm_engine.stats.num_steps, stopwatch.seconds if stopwatch else 0.0
    begin = time.thread_time()
    output = llm.chat(chat, params, use_tqdm=False)[0].outputs[0]
    seconds = time.thread_time() - begin
    spec, found = llm.llm_engine.stats.spec_decoding, {"seconds": seconds, "tokens": output.token_ids}
    found["steps"] = llm.llm_engine.stats.num_steps - steps
    if spec:
        after = (spec.num_draft_tokens, spec.num_accepted_tokens, *spec.num_accepted_tokens_per_pos)
        counts = [b - a for a, b in zip(before, after, strict=True)]
        found |= {"drafted": counts[0], "accepted": counts[1], "per_position": counts[2:]}
        found["proposing"] = stopwatch.seconds - at
    return found


def gains():
    """For each kind and method the sums over the chats."""
    engines = {name: start(method) for name, method in METHODS.items()}
    for llm, stopwatch in engines.values():
        answer(llm, stopwatch, [{"role": "user", "content": "Hello!"}])
    table = {}
    for kind, asked in chats().items():
        best = {name: [None] * PROMPTS for name in engines}
        for _ in range(ROUNDS):
            for i, chat in enumerate(asked):
                for name, (llm, stopwatch) in engines.items():
                    found = answer(llm, stopwatch, chat)
                    if name == "none":
                        found["first"] = answer(llm, stopwatch, chat, 1)["seconds"]
                    if best[name][i] is None or found["seconds"] < best[name][i]["seconds"]:
                        best[name][i] = found
        told = {name: [one.pop("tokens") for one in each] for name, each in best.items()}
        table[kind] = {name: total(each) | {"same": told[name] == told["none"]} for name, each in best.items()}
    return table


def total(answers):
    """Sums of the numbers of some answers."""
    found = {name: sum(one[name] for one in answers) for name in answers[0] if name != "per_position"}
    if "per_position" in answers[0]:
        found["per_position"] = [sum(each) for each in zip(*(one["per_position"] for one in answers), strict=True)]
    return found


def rows():
    """batch -> rows of a request -> CPU milliseconds of a step."""
    sys.modules["junk_proposer"] = sys.modules[__name__]
    spec = {"method": "custom_class", "model": "junk_proposer.Junk", "num_speculative_tokens": max(ROWS) - 1,
            "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 1.0}  # fmt: skip
    table = {}
    for batch in BATCHES:
        engine = LLMEngine(POCKET, max_num_seqs=32, num_blocks=1024, enable_prefix_caching=False,
                           max_model_len=1024, speculative_config=spec)  # fmt: skip
        params = SamplingParams(temperature=0.0, max_tokens=800, ignore_eos=True)
        for i in range(batch):
            engine.add_request(str(i), {"prompt_token_ids": [7 + i] * CONTEXT}, params)
        for _ in range(4):
            engine.step()
        seen = {count: [] for count in ROWS}
        verified = Junk.count + 1
        for _ in range(STEPS):
            for count in ROWS:
                Junk.count = count - 1
                begin = time.thread_time()
                engine.step()
                seen[verified].append((time.thread_time() - begin) * 1e3)
                verified = count
        table[batch] = {count: round(sorted(times)[3], 4) for count, times in seen.items()}
        Junk.count = 0
    return table


if __name__ == "__main__":
    measured = {"gains": gains(), "rows": rows()}
    (HERE / "pocket-cpu.json").write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
