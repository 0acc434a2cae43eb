"""Which experts a served workload uses, added to metrics.json: `python -m models.training.expert_load FOLDER`.

The workload is a choice of the evaluation's questions with the model's own greedy answers, run by `mini_vllm`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm import SamplingParams
from models.training.engines import MiniEngine
from models.training.evaluate import MAX_TOKENS, render
from models.training.suites import all_suites

CASES_PER_SUITE = 25
BATCHES = (1, 4, 16, 64)


def measure(folder: Path) -> dict[str, Any]:
    """Assignments by MoE layer and expert; how uneven they are over all, within a suite, and within a decode step."""
    engine = MiniEngine(folder)
    llm_engine = engine.llm.llm_engine
    load = llm_engine.stats.expert_load
    assert load is not None
    total, by_suite, questions = np.zeros_like(load.counts), {}, 0
    for name, cases in all_suites().items():
        chosen = cases[:: max(1, len(cases) // CASES_PER_SUITE)][:CASES_PER_SUITE]
        load.reset()
        engine.generate([render(case.messages) for case in chosen], MAX_TOKENS)
        by_suite[name] = round(max(load.imbalance()), 3)
        total += load.counts
        questions += len(chosen)
    return {
        "questions": questions,
        "tokens": llm_engine.stats.num_scheduled_tokens,
        "counts": total.tolist(),
        "imbalance_of_suites": by_suite,
        "imbalance_of_decode_steps": {str(batch): decode_imbalance(folder, batch) for batch in BATCHES},
    }


def decode_imbalance(folder: Path, batch: int) -> float:
    """Largest over mean load within one layer of one step, on average over steps of `batch` decoding stories."""
    engine = MiniEngine(folder)
    llm_engine = engine.llm.llm_engine
    load = llm_engine.stats.expert_load
    assert load is not None
    tokenizer = engine.llm.get_tokenizer()
    for number, case in enumerate(all_suites()["stories"][:batch]):
        prompt = {"prompt_token_ids": tokenizer.encode(render(case.messages), add_special_tokens=False)}
        llm_engine.add_request(str(number), prompt, SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True))
    found, before = [], 0
    while llm_engine.has_unfinished_requests():
        load.reset()
        llm_engine.step()
        tokens = llm_engine.stats.num_scheduled_tokens - before
        before += tokens
        if tokens == batch:  # one token each
            found.append(np.mean(load.imbalance()))
    return round(float(np.mean(found)), 2)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    report = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    report["expert_load"] = measure(folder)
    (folder / "metrics.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(report["expert_load"])


if __name__ == "__main__":
    main()
