"""Truths of the tokenizer playground: pocket's tokenizer, and the order of its merges."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from mini_vllm.tokenizers.bpe import BPETokenizer

POCKET = Path(__file__).resolve().parents[3] / "models" / "pocket"
EXAMPLES = ["unbelievably fast", "vLLM is fast", "naïve 🐘 tokens", "47 + 85 = 132"]
RIVALS = ["PagedAttention", "strawberry", "hello", "tokens"]


def steps(tokenizer: BPETokenizer, word: str) -> list[dict[str, Any]]:
    """The state before each merge, the place of the pair that is merged, its rank; -1 and -1 where none is left."""
    merger = tokenizer.merger
    symbols, found = [merger.byte_ids[byte] for byte in word.encode()], []
    while True:
        known = [
            (merger.ranks[pair][0], at) for at, pair in enumerate(itertools.pairwise(symbols)) if pair in merger.ranks
        ]
        rank, at = min(known, default=(-1, -1))
        found.append({"pieces": [list(tokenizer.id_to_bytes(i)) for i in symbols], "at": at, "rank": rank})
        if at < 0:
            assert symbols == tokenizer.encode(word, add_special_tokens=False)
            return found
        symbols[at : at + 2] = [merger.ranks[symbols[at], symbols[at + 1]][1]]


def record() -> dict[str, Any]:
    """Answers, and texts to begin with."""
    tokenizer = BPETokenizer.from_folder(POCKET)

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    first = steps(tokenizer, "token")[0]
    pair = [bytes(piece).decode() for piece in first["pieces"][first["at"] : first["at"] + 2]]
    answers = {
        "sentence": count("What is a KV block?"),
        "space": count(" hello"),
        "digits": count("1234567"),
        "elephant": count("🐘"),
        "first": " + ".join(pair),
        "portrait": max(RIVALS, key=count),
    }
    return {"answers": answers, "examples": EXAMPLES}
