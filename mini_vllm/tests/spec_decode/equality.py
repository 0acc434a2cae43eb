"""With drafts and without, what the front end gives is the same: settings, prompts, drafters, and how to compare.

`python -m mini_vllm.tests.spec_decode.equality` prints a table, settings by drafters: requests whose whole output, and
whose stream, is that of an engine without drafts.
"""

from __future__ import annotations

import asyncio
import math
import sys
from copy import deepcopy
from typing import Any, ClassVar

from mini_vllm import LLM, AsyncLLM, SamplingParams, StructuredOutputsParams
from mini_vllm.logprobs import FlatLogprobs
from mini_vllm.outputs import RequestOutput
from mini_vllm.sampling_params import RepetitionDetectionParams, RequestOutputKind
from mini_vllm.tests.helpers import MODELS, POCKET

ENGINE: dict[str, Any] = {
    "dtype": "float64", "num_blocks": 512, "max_model_len": 256, "enable_prefix_caching": False, "max_num_seqs": 48,
}  # fmt: skip
PROPHET = "mini_vllm.tests.spec_decode.equality.Prophet"
DRAFTERS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 4},
    "draft_model": {"method": "draft_model", "model": str(MODELS / "pocket-draft"), "num_speculative_tokens": 3},
    "eagle": {"method": "eagle", "model": str(MODELS / "pocket-eagle"), "num_speculative_tokens": 5},
    "medusa": {"method": "medusa", "model": str(MODELS / "pocket-medusa"), "num_speculative_tokens": 3},
    "prophet": {
        "method": "custom_class",
        "model": PROPHET,
        "num_speculative_tokens": 7,
    },
}
PROMPTS = [
    "What is a KV block?", "Tell me a story about a lamp and a boat.", "What is 12 + 30?", "Count from one to ten.",
    "Repeat after me: prefix caching finds equal prefixes. prefix caching finds equal",
    "Give me JSON with name and size.", "Write é, ü and 日本 three times.", "List three fruits.",
]  # fmt: skip
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a"]}


def grammar(**kinds: Any) -> dict[str, Any]:
    return {"structured_outputs": StructuredOutputsParams(**kinds)}


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stop": {"stop": ["the"], "logprobs": 0},
    "stop, two in a row": {"stop": ["mill", "the"], "logprobs": 1},
    "stop, one inside another": {"stop": ["house near", "use", "e"], "min_tokens": 3, "logprobs": 0},
    "stop, a space behind": {"stop": ["a ", ", ", "1"], "logprobs": 0},
    "stop, across tokens": {"stop": ["r th", "e n", " 3", "ing f", "0 ="], "logprobs": 2},
    "stop, many letters": {"stop": list("zyxwvukjgf,."), "max_tokens": 30},
    "stop, kept": {"stop": ["ed", "in", "an"], "include_stop_str_in_output": True, "logprobs": 0},
    "stop, behind min_tokens": {"stop": ["a", "e"], "min_tokens": 9, "logprobs": 0},
    "stop, flat logprobs": {"stop": ["o", "un"], "min_tokens": 4, "logprobs": 2, "flat_logprobs": True},
    "stop and prompt logprobs": {"stop": ["n"], "min_tokens": 2, "logprobs": 0, "prompt_logprobs": 1},
    "stop and max_tokens": {"stop": ["ge", "mill", "ix"], "max_tokens": 6},
    "stop and ignore_eos": {"stop": [".", "2"], "ignore_eos": True, "min_tokens": 8, "max_tokens": 30},
    "stop token": {"stop_token_ids": [265, 300, 293, 46, 51], "logprobs": 0},
    "stop token, kept": {"stop_token_ids": [265, 300, 293, 46], "include_stop_str_in_output": True, "min_tokens": 5},
    "stop token and stop": {"stop_token_ids": [265, 300, 293], "stop": ["r", "s"], "min_tokens": 2},
    **{f"max_tokens={n}": {"max_tokens": n, "logprobs": 0} for n in (1, 2, 3, 7)},
    "to the end": {"max_tokens": 90, "logprobs": 0},
    "to the end, kept": {"max_tokens": 60, "include_stop_str_in_output": True, "skip_special_tokens": False},
    "ignore_eos": {"ignore_eos": True, "max_tokens": 40, "logprobs": 0},
    "ignore_eos and min_tokens": {"ignore_eos": True, "min_tokens": 12, "max_tokens": 40},
    "min_tokens": {"min_tokens": 20, "max_tokens": 40, "logprobs": 0},
    "bad_words": {"bad_words": ["the", " lived", "equal", "=", ", 3"], "logprobs": 0},
    "logit_bias": {"logit_bias": {265: 4.0, 300: -8.0, 46: 2.5}, "logprobs": 2},
    "allowed_token_ids": {"allowed_token_ids": list(range(200, 900)), "stop": ["e"], "min_tokens": 3},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4, "logprobs": 1},
    "repetition_detection": {
        "repetition_detection": RepetitionDetectionParams(max_pattern_size=6, min_pattern_size=1, min_count=2),
        "max_tokens": 60, "ignore_eos": True,
    },
    "logprob_token_ids": {"logprob_token_ids": [265, 300], "max_tokens": 12},
    "nothing left behind three": {"allowed_token_ids": [889], "bad_words": ["In" * 4], "logprobs": 0},
    "nothing left behind a stop": {"allowed_token_ids": [889], "bad_words": ["In" * 4], "stop": ["nI"]},
    "nothing left behind the end": {"allowed_token_ids": [889], "bad_words": ["In" * 4], "max_tokens": 2},
    "no text": {"detokenize": False, "logprobs": 1, "max_tokens": 9},
    "n=3": {"n": 3, "temperature": 0.9, "top_k": 1, "seed": 1, "stop": ["at", "in", "l"], "logprobs": 0},
    "drawn without a choice": {"temperature": 1.5, "min_p": 1.0, "seed": 3, "stop": ["to", " o"], "logprobs": 0},
    "schema": {**grammar(json=SCHEMA), "max_tokens": 40, "logprobs": 0},
    "schema and stop": {**grammar(json=SCHEMA), "max_tokens": 40, "stop": [":", '"b', "}"]},
    "regex": {**grammar(regex=r"(ab|cd){6}"), "max_tokens": 40},
    "regex and ignore_eos": {**grammar(regex=r"[a-c]{3,9}"), "max_tokens": 40, "ignore_eos": True},
    "choice and stop": {**grammar(choice=["one two three", "one two four"]), "stop": ["o t", "wo", "f"]},
}  # fmt: skip


class Prophet:
    """A proposer that has read the answers: as many drafts as may be, most of them right."""

    answers: ClassVar[list[list[int]]] = []

    def __init__(self, vllm_config: Any) -> None:
        self.k = vllm_config.speculative_config.num_speculative_tokens

    def propose(self, sampled_token_ids: Any, num_tokens_no_spec: Any, token_ids_cpu: Any, slot_mappings: Any = None):
        lengths = num_tokens_no_spec[: len(sampled_token_ids)].tolist()
        rows = zip(sampled_token_ids, token_ids_cpu, lengths, strict=False)
        return [self._after(ids[:length].tolist()) if sampled else [] for sampled, ids, length in rows]

    def _after(self, told: list[int]) -> list[int]:
        known = (answer for answer in self.answers if answer[: len(told)] == told and len(answer) > len(told))
        return next(known, [])[len(told) :][: self.k]


def requests(settings: list[str], prompts: list[str]) -> tuple[list[str], list[SamplingParams]]:
    """One request for each setting and prompt, the prompts of a setting together."""
    params = [SamplingParams(**{"temperature": 0.0, "max_tokens": 24, **SETTINGS[name]}) for name in settings]
    asked = [f"<|user|>\n{prompt}<|end|>\n<|assistant|>\n" for prompt in prompts]
    return asked * len(settings), [each for each in params for _ in prompts]


def answer(spec: dict[str, Any] | None, prompts: list[str], params: list[SamplingParams], **engine_args: Any):
    """Whole outputs from an `LLM`, and the engine."""
    llm = LLM(str(POCKET), speculative_config=spec, **{**ENGINE, **engine_args})
    outputs = llm.generate(prompts, deepcopy(params), use_tqdm=False)
    if spec is None:
        Prophet.answers = [o.prompt_token_ids + list(c.token_ids) for o in outputs for c in o.outputs]
    return outputs, llm


def stream(spec: dict[str, Any] | None, prompts: list[str], params: list[SamplingParams], kind: RequestOutputKind):
    """Every request's outputs, in the order of their coming, from one `AsyncLLM` that serves all at once."""

    async def one(llm: AsyncLLM, at: int) -> list[RequestOutput]:
        generated = llm.generate(prompts[at], deepcopy(params[at]), f"request-{at}", output_kind=kind)
        return [deepcopy(output) async for output in generated]

    async def everyone() -> list[list[RequestOutput]]:
        llm = AsyncLLM(str(POCKET), speculative_config=spec, **ENGINE)
        try:
            return await asyncio.gather(*(one(llm, at) for at in range(len(prompts))))
        finally:
            llm.shutdown()

    return asyncio.run(everyone())


def whole(pieces: list[RequestOutput]) -> RequestOutput:
    """What a client has who adds up a stream of deltas."""
    first = deepcopy(pieces[0])
    for piece in pieces[1:]:
        first.add(piece, aggregate=True)
    first.outputs.sort(key=lambda completion: completion.index)
    return first


def differences(ours: RequestOutput, theirs: RequestOutput) -> list[str]:
    """Fields of the whole output in which two differ; log-probabilities by more than rounding."""
    found = [
        name
        for name in ("prompt", "prompt_token_ids", "finished", "num_cached_tokens", "lora_request")
        if getattr(ours, name) != getattr(theirs, name)
    ]
    if flat(ours.prompt_logprobs) != flat(theirs.prompt_logprobs):
        found.append("prompt_logprobs")
    if [c.index for c in ours.outputs] != [c.index for c in theirs.outputs]:
        return [*found, "outputs"]
    for one, other in zip(ours.outputs, theirs.outputs, strict=True):
        for name in ("text", "token_ids", "finish_reason", "stop_reason", "lora_request"):
            if getattr(one, name) != getattr(other, name):
                found.append(f"{name}: {getattr(one, name)!r} for {getattr(other, name)!r}")
        if flat(one.logprobs) != flat(other.logprobs):
            found.append("logprobs")
        mine, their = one.cumulative_logprob, other.cumulative_logprob
        if mine != their and (mine is None or their is None or not math.isclose(mine, their, abs_tol=1e-8)):
            found.append(f"cumulative_logprob: {mine} for {their}")
    if ours.metrics and theirs.metrics and len(ours.outputs) == 1:
        counts = ours.metrics.num_generation_tokens, theirs.metrics.num_generation_tokens
        if counts[0] != counts[1] or counts[0] != len(ours.outputs[0].token_ids):
            found.append(f"num_generation_tokens: {counts}")
    return found


def flat(logprobs: Any) -> Any:
    """Entries as plain values, rounded to what two sizes of a product agree in."""
    if isinstance(logprobs, FlatLogprobs):
        logprobs = list(logprobs)
    return logprobs and [
        entry and [(token, round(v.logprob, 7), v.rank, v.decoded_token) for token, v in entry.items()]
        for entry in logprobs
    ]


def main() -> None:
    """Print the table."""
    names = list(SETTINGS)
    prompts, params = requests(names, PROMPTS)
    plain, _ = answer(None, prompts, params)
    table: dict[str, list[str]] = {name: [] for name in names}
    for drafter, spec in DRAFTERS.items():
        drafted, llm = answer(spec, prompts, params)
        streams = [whole(pieces) for pieces in stream(spec, prompts, params, RequestOutputKind.DELTA)]
        stats = llm.llm_engine.stats.spec_decoding
        print(f"{drafter}: {stats.num_accepted_tokens} of {stats.num_draft_tokens} drafts accepted", file=sys.stderr)
        for at, name in enumerate(names):
            rows = range(at * len(PROMPTS), (at + 1) * len(PROMPTS))
            counts = [sum(not differences(got[row], plain[row]) for row in rows) for got in (drafted, streams)]
            table[name].append(f"{counts[0]} + {counts[1]}")
            for row in rows:
                for got in (drafted, streams):
                    if wrong := differences(got[row], plain[row]):
                        print(drafter, name, repr(PROMPTS[row % len(PROMPTS)]), wrong, file=sys.stderr)
    print(f"Of {len(PROMPTS)} prompts: equal whole outputs + equal streams of deltas")
    print("| settings |", " | ".join(DRAFTERS), "|\n|---|" + "---|" * len(DRAFTERS))
    for name, cells in table.items():
        print(f"| {name} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
