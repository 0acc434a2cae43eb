"""The model of lab 08-01: greedy, with a KV cache for one request. Given: nothing to edit here.

A rule stands in for the weights: it says which token comes after a text. Everything else is as in an engine. A pass
takes the tokens whose K and V are not in the cache yet, writes them there, and says for each of them what comes after
it. What the cache holds is what the model sees, so a cache that belongs to another text is found out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Target:
    """rule: the token after a text, which is not empty.

    Attributes:
        passes: rows of each forward pass so far. slots: token whose K and V stand at each position.
    """

    def __init__(self, rule: Callable[[Sequence[int]], int]) -> None:
        self.rule = rule
        self.passes: list[int] = []
        self.slots: list[int] = []

    def forward(self, tokens: Sequence[int], num_computed_tokens: int) -> list[int]:
        """One pass over `tokens[num_computed_tokens:]`, a row each: what comes after the first of them, the second, ...

        The K and V of the tokens before must be in the cache; those of the rows are written over what stands there.
        The rows are computed together, so row i answers for the text up to and with its own token.
        """
        count = len(tokens)
        assert 0 <= num_computed_tokens < count, (
            f"a pass over tokens[{num_computed_tokens}:] of {count} has no row: there is nothing to compute"
        )
        assert num_computed_tokens <= len(self.slots), (
            f"num_computed_tokens={num_computed_tokens}, and the cache was written up to {len(self.slots)}"
        )
        for position in range(num_computed_tokens):
            assert self.slots[position] == tokens[position], (
                f"slot {position} holds the K and V of token {self.slots[position]}, and token {position} of the text "
                f"is {tokens[position]}. This looks like *Keeping what a rejected draft left behind*"
            )
        self.slots[num_computed_tokens:count] = tokens[num_computed_tokens:]
        self.passes.append(count - num_computed_tokens)
        return [self.rule(tokens[: at + 1]) for at in range(num_computed_tokens, count)]
