"""Lab 16-03: from tokens to text that nobody has to take back.

A token is a row of bytes. Two things make it unsafe to show at once: its last character may not be whole, and its end
may be the beginning of a stop string. Each gets a buffer of its own, and one stands behind the other.
"""

from __future__ import annotations

from collections.abc import Sequence

ANSWER = """Yes: <b> marks bold text, and </b> ends it. A short list:
- one step of the engine gives one token to each request;
- a token is some bytes, a character is one to four of them.

Use both; see the guide.
User? No, the Assistant wrote this."""


def predicted_held() -> float:
    """Your prediction, made before you run anything. vLLM 0.22.1 has a simple rule for stop strings: as long as the
    answer goes on, the last `max(len(stop)) - 1` characters stay back. With the stop strings "\\nUser:" and "</s>"
    these are 5, at each step. `ANSWER` comes one character at a time. How many characters does `StopStrings` hold on
    average, over all of its steps, if it holds no more than its contract asks for?
    """
    return 0.13


def open_bytes(data: bytes) -> int:
    """How many bytes at the end of `data` are the beginning of a character of UTF-8 that further bytes can complete: 0
    to 3. Bytes that no character can begin with are not held, however many should follow the first by its pattern."""
    for length in (3, 2, 1):
        tail = data[-length:]
        try:
            tail.decode()
        except UnicodeDecodeError as error:
            if len(tail) == length and error.reason == "unexpected end of data" and error.start == 0:
                return length
    return 0


class StreamingDetokenizer:
    """Text from tokens, whole characters only.

    pieces: the bytes of each token, by id; None for one that is no text (an end, a role).

    All texts together, `flush` included, are `decode("utf-8", errors="replace")` of all bytes. Each comes as early as
    it is certain. Whether a character that is cut off at the very end becomes U+FFFD or nothing is yours to decide.
    """

    def __init__(self, pieces: Sequence[bytes | None]) -> None:
        self._pieces, self._held = pieces, b""

    def feed(self, token_id: int) -> str:
        """What this token makes certain, perhaps "".

        Raises:
            ValueError: "token 257 is outside of a vocabulary of 257"; negative ids are outside, too.
        """
        if not 0 <= token_id < len(self._pieces):
            raise ValueError(f"token {token_id} is outside of a vocabulary of {len(self._pieces)}")
        data = self._held + (self._pieces[token_id] or b"")
        keep = len(data) - open_bytes(data)
        self._held = data[keep:]
        return data[:keep].decode("utf-8", "replace")

    def flush(self) -> str:
        """No token comes any more: what is left. Nothing is held behind it."""
        held, self._held = self._held, b""
        return held.decode("utf-8", "replace")


class StopStrings:
    """Text up to the first stop string, in chunks.

    The stop string that counts is the one that is complete first; of two that are complete with the same character, the
    longer one. How the text was cut into chunks changes nothing. Each character comes as early as it is certain not to
    belong to a stop string; with `include`, where the stop string itself is part of the text, nothing waits.

    Raises:
        ValueError: "stop cannot contain an empty string."
    """

    stopped: str | None
    """The stop string that was found; None as long as there was none."""

    def __init__(self, stop: Sequence[str], include: bool = False) -> None:
        if not all(stop):
            raise ValueError("stop cannot contain an empty string.")
        self._stop, self._include, self.stopped = tuple(stop), include, None
        self._tail, self._given = "", 0  # what a stop string may begin in, and how much of it was given

    def feed(self, text: str) -> str:
        """What this text makes certain; "" behind a stop string."""
        if self.stopped is not None:
            return ""
        data, given = self._tail + text, self._given
        found = [(data.find(each) + len(each), -len(each), each) for each in self._stop if each in data]
        if found:
            end, length, self.stopped = min(found)
            self._tail = ""
            return data[given : end if self._include else end + length]
        keep = len(data) - max((_overlap(data, each) for each in self._stop), default=0)
        self._tail = data[keep:]
        end = len(data) if self._include else keep
        self._given = end - keep
        return data[given:end]

    def flush(self) -> str:
        """No text comes any more: what is left. Nothing is held behind it."""
        left, self._tail = self._tail[self._given :], ""
        return left


def _overlap(text: str, stop: str) -> int:
    """How much of the end of `text` may be the beginning of `stop`."""
    for length in range(min(len(stop), len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
