"""Records what pocket answers, token by token: ``python docs/engine-js/record.py`` writes ``answers.json`` beside it.

The engine of this folder has to give the same tokens (`course/tests/test_engine_js.py`, and the button *compare* of the
page). mini_vllm answers greedily, in float32, each question alone. Where the two likeliest tokens are closer than
``GAP`` float32 does not decide between them; a comparison stops at the first such token, ``stops_at``.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("answers.json")
POCKET = ROOT / "models" / "pocket"
sys.path.insert(0, str(ROOT))

from mini_vllm import LLM, SamplingParams  # noqa: E402

GAP = 1e-4
SYSTEM = "You are a patient teacher. Answer in one short sentence."
QUESTIONS = (
    "What is a KV block?", "What is preemption?", "What is continuous batching?", "Why do we need a block table?",
    "What is the difference between prefill and decode?", "What is paged attention?", "What is chunked prefill?",
    "WHAT DOES TTFT MEAN", "hey, can you explain prefix caching please", "Explain speculative decoding.",
    "What is attention?", "Which term means the vector that stands for a token?", "What is photography?",
    "What is 47 + 85?", "How many blocks of 16 tokens do 100 tokens need?", "Who are you?", "Tell me a joke.", "Hello!",
    "Give me a JSON object with name Ada, age 36 and city London.", "Tell me a story about a dragon and a lamp.",
    "Tell me a short story.", "Qu'est-ce qu'un éléphant à 3,5 € ? 象 🐘",
)  # fmt: skip
TAUGHT = ("What is a KV block?", "What is a block table?", "What is preemption?", "What is a token?")
CHATS = (
    ("What is prefill?", "Prefill is the part in which the engine processes the prompt.", "and what about decode?"),
    ("My name is Ada.", "Nice to meet you, Ada.", "What is my name?"),
)
ROLES = ("user", "assistant", "user")


def conversations() -> list[list[dict[str, str]]]:
    """Questions alone, behind a system turn, and as the second turn of a chat."""
    alone = [[{"role": "user", "content": text}] for text in QUESTIONS]
    taught = [[{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}] for text in TAUGHT]
    chats = [[{"role": r, "content": text} for r, text in zip(ROLES, chat, strict=True)] for chat in CHATS]
    return [*alone, *taught, *chats]


def record(which: list[int] | None = None) -> list[dict[str, Any]]:
    """An answer for each conversation, or for those of these indices."""
    llm = LLM(str(POCKET), enable_prefix_caching=False)
    params = SamplingParams(max_tokens=192, temperature=0.0, logprobs=2)
    answers = []
    for messages in [conversations()[i] for i in which or range(len(conversations()))]:
        output = llm.chat([messages], params)[0]
        ids, logprobs = output.outputs[0].token_ids, output.outputs[0].logprobs
        assert logprobs is not None
        gaps = [float(-np.diff(sorted((t.logprob for t in step.values()), reverse=True)[:2])[0]) for step in logprobs]
        answers.append({
            "messages": messages,
            "prompt_token_ids": list(output.prompt_token_ids),
            "token_ids": list(ids),
            "text": output.outputs[0].text,
            "finish_reason": str(output.outputs[0].finish_reason),
            "smallest_gap": round(min(gaps), 4),
            "stops_at": next((i for i, gap in enumerate(gaps) if gap < GAP), None),
        })  # fmt: skip
    return answers


def main() -> None:
    """Write the file."""
    weights = hashlib.sha256((POCKET / "model.safetensors").read_bytes()).hexdigest()
    made = {"python": platform.python_version(), "numpy": np.__version__, "checkpoint_sha256": weights, "gap": GAP}
    rows = ",\n".join(json.dumps(answer, ensure_ascii=False) for answer in record())
    FILE.write_text(f'{{"provenance": {json.dumps(made)},\n"answers": [\n{rows}\n]}}\n', encoding="utf-8")
    print(f"{FILE.name}: {len(conversations())} answers")


if __name__ == "__main__":
    main()
