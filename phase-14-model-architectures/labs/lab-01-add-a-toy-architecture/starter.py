"""Lab 14-01: two architectures for an engine that is not changed, and a witness who says what the engine asked of them.

A model of this engine, seen from above, is two functions.

`forward(input_ids [T], positions [T], attn) -> hidden [T, H]` gets the tokens of a step, of all requests, one after the
other: whole prompts, pieces of prompts, single tokens. Row i is about token i. `attn(layer, q [T, Hq, D],
k [T, Hkv, D], v [T, Hkv, D]) -> [T, Hq * D]` stores k and v in the KV cache and returns, for each row, the mean of the
v of its own request's tokens up to and including its own position, weighted with softmax(q · k / sqrt(D)).

`compute_logits(hidden [R, H]) -> [R, V]` gets those rows after which a token is drawn, and no others.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class BigramModel:
    """The next token depends on the last one alone: `logits(last) = table[last]`, a table drawn from the seed.

    Two models of the same size and seed are the same model; another seed is another model. What stands in a hidden row
    is your decision.

    Raises:
        ValueError: "vocab_size must be at least 1, got 0"; from `forward`, "input_ids and positions must have the same
            length, got 3 and 2".
    """

    num_layers = 0
    num_heads = num_kv_heads = 1
    head_dim = 1
    sliding_window = None
    sliding_windows: tuple[int | None, ...] = ()
    max_model_len = 512

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        raise NotImplementedError("a model of this size whose table is drawn from the seed")

    def forward(self, input_ids: np.ndarray, positions: np.ndarray, attn: Any = None) -> np.ndarray:
        """Token ids [T] and positions [T] -> hidden [T, H]."""
        raise NotImplementedError("a hidden row for each token of the step")

    def compute_logits(self, hidden: np.ndarray) -> np.ndarray:
        """Hidden rows [R, H] -> logits [R, V]; R may be 0."""
        raise NotImplementedError("the logits of each hidden row")


class TrigramModel(BigramModel):
    """The next token depends on the last two: `logits = table[last] + before[the one before it]`.

    `before` is a second table, drawn from the seed as well, and not equal to the first. At position 0 the token itself
    takes the place of the one before it. One layer, one head, and `head_dim` numbers that you choose: how the model
    comes by the token before is your decision. It must be right to the last token for every way in which the engine
    may cut and mix its requests.
    """

    num_layers = 1
    sliding_windows = (None,)

    def __init__(self, vocab_size: int, seed: int = 0) -> None:
        raise NotImplementedError("two tables, both drawn from the seed")

    def forward(self, input_ids: np.ndarray, positions: np.ndarray, attn: Any = None) -> np.ndarray:
        """Token ids [T] and positions [T] -> hidden [T, H]."""
        raise NotImplementedError("a hidden row for each token of the step, that knows the token before")

    def compute_logits(self, hidden: np.ndarray) -> np.ndarray:
        """Hidden rows [R, H] -> logits [R, V]; R may be 0."""
        raise NotImplementedError("the logits of each hidden row")


class ContractWatch:
    """Stands before a model and behaves like it, and remembers what was asked of it.

    `read`: how often each attribute was read by name. `called`: how often each method was called: an engine may fetch a
    method once and call it for ever. A name that the model does not have raises the AttributeError that the model
    raises, and is not counted.
    """

    def __init__(self, model: Any) -> None:
        raise NotImplementedError("a watch before this model, with two counters")

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError("what the model has under this name, and a note that somebody asked")
