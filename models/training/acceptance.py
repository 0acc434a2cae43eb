"""Measures how many drafts pocket accepts, kind by kind: `python -m models.training.acceptance models/pocket-eagle`.

Held-out questions, greedy answers to their end in this course's engine, float32. Writes `metrics.json` into the folder.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mini_vllm import LLM, SamplingParams
from models.training.evaluate import MAX_TOKENS, render
from models.training.suites import Case, all_suites

KINDS = {
    "stories": ["stories"],
    "glossary": ["glossary_paraphrased"],
    "tool calls and JSON": ["json_exact", "json_objects"],
    "sums": ["sums_two_digit", "sums_three_digit"],
}
QUESTIONS = 40
METHODS = {"pocket-eagle": "eagle", "pocket-medusa": "medusa"}
NUM_SPECULATIVE_TOKENS = 3


def questions(kind: str, count: int = QUESTIONS) -> list[Case]:
    """So many cases of a kind, evenly out of its suites."""
    suites = [all_suites()[name] for name in KINDS[kind]]
    share = count // len(suites)
    return [case for suite in suites for case in suite[:: len(suite) // share][:share]]


def make_engine(folder: Path) -> LLM:
    """pocket, drafted for by the heads in `folder`."""
    config = {"method": METHODS[folder.name], "model": str(folder), "num_speculative_tokens": NUM_SPECULATIVE_TOKENS}
    return LLM(str(folder.parent / "pocket"), max_num_seqs=8, enable_prefix_caching=False, speculative_config=config)


def measure(llm: LLM, cases: list[Case]) -> dict[str, Any]:
    """Counts of one kind: answers, their tokens, steps that had drafts, accepted drafts by position."""
    stats = llm.llm_engine.stats.spec_decoding
    assert stats is not None
    before = [stats.num_drafts, stats.num_draft_tokens, *stats.num_accepted_tokens_per_pos]
    tokenizer = llm.get_tokenizer()
    ids = [{"prompt_token_ids": tokenizer.encode(render(case.messages), add_special_tokens=False)} for case in cases]
    outputs = llm.generate(ids, SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS), use_tqdm=False)
    stats = llm.llm_engine.stats.spec_decoding
    assert stats is not None
    after = [stats.num_drafts, stats.num_draft_tokens, *stats.num_accepted_tokens_per_pos]
    drafts, draft_tokens, *accepted = [b - a for a, b in zip(before, after, strict=True)]
    return {
        "questions": len(cases),
        "tokens": sum(len(output.outputs[0].token_ids) for output in outputs),
        "num_drafts": drafts,
        "num_draft_tokens": draft_tokens,
        "num_accepted_tokens_per_pos": accepted,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="models/pocket-eagle or models/pocket-medusa")
    folder: Path = parser.parse_args().folder
    llm = make_engine(folder)
    report = {
        "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
        "kinds": {kind: measure(llm, questions(kind)) for kind in KINDS},
    }
    (folder / "metrics.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
