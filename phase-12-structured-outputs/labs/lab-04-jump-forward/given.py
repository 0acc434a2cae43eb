"""What lab 12-04 stands on: a grammar over bytes, vocabularies, and served models. Given: nothing to edit here.

The grammar is the engine's own automaton (`mini_vllm/structured_output/automata`). Two models serve: pocket, with its
weights and a KV cache of its own for one request, and a scripted one, whose logits are a rule of a few lines.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mini_vllm.structured_output.automata.pushdown import DEAD, Pushdown
from mini_vllm.structured_output.automata.token_masks import TokenMasks
from mini_vllm.structured_output.automata.token_trie import TokenTrie
from mini_vllm.structured_output.backend_types import StructuredOutputOptions
from mini_vllm.structured_output.specs import compile_spec

POCKET = Path(__file__).resolve().parents[3] / "models" / "pocket"


class Grammar:
    """A place in a grammar, over bytes; `Tokens.mask` lifts it to tokens."""

    def __init__(self, kind: str, spec: str) -> None:
        automaton = compile_spec(StructuredOutputOptions[kind], spec, any_whitespace=False)
        self._pushdown = Pushdown(automaton, 32)
        self._number = self._pushdown.number(self._pushdown.start)

    @property
    def state(self) -> int:
        """Equal numbers are equal places."""
        return self._number

    def copy(self) -> Grammar:
        """The same place, which then goes its own way."""
        made = object.__new__(Grammar)
        made._pushdown, made._number = self._pushdown, self._number
        return made

    def start(self) -> Grammar:
        """A copy before the first byte."""
        made = self.copy()
        made._number = self._pushdown.number(self._pushdown.start)
        return made

    def allowed(self) -> list[int]:
        """The bytes that may come next, ascending; none where the text is complete."""
        if not self._pushdown.built[self._number]:
            self._pushdown.build_row(self._number)
        return np.flatnonzero(self._pushdown.table[self._number]).tolist()

    def may_end(self) -> bool:
        """Whether the text may end here; more bytes may be allowed all the same."""
        return bool(self._pushdown.ends[self._number])

    def feed(self, data: bytes) -> None:
        """Go on by these bytes. Raises ValueError at one that cannot stand there; nothing has changed then."""
        number = self._number
        for at, byte in enumerate(data):
            number = self._pushdown.step(number, byte)
            if number == DEAD:
                raise ValueError(f"byte {bytes([byte])!r} cannot stand after {data[:at]!r}")
        self._number = number


class Tokens:
    """A vocabulary: `tokens[i]` are the bytes of token i, b"" for what is no text; `eos_id` ends a text."""

    def __init__(self, tokens: list[bytes], eos_id: int, encode: Callable[[bytes], list[int]]) -> None:
        self.tokens, self.eos_id, self._encode = tokens, eos_id, encode
        self._trie = TokenTrie.build(tokens, len(tokens))
        self._masks: dict[int, tuple[Pushdown, TokenMasks]] = {}

    def encode(self, data: bytes) -> list[int]:
        """The tokens in which this vocabulary writes these bytes: one way of several, the canonical one."""
        return self._encode(data)

    def text(self, ids: Sequence[int]) -> bytes:
        """The bytes of tokens."""
        return b"".join(self.tokens[each] for each in ids)

    def mask(self, grammar: Grammar) -> np.ndarray:
        """bool[V]: the tokens that may come next, the end of the text among them where it may be."""
        pushdown = grammar._pushdown
        kept = self._masks.setdefault(id(pushdown), (pushdown, TokenMasks(pushdown, self._trie)))[1]
        words = kept.mask(pushdown.configurations[grammar._number])
        allowed = np.unpackbits(words.view(np.uint8), bitorder="little")[: len(self.tokens)].astype(bool)
        allowed[self.eos_id] = grammar.may_end()
        return allowed


class Served:
    """One request on one model. `forward(ids, start)` computes tokens that stand at start, start + 1, …: logits
    [len(ids), V], each row about the token after. What stood from `start` on in the cache is replaced.

    rows: tokens computed, call by call. cached: the ids whose K and V the cache holds.
    """

    def __init__(self, tokens: Tokens, compute: Callable[[list[int], int], np.ndarray]) -> None:
        self.tokens, self._compute = tokens, compute
        self.rows: list[int] = []
        self.cached: list[int] = []

    def forward(self, ids: Sequence[int], start: int) -> np.ndarray:
        """Raises ValueError for a hole ("hole: start 7 but 4 computed"), and for no tokens at all."""
        if start > len(self.cached):
            raise ValueError(f"hole: start {start} but {len(self.cached)} computed")
        if not len(ids):
            raise ValueError("a forward pass needs a token")
        if len(self.rows) > 400:
            raise AssertionError("more than 400 forward passes for one request: a loop that does not end")
        self.cached[start:] = list(ids)
        self.rows.append(len(ids))
        return self._compute(self.cached, start)


WORDS = ["name", "day", "colour", "Tuesday", "Thursday", "Th", "uesday", "ursday", "Alma", "Bruno", "al", "ru"]


@functools.lru_cache(maxsize=1)
def small_tokens() -> Tokens:
    """Printable ASCII, and what JSON is full of: 113 entries and an end. Written with the longest token that fits."""
    parts = ['{"', '":', ' "', '": "', '",', '", "', '"}']
    tokens = [bytes([byte]) for byte in range(32, 126)] + [each.encode() for each in [*parts, *WORDS]] + [b""]
    by_bytes = {token: number for number, token in enumerate(tokens) if token}

    def encode(data: bytes) -> list[int]:
        found, at = [], 0
        while at < len(data):
            size = next(size for size in range(9, 0, -1) if data[at : at + size] in by_bytes)
            found.append(by_bytes[data[at : at + size]])
            at += size
        return found

    return Tokens(tokens, len(tokens) - 1, encode)


def scripted(document: str, prompt: Sequence[int], greedy: bool = True) -> Served:
    """A model that has one document in mind, and writes it in canonical tokens (`greedy`) or byte by byte.

    It reads its own context as models do: behind a token `T` it expects the `uesday` that it has always seen there,
    since `Thursday` never begins with that token.
    """
    tokens, wanted = small_tokens(), document.encode()

    def row(ids: Sequence[int]) -> np.ndarray:
        text, logits = tokens.text(ids[len(prompt) :]), np.zeros(len(tokens.tokens))
        last = tokens.tokens[ids[-1]] if len(ids) > len(prompt) else b""
        rest = b'uesday"}' if last == b"T" and greedy else wanted[len(text) :]
        for number, token in enumerate(tokens.tokens):
            if token and rest.startswith(token):
                logits[number] = 10 + len(token) if greedy else 10 - len(token)
        if not rest:
            logits[tokens.eos_id] = 20
        return logits

    return Served(tokens, lambda cached, start: np.stack([row(cached[: at + 1]) for at in range(start, len(cached))]))


@functools.lru_cache(maxsize=1)
def _pocket() -> tuple[Any, Any, Tokens]:
    from mini_vllm.model_loader.checkpoint import load_checkpoint
    from mini_vllm.structured_output.vocabulary import token_vocabulary

    model, tokenizer, _ = load_checkpoint(str(POCKET))
    vocabulary = token_vocabulary(tokenizer, model.vocab_size, model.eos_token_ids)
    encode = lambda data: tokenizer.encode(data.decode(), add_special_tokens=False)  # noqa: E731
    return model, tokenizer, Tokens(vocabulary.tokens, vocabulary.stop_token_ids[0], encode)


def pocket_prompt(question: str) -> list[int]:
    """The ids of a question, as a chat asks it."""
    _, tokenizer, _ = _pocket()
    return tokenizer.encode(f"<|user|>\n{question}<|end|>\n<|assistant|>\n")


def pocket() -> Served:
    """The committed checkpoint, with an empty cache: K and V of one request, layer by layer."""
    model, _, tokens = _pocket()
    kept: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def compute(cached: list[int], start: int) -> np.ndarray:
        positions = np.arange(start, len(cached))

        def attend(layer: int, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
            count = len(positions)
            q, k, v = (each.reshape(count, -1, model.head_dim) for each in (q, k, v))
            if layer in kept:
                k, v = (np.concatenate([old[:start], new]) for old, new in zip(kept[layer], (k, v), strict=True))
            kept[layer] = k, v
            groups = q.reshape(count, k.shape[1], -1, model.head_dim)
            scores = np.einsum("tgrd,sgd->grts", groups, k) / np.sqrt(model.head_dim)
            scores[..., np.arange(len(k)) > positions[:, None]] = -np.inf
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            return np.einsum("grts,sgd->tgrd", weights, v).reshape(count, -1).astype(q.dtype)

        return model.compute_logits(model.forward(np.array(cached[start:]), positions, attend))

    return Served(tokens, compute)


SCHEMA = """{"type": "object", "properties": {"name": {"type": "string", "pattern": "^[A-Z][a-z]+$"},
"colour": {"enum": ["blue", "black"]}, "day": {"enum": ["Tuesday", "Thursday"]}}, "required": ["name", "colour", "day"],
"additionalProperties": false}"""


@functools.lru_cache(maxsize=1)
def requests() -> list[tuple[str, str]]:
    """Forty questions and their answers: names that pocket's training never saw, two colours, two days."""
    names = ["Alma", "Bruno", "Celia", "Dario", "Edda", "Felix", "Gina", "Harald", "Ines", "Jarek"]
    asked = []
    for number in range(40):
        name, colour = names[number % 10], ("blue", "black")[number // 10 % 2]
        day = ("Tuesday", "Thursday")[(number + number // 20) % 2]
        asked.append(
            (
                f"Write a JSON object with name {name}, colour {colour} and day {day}.",
                f'{{"name": "{name}", "colour": "{colour}", "day": "{day}"}}',
            )
        )
    return asked
