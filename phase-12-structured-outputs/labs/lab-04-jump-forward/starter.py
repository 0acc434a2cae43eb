"""Lab 12-04: what the grammar forces needs no forward pass, if you leave the model its tokens.

A `Grammar`, a `Tokens` and a `Served` model come from `given.py`; their docstrings say what they can do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """ids: the tokens written, without the end of the text. text: their bytes. num_computed_tokens: of prompt and ids,
    how many leading ones have their K and V in the served model's cache; what stands there beyond them is void."""

    ids: list[int]
    text: bytes
    num_computed_tokens: int


def forced_text(grammar: Any) -> bytes:
    """The longest text that is the only way on from here; b"" where the text may end or may go on in several ways.

    The grammar stays where it is.
    """
    raise NotImplementedError("the longest text that is the only way on")


def predicted_right_answers() -> int:
    """Your prediction, made before you run anything. Forty times pocket is asked for a JSON object with three given
    values, under a schema that allows each of them, and with masks alone all forty answers are right. Now forced text
    is written down at once, as `tokens.encode(text)` behind what stands there. The JSON stays valid, the schema is
    obeyed. How many of the forty answers are right?
    """
    raise NotImplementedError("your prediction: how many of forty answers are right")


def jump(text: bytes, ids: Sequence[int], grammar: Any, tokens: Any) -> tuple[list[int], int]:
    """Write forced text down without asking the model.

    What comes out is what the model would have before it, had it written as it always does: canonical tokens
    (`tokens.encode` of the whole text so far), and no token but those that are certain to be its own. How much of the
    forced text becomes tokens is your decision. No jump may take text away.

    Args:
        text: what is forced behind `ids`, not empty.
        ids: the tokens written so far, without the prompt; left as they are.
        grammar: it stands behind `ids`, before `text`; left where it is.
        tokens: the vocabulary.

    Returns:
        The new ids, and how many leading ids of `ids` are still the same: K and V of the others are void.
    """
    raise NotImplementedError("the ids with forced text written down, and how many of the old ones are still the same")


def generate(served: Any, prompt_ids: Sequence[int], grammar: Any, max_tokens: int) -> Result:
    """A greedy answer under a grammar, with jumps: the text that masks alone would give, in fewer forward passes.

    At each pass the model takes the best legal token. The answer ends where the grammar leaves nothing but the end,
    which costs no pass; where the model chooses the end; and at `max_tokens` ids.

    Args:
        served: the model, nothing computed as yet.
        grammar: where the answer begins; left where it is.

    Raises:
        ValueError: "no token of the vocabulary fits after b'TEXT'".
    """
    raise NotImplementedError("the answer that masks alone would give, in fewer forward passes")
