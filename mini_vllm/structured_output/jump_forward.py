"""Jump-forward: where a grammar leaves one text only, the engine writes it down, and no pass is made for each token.

    sampled     {"            the grammar: now comes  name": "  and nothing else
    appended    name          `": "` is held back: the model may want a longer token there
    next step   [{"] [name]   two tokens to catch up with, one pass, and its last row chooses the next token

A request that jumps has tokens that exist and are not computed, as a prompt has. The scheduler lets a request catch up,
whatever it is behind with, so budget, chunks, blocks, prefix hashes and preemption need no word about jumps. Upstream
has none at v0.22.1, and says where it would fit: upstream/vllm/v1/core/sched/scheduler.py:339 — "jump decoding".

Two seams decide which tokens are written (lab 12-04). On the right the last one is held back, since it may be the
beginning of the model's own token; only where nothing but the end can follow is all of it certain, and the end too. On
the left stands a token that was sampled and has been told to the caller. It is never taken back: where the text as a
whole would be written in another token there, nothing is jumped, and the mask leads on, token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mini_vllm.sampling_params import SamplingParams
from mini_vllm.structured_output.backend_mini import MiniGrammar
from mini_vllm.structured_output.backend_types import TokenVocabulary

if TYPE_CHECKING:
    from mini_vllm.request import Request

WINDOW = 16
"""Tokens before the seam that are written anew together with the forced text. A token further left decides nothing."""


class JumpForward:
    """What is forced behind a request, in tokens.

    Args:
        vocabulary: the bytes of the tokens.
        tokenizer: writes text in the tokens that the model was trained on.

    Attributes:
        num_jumps, num_jumped_tokens: since the engine was made; the end of sequence counts as a token.
    """

    def __init__(self, vocabulary: TokenVocabulary, tokenizer: Any) -> None:
        self.vocabulary, self.tokenizer = vocabulary, tokenizer
        self.num_jumps = self.num_jumped_tokens = 0

    def encode(self, data: bytes) -> list[int]:
        """The canonical tokens of a text; a character that is cut off at its end is left out."""
        return self.tokenizer.encode(data.decode("utf-8", errors="ignore"), add_special_tokens=False)

    def bytes_of(self, token_ids: Sequence[int]) -> bytes:
        """What tokens say; nothing for those that are no text."""
        tokens = self.vocabulary.tokens
        return b"".join(tokens[each] for each in token_ids if each < len(tokens))

    def advance(self, request: Request, grammar: MiniGrammar) -> list[int]:
        """Tokens to append to a request whose grammar stands behind its last one; the grammar goes on by them."""
        if not may_jump(request.sampling_params):
            return []
        text = self.forced_text(grammar)
        token_ids = self.write(text, request.output_token_ids, grammar) if text else []
        if not grammar.accept_tokens(request.request_id, token_ids):
            return []
        token_ids = token_ids + self._end(request, grammar, len(token_ids))
        self.num_jumps += bool(token_ids)
        self.num_jumped_tokens += len(token_ids)
        return token_ids

    def forced_text(self, grammar: MiniGrammar) -> bytes:
        """What can come next, and nothing else, up to the first choice."""
        return grammar.forced_bytes()

    def write(self, text: bytes, ids: Sequence[int], grammar: MiniGrammar) -> list[int]:
        """Forced text as tokens that are sure to be the model's own; perhaps none.

        Args:
            text: not empty.
            ids: the output so far; left as it is.
            grammar: stands between the two; left where it is.
        """
        before = ids[-WINDOW:]
        left = self.bytes_of(before)
        cut = next((at for at, byte in enumerate(left) if byte & 0xC0 != 0x80), len(left))  # no half a character
        token_ids, size, seam = self.encode(left[cut:] + text), cut, 0
        while seam < len(token_ids) and size < len(left):
            size += len(self.vocabulary.tokens[token_ids[seam]])
            seam += 1
        if size != len(left) or (before and (not seam or token_ids[seam - 1] != before[-1])):
            return []
        token_ids = token_ids[seam:]
        return token_ids if grammar.ends_after(text) else token_ids[:-1]

    def _end(self, request: Request, grammar: MiniGrammar, num_new: int) -> list[int]:
        """The end of sequence, where it is all that can come."""
        ends = self.vocabulary.stop_token_ids
        early = len(request.output_token_ids) + num_new < request.sampling_params.min_tokens
        if len(ends) != 1 or early or not grammar.ends_after(b"") or not grammar.accept_tokens("", ends):
            return []
        return list(ends)


def may_jump(params: SamplingParams) -> bool:
    """Whether tokens may be written for such a request without asking the model. It may not where log-probabilities
    are wanted, which nobody has computed, or where single tokens are forbidden."""
    return params.logprobs is None and not params.bad_words and params.allowed_token_ids is None
