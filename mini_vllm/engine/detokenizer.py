"""Turning tokens into text while they arrive.

A character can take several tokens, and a stop string can begin in one token and end in another. So text is held back:
until its bytes are whole characters, and as many characters as could still become a stop string.

Upstream twin: upstream/vllm/v1/engine/detokenizer.py:68 — `BaseIncrementalDetokenizer`.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from mini_vllm.sampling_params import SamplingParams
from mini_vllm.tokenizers.detokenizer_utils import PRIMING_TOKENS, REPLACEMENT, WindowStream
from mini_vllm.tokenizers.protocol import Tokenizer


class ByteStream:
    """Decodes tokens that stand for bytes. Text leaves in whole characters only.

    As upstream's stream, it also waits while the text ends in U+FFFD: the next bytes may still repair it.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool, prompt_token_ids: Sequence[int]) -> None:
        self._id_to_bytes = tokenizer.id_to_bytes
        self._skipped = frozenset(tokenizer.all_special_ids) if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        for token_id in prompt_token_ids[-PRIMING_TOKENS:]:
            self.step(token_id)
        self._held = ""  # what belongs to the prompt is not output; an unfinished character is continued

    def step(self, token_id: int) -> str:
        """The text that this token completes; "" while a character is unfinished."""
        if token_id in self._skipped:
            return ""
        self._held += self._decoder.decode(self._id_to_bytes(token_id))
        if self._held.endswith(REPLACEMENT) or self._decoder.getstate()[0]:
            return ""
        text, self._held = self._held, ""
        return text

    def flush(self) -> str:
        """The rest, at the end: unfinished bytes become U+FFFD, as `decode` of all ids has it."""
        text = self._held + self._decoder.decode(b"", final=True)
        self._held = ""
        return text


class JoinedSpecialStream:
    """Around another stream: a special token that follows one stands without the space that the decoder puts there.

    Upstream: upstream/vllm/v1/engine/detokenizer.py:210 — `FastIncrementalDetokenizer.decode_next`.
    """

    def __init__(self, inner: ByteStream | WindowStream, tokenizer: Tokenizer) -> None:
        self._inner, self._tokenizer = inner, tokenizer
        self._special = frozenset(tokenizer.all_special_ids)
        self._after_special = False
        self.flush = inner.flush

    def step(self, token_id: int) -> str:
        """The text that this token completes."""
        text = self._inner.step(token_id)
        is_special = token_id in self._special
        if is_special and self._after_special:
            text = self._tokenizer.decode([token_id], skip_special_tokens=False)
        self._after_special = is_special
        return text


class IncrementalDetokenizer:
    """The text of one request, grown token by token, and its stop strings.

    Call `update` with the step's new tokens, then `get_next_output_text`. With `detokenize=False`, or without a
    tokenizer, it only keeps the ids.

    Two differences from upstream, both on purpose. A prompt that ends inside a character is continued: the first text
    is that character, while upstream's repeats the prompt's last tokens. And upstream leaves an unfinished character at
    the very end out; here the last `get_next_output_text(finished=True)` adds it as U+FFFD, so that the text equals
    `decode` of all ids.
    """

    def __init__(self, tokenizer: Tokenizer | None, params: SamplingParams, prompt_ids: Sequence[int] = ()) -> None:
        self.token_ids: list[int] = []
        self.output_text = ""
        self.stop = [params.stop] if isinstance(params.stop, str) else list(params.stop or [])
        self.min_tokens = params.min_tokens
        self.include_stop_str_in_output = params.include_stop_str_in_output
        self.stop_buffer_length = params.output_text_buffer_length
        self._last_output_text_offset = 0
        self._flushed = False
        self._stream: ByteStream | WindowStream | JoinedSpecialStream | None = None
        if tokenizer is not None and params.detokenize:
            kind = ByteStream if tokenizer.is_byte_level else WindowStream
            self._stream = kind(tokenizer, params.skip_special_tokens, prompt_ids)
            if not (params.skip_special_tokens or params.spaces_between_special_tokens):
                self._stream = JoinedSpecialStream(self._stream, tokenizer)

    @property
    def output_token_ids(self) -> list[int]:
        """All ids received so far, a stop token included."""
        return self.token_ids

    def update(self, new_token_ids: Sequence[int], stop_terminated: bool = False) -> str | None:
        """Add the step's tokens, as if they came one by one: what stands behind a stop string is dropped, so that
        `token_ids` ends with the token that completed it. Returns the stop string, or None.

        stop_terminated: the engine ended the request at EOS or a stop token; the last token is then kept out of the
        text unless `include_stop_str_in_output`. Stop strings count only beyond `min_tokens`.
        """
        if not new_token_ids or self._stream is None:
            self.token_ids.extend(new_token_ids)
            return None
        num_with_text = len(new_token_ids) - (stop_terminated and not self.include_stop_str_in_output)
        for token_id in new_token_ids[:num_with_text]:
            self.token_ids.append(token_id)
            self.output_text += (text := self._stream.step(token_id))
            if self.stop and len(self.token_ids) > self.min_tokens and (found := self._check_stop_strings(len(text))):
                return found
        self.token_ids.extend(new_token_ids[num_with_text:])
        return None

    def _check_stop_strings(self, new_char_count: int) -> str | None:
        found = check_stop_strings(self.output_text, new_char_count, self.stop, self.include_stop_str_in_output)
        if found is None:
            return None
        stop_string, end = found
        self.output_text = self.output_text[:end]
        self._flushed = True  # held-back bytes come after the stop string
        return stop_string

    def get_next_output_text(self, finished: bool, delta: bool) -> str:
        """All text so far, or with `delta` what is new since the last call.

        While not finished, the last characters are held back where they could begin a stop string that is to be left
        out (upstream/vllm/v1/engine/detokenizer.py:148).
        """
        if finished and self._stream is not None and not self._flushed:
            self.output_text += self._stream.flush()
            self._flushed = True
        end = len(self.output_text) - (0 if finished else self.stop_buffer_length)
        if not delta:
            return self.output_text[: max(end, 0)]
        start = self._last_output_text_offset
        if start >= end:
            return ""
        self._last_output_text_offset = end
        return self.output_text[start:end]


def check_stop_strings(
    output_text: str, new_char_count: int, stop: list[str], include_in_output: bool
) -> tuple[str, int] | None:
    """Look for stop strings that end within the last `new_char_count` characters.

    Returns (stop string, length to cut the text to), or None. The one that ends first in the text wins; of several
    that end at one character, the first in the order of `stop`. Upstream takes the first of the list wherever it stands
    (upstream/vllm/v1/engine/detokenizer.py:309 — `check_stop_strings`).
    """
    if not new_char_count or not stop:
        return None
    found, first_end = None, len(output_text) + 1
    for stop_string in stop:
        # Text that was searched before is not searched again.
        at = output_text.find(stop_string, max(0, len(output_text) - new_char_count - len(stop_string) + 1))
        if at != -1 and at + len(stop_string) < first_end:
            first_end = at + len(stop_string)
            found = stop_string, first_end if include_in_output else at
    return found
