"""Lab 08-05 in the engine: your `Proposer` makes its drafts, your `verify_greedy` judges those of greedy requests.

It stands where ngram and classes of one's own stand (`speculative_config`, method "ngram" or "custom_class"), so an
engine without drafts never asks it. Random requests, and requests whose parameters change logits, are judged by ours.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm import LLM, SamplingParams
from mini_vllm.sample.rejection_sampler import RejectionSampler, RejectionSamplerOutput

POCKET = Path(__file__).resolve().parents[3] / "models" / "pocket"


class LabProposer:
    """Upstream's interface of a proposer, around the learner's."""

    def __init__(self, module: Any, watch: Any, runner: Any, k: int) -> None:
        self._watch, self._batch, self._k = watch, runner.input_batch, k
        self._vocab_size = runner.model.vocab_size
        self._proposer = watch.call(module.Proposer)
        self._texts: dict[str, list[int]] = {}

    def propose(
        self, sampled_token_ids: list[list[int]], num_tokens_no_spec: Any, token_ids_cpu: Any, slot_mappings: Any = None
    ) -> list[list[int]]:
        """As `NgramProposer.propose`."""
        names = list(self._batch.req_ids)
        for name in self._texts.keys() - set(names):
            self._watch.call(self._proposer.finished, self._texts.pop(name))
        drafts: list[list[int]] = []
        for row, (name, sampled) in enumerate(zip(names, sampled_token_ids, strict=True)):
            text = token_ids_cpu[row, : num_tokens_no_spec[row]].tolist()
            self._texts[name] = text
            most = min(self._k, token_ids_cpu.shape[1] - len(text))
            drafts.append(self._ask(text, most) if sampled and most > 0 else [])
        return drafts

    def _ask(self, text: list[int], most: int) -> list[int]:
        given = list(text)
        drafts = self._watch.call(self._proposer.propose, given, most)
        self._watch.require(given == text, "propose changed token_ids")
        self._watch.require(
            isinstance(drafts, list), f"propose must return a list of tokens, got {type(drafts).__name__}"
        )
        said = f"propose was asked for at most {most} tokens and gave {len(drafts)}"
        self._watch.require(len(drafts) <= most, f"{said}: the extra row would be written past the request's slots")
        wrong = [token for token in drafts if not isinstance(token, int) or not 0 <= token < self._vocab_size]
        self._watch.require(not wrong, f"propose gave {wrong[:1]}, which is no token of the vocabulary")
        return drafts


class LabRejectionSampler(RejectionSampler):
    """Ours, with the learner's verdict on greedy requests."""

    def __init__(self, module: Any, watch: Any, ours: RejectionSampler) -> None:
        super().__init__(ours.sampler)
        self._verify, self._watch = module.verify_greedy, watch

    def forward(
        self, metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any, rows: Any = ()
    ) -> RejectionSamplerOutput:
        """As ours."""
        result = super().forward(metadata, draft_probs, logits, sampling_metadata, rows)
        if not (sampling_metadata.all_greedy and sampling_metadata.leaves_logits_alone) or result.logprobs is not None:
            return result
        chosen, drafts = logits.argmax(axis=-1), metadata.draft_token_ids.tolist()
        ends, rows_end = metadata.cu_num_draft_tokens.tolist(), metadata.cu_num_sampled_tokens.tolist()
        result.sampled_token_ids[:] = -1
        for at, count in enumerate(metadata.num_draft_tokens):
            target = np.array(chosen[rows_end[at] - count - 1 : rows_end[at]], np.int64)
            tokens = self._watch.call(self._verify, drafts[ends[at] - count : ends[at]], target)
            fine = isinstance(tokens, list) and all(type(token) is int for token in tokens)
            self._watch.require(fine, f"verify_greedy must return a list of Python ints, got {tokens!r}")
            self._watch.require(
                1 <= len(tokens) <= count + 1, f"verify_greedy made {len(tokens)} tokens of {count} drafts"
            )
            result.sampled_token_ids[at, : len(tokens)] = tokens
        return result

    __call__ = forward


def on_start(module: Any, watch: Any, core: Any) -> None:
    """Put the learner's code into a finished engine, where it makes drafts without weights."""
    if core.config.speculative_config is None or core.config.tensor_parallel_size > 1:
        return
    config, runner = core.config.speculative_config, core.model_runner
    if config.method not in ("ngram", "custom_class") or config.rejection_sample_method != "standard":
        return
    runner.drafts.drafter = LabProposer(module, watch, runner, config.num_speculative_tokens)
    runner.drafts.rejection_sampler = LabRejectionSampler(module, watch, runner.drafts.rejection_sampler)


def serves(parts: Any) -> None:
    """What a milestone checks: an answer that stands in the prompt twice already is said again, in fewer steps."""
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    config = {"method": "ngram", "num_speculative_tokens": 4}
    bare = LLM(POCKET, dtype="float64")
    drafting = LLM(POCKET, with_labs=parts, speculative_config=config, dtype="float64")
    entry = json.loads(lzma.decompress((POCKET.parent / "training" / "glossary.json.xz").read_bytes()))[0]
    ask = f"What is meant by {entry['term']}?"
    prompt = bare.render_chat([{"role": "user", "content": f"{ask}\n{entry['answer']}\n" * 2 + ask}])
    said = [llm.generate([prompt], params, use_tqdm=False)[0].outputs[0].token_ids for llm in (bare, drafting)]
    assert said[0] == said[1], "with these drafts and verdicts pocket says something else"
    steps = drafting.llm_engine.stats.num_steps
    assert steps < 18, f"{steps} steps for 24 tokens of a text that repeats"
