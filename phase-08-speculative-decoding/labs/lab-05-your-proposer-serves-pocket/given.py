"""What lab 08-05 stands on: a loop for toy targets, pocket in the engine, and prompts. Given: nothing to edit here."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from course.labs import load
from course.plugs.guards import Watch
from mini_vllm import LLM, SamplingParams

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
POCKET = str(ROOT / "models" / "pocket")
plug = load(HERE / "plug.py")


def hashed(text: Sequence[int]) -> int:
    """A token that depends on the last three."""
    return (text[-1] * 7 + sum(text[-3:]) * 13) % 11


TARGETS: dict[str, Callable[[Sequence[int]], int]] = {
    "periodic": lambda text: [1, 2, 3, 4][len(text) % 4],
    "never the same": lambda text: 1000 + len(text),
    "hashed": hashed,
}


def plain(target: Callable[[Sequence[int]], int], prompt: Sequence[int], num_tokens: int) -> list[int]:
    """One token a pass."""
    text = list(prompt)
    for _ in range(num_tokens):
        text.append(target(text))
    return text[len(prompt) :]


def decode(
    target: Callable[[Sequence[int]], int], prompt: Sequence[int], proposer: Any, verify: Any, k: int, num_tokens: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """The engine's loop in ten lines: tokens, and (drafted, tokens that came out) of each cycle."""
    text, cycles = list(prompt), []
    while (missing := len(prompt) + num_tokens - len(text)) > 0:
        most, given = min(k, missing - 1), list(text)
        draft = proposer.propose(given, most)
        assert given == text, "propose changed token_ids"
        assert len(draft) <= most, (
            f"propose was asked for at most {most} tokens and gave {len(draft)}: the extra row would be written past "
            "max_tokens"
        )
        answers = np.array([target(text + list(draft[:i])) for i in range(len(draft) + 1)])
        tokens = verify(draft, answers)
        assert 1 <= len(tokens) <= len(draft) + 1, f"{len(tokens)} tokens out of {len(draft)} drafts"
        text += tokens
        cycles.append((len(draft), len(tokens)))
    return text[len(prompt) :], cycles


def engine(k: int = 0, dtype: str = "float32", max_num_seqs: int = 1, method: str = "ngram") -> LLM:
    """pocket, without drafts (k = 0) or with a place for yours."""
    drafts = {"method": method, "num_speculative_tokens": k} if k else None
    if k and method == "custom_class":
        drafts = {**drafts, "model": "mini_vllm.NgramProposer"}
    return LLM(
        POCKET, dtype=dtype, max_num_seqs=max_num_seqs, max_model_len=512, kv_cache_memory_bytes=64 << 20,
        enable_prefix_caching=False, speculative_config=drafts,
    )  # fmt: skip


def install(llm: LLM, module: Any) -> Watch:
    """Your code in this engine; the watch counts its calls and names its faults."""
    watch = Watch("proposer", "08-05")
    plug.on_start(module, watch, llm.llm_engine.engine_core)
    return watch


def serve(llm: LLM, prompts: Sequence[str], max_tokens: int = 48) -> SimpleNamespace:
    """Greedy answers, one prompt after the other: tokens; cycles and seconds without those of the prompt's pass."""
    core, cycles, stamps = llm.llm_engine.engine_core, [], []
    take_in = core.scheduler.update_from_output

    def counted(output: Any, result: Any) -> Any:
        stamps.append(time.perf_counter())
        for name, made in zip(result.req_ids, result.sampled_token_ids, strict=True):
            if made and (output.num_scheduled_tokens[name] == 1 or name in output.scheduled_spec_decode_tokens):
                cycles.append((len(output.scheduled_spec_decode_tokens.get(name, ())), len(made)))
        return take_in(output, result)

    core.scheduler.update_from_output = counted
    params, tokens, seconds = SamplingParams(temperature=0.0, max_tokens=max_tokens), [], 0.0
    try:
        for prompt in prompts:
            ids = llm.render_chat([{"role": "user", "content": prompt}])
            stamps.clear()
            tokens.append(list(llm.generate([ids], params, use_tqdm=False)[0].outputs[0].token_ids))
            seconds += stamps[-1] - stamps[0]
    finally:
        core.scheduler.update_from_output = take_in
    return SimpleNamespace(tokens=tokens, cycles=cycles, seconds=seconds)


class Junk:
    """A proposer whose drafts are never right: what is left is their price."""

    def propose(self, token_ids: list[int], k: int) -> list[int]:
        """k times a token that pocket never says."""
        return [2] * k

    def finished(self, token_ids: list[int]) -> None:
        """Nothing to keep."""


def measure_row_cost(module: Any, repeats: int = 7) -> dict[int, float]:
    """rows -> milliseconds of a step of one request, medians, in turns."""
    arms = {rows: engine(rows - 1) for rows in (1, 2, 3, 5, 8)}
    junk = SimpleNamespace(Proposer=Junk, verify_greedy=module.verify_greedy)
    for llm in arms.values():
        install(llm, junk)
    found: dict[int, list[float]] = {rows: [] for rows in arms}
    for _ in range(repeats):
        for rows, llm in arms.items():
            done = serve(llm, ["Tell me a story about a fox and a violin."], 64)
            found[rows].append(done.seconds / len(done.cycles) * 1e3)
    return {rows: statistics.median(each[1:]) for rows, each in found.items()}


ASKED = {
    "Language model": (
        "A language model is a function from a list of tokens to a guess at the next one. Called "
        "again and again on its own output, it writes text."
    ),
    "Forward pass": (
        "A forward pass is one run of the model over some tokens. Its last position tells how "
        "likely each entry of the vocabulary is as the next token."
    ),
    "RMSNorm": (
        "RMSNorm divides a vector by its root mean square and scales each entry by a learned "
        "weight. It keeps the size of hidden states in bounds."
    ),
    "Softmax": (
        "Softmax turns a list of scores into probabilities: take the exponential of each and "
        "divide by the sum. The largest score is subtracted first, so that nothing overflows."
    ),
    "Tokenizer": (
        "A tokenizer turns text into token ids (encode) and ids back into text (decode). Each "
        "model has its own, and no other will do."
    ),
    "Context length": (
        "The context length is the most tokens, prompt and output together, that a model can "
        "process in one sequence. The engine's limit is `max_model_len`."
    ),
    "MHA": (
        "MHA, multi-head attention, gives every query head a K and V head of its own. It has the "
        "largest KV cache of the family."
    ),
    "Prefill": (
        "Prefill is the part of a request in which the engine processes the prompt tokens, many "
        "at once, and fills the KV cache. For a long prompt it is bound by compute."
    ),
}
"""Terms of the course, and what pocket has learnt to say of them."""


def prompts(kind: str) -> list[str]:
    """Questions of one kind."""
    names = ["Alma", "Bruno", "Celia", "Dario", "Edda", "Felix", "Gina", "Harald"]
    colours, days = ["blue", "black", "green"], ["Tuesday", "Thursday", "Friday"]
    things = ["lamp", "boat", "fox", "river", "clock", "garden"]
    if kind == "JSON":
        return [
            f"Write a JSON object with name {name}, colour {colours[at % 3]} and day {days[at // 3]}."
            for at, name in enumerate(names)
        ]
    if kind == "stories":
        pairs = zip(things, things[1:] + things[:1], strict=True)
        return [f"Tell me a story about a {one} and a {two}." for one, two in pairs]
    asked = [(f"What is meant by {term}?", answer) for term, answer in ASKED.items()]
    if kind == "glossary":
        return [question for question, _ in asked]
    return [f"{question}\n{answer}\n{question}\n{answer}\n{question}" for question, answer in asked]


KINDS = ("repeating", "glossary", "stories", "JSON")
