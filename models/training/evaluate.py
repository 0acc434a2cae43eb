"""Measures a checkpoint on held-out questions: `python -m models.training.evaluate models/pocket --write`.

Two engines give the same figures: `--engine transformers` (fp32, the default) and `--engine mini` (this course's).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from models.training.chat_format import CHAT_TEMPLATE
from models.training.engines import Engine, MiniEngine, TransformersEngine
from models.training.suites import Case, all_suites
from models.training.wordings import load

_W = load("evaluate")
GOALS: dict[str, Any] = _W["GOALS"]
MAX_TOKENS = 300
SAMPLE_PROMPTS: list[str] = _W["SAMPLE_PROMPTS"]


def render(messages: list[tuple[str, str]]) -> str:
    """The prompt string of a conversation, by the checkpoint's own template."""
    import jinja2

    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(CHAT_TEMPLATE)
    return template.render(
        messages=[{"role": role, "content": content} for role, content in messages], add_generation_prompt=True
    )


def run_suite(engine: Engine, cases: list[Case]) -> tuple[list[bool], list[bool], list[str]]:
    """(correct, ended by itself, text) of every case, greedy."""
    results = engine.generate([render(case.messages) for case in cases], MAX_TOKENS)
    return (
        [case.check(text) for case, (text, _) in zip(cases, results, strict=True)],
        [e for _, e in results],
        [t for t, _ in results],
    )


def evaluate(engine: Engine, limit: int | None, verbose: int = 0) -> dict[str, dict[str, float]]:
    """All suites; each metric as {"value": share, "count": cases}."""
    metrics, ended = {}, []
    for name, cases in all_suites().items():
        chosen = cases if limit is None else cases[:: max(1, len(cases) // limit)]
        start = time.time()
        correct, ends, texts = run_suite(engine, chosen)
        ended += ends
        metrics[name] = {"value": round(sum(correct) / len(correct), 4), "count": len(correct)}
        print(f"{name}: {metrics[name]['value']:.4f} of {len(correct)} ({time.time() - start:.0f} s)", flush=True)
        wrong = [(case, text) for case, text, ok in zip(chosen, texts, correct, strict=True) if not ok]
        for case, text in wrong[:verbose]:
            print(f"    {case.messages[-1][1][-200:]!r} -> {text!r} (wanted {case.expected!r})")
    metrics["ends_by_itself"] = {"value": round(sum(ended) / len(ended), 4), "count": len(ended)}
    print(f"ends_by_itself: {metrics['ends_by_itself']['value']:.4f} of {len(ended)}")
    return metrics


def stored_dtype(folder: Path) -> str:
    """The type of the weights on disk, from config.json."""
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))["dtype"]


def samples(engine: Engine) -> list[dict[str, str]]:
    """Greedy answers to the card's prompts, and one seeded draw at temperature 1 for the story."""
    out = [
        {"prompt": prompt, "mode": "greedy", "text": text}
        for prompt, (text, _) in zip(
            SAMPLE_PROMPTS, engine.generate([render([("user", p)]) for p in SAMPLE_PROMPTS], MAX_TOKENS), strict=True
        )
    ]
    prompt = "Tell me a story about a fox and a violin."
    for seed in (1, 2):
        text, _ = engine.generate([render([("user", prompt)])], MAX_TOKENS, seed=seed)[0]
        out.append({"prompt": prompt, "mode": f"temperature 1.0, seed {seed}", "text": text})
    return out


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine", choices=["transformers", "mini"], default="transformers")
    parser.add_argument("--limit", type=int, help="about so many cases per suite")
    parser.add_argument("--draft", type=Path, help="measure the greedy agreement of this draft model")
    parser.add_argument("--verbose", type=int, default=0, help="show so many wrong answers per suite")
    parser.add_argument("--write", action="store_true", help="write metrics.json into the folder")
    args = parser.parse_args()
    engine: Engine = TransformersEngine(args.folder) if args.engine == "transformers" else MiniEngine(args.folder)
    metrics = evaluate(engine, args.limit, args.verbose)
    report = {
        "engine": engine.describe(),
        "dtype": f"float32 (weights rounded to {stored_dtype(args.folder)})",
        "goals": GOALS,
        "metrics": metrics,
    }
    if isinstance(engine, TransformersEngine):
        report["held_out_loss"] = engine.held_out_loss()
        print("held-out loss:", report["held_out_loss"])
    for name, goal in GOALS.items():
        value = metrics[name]["value"]
        print(f"{name}: {value:.4f}, goal {goal}: {'met' if value >= goal else 'MISSED'}")
    if args.draft and isinstance(engine, TransformersEngine):
        report["draft"] = engine.draft_agreement(
            args.draft, [render(c.messages) for cases in all_suites().values() for c in cases[:40]], MAX_TOKENS
        )
        print("draft:", report["draft"])
    if args.write:
        report["samples"] = samples(engine)
        (args.folder / "metrics.json").write_text(
            json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
