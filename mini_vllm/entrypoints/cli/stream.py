"""Running one request token by token, for commands that show text while it is made."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console

from mini_vllm.sampling_params import RequestOutputKind


@dataclass
class Answer:
    """What a streamed request gave. Times in seconds."""

    text: str = ""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_tokens: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    ttft: float = 0.0
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Decode speed: the tokens after the first, over the time after the first."""
        seconds = self.seconds - self.ttft
        return (self.num_tokens - 1) / seconds if seconds > 0 and self.num_tokens > 1 else 0.0

    def summary(self) -> str:
        """One line about the request."""
        speed = f", {self.tokens_per_second:.0f} tokens/s" if self.tokens_per_second else ""
        cached = f" ({self.num_cached_tokens} cached)" if self.num_cached_tokens else ""
        prompt = f"{self.num_prompt_tokens} prompt tokens{cached}"
        first = f"first after {self.ttft * 1000:.0f} ms"
        return f"{prompt} → {self.num_tokens} tokens, {first}{speed}, finished: {self.finish_reason}"


class StreamWriter:
    """Prints pieces of text as they come. On a terminal a line breaks before a word that does not fit, for which a
    word waits until it is complete; elsewhere every piece goes out as it is."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._width = console.width if console.is_terminal else 0
        self._column = 0
        self._word = ""

    def write(self, text: str) -> None:
        """Print what is complete."""
        if not self._width:
            self.console.out(text, end="")
            return
        *complete, self._word = re.split(r"(\s)", self._word + text)
        for part in complete:
            self._put(part)

    def _put(self, part: str) -> None:
        if part == "\n":
            self._column = 0
        elif self._column + cell_len(part) > self._width and self._column:
            part = "\n" if part.isspace() else "\n" + part
            self._column = cell_len(part.lstrip("\n"))
        else:
            self._column += cell_len(part)
        self.console.out(part, end="")

    def close(self) -> None:
        """Print the last word, and end the line."""
        self._put(self._word)
        self._word = ""
        self.console.out("")


def stream_answer(
    engine: Any, prompt: Any, params: Any, write: Callable[[str], None], request_id: str, lora_request: Any = None
) -> Answer:
    """Run one request to its end and hand each new piece of text to `write`.

    Ctrl-C ends the request between two steps (finish reason "abort"), and the engine stays usable; a second Ctrl-C
    during the same step interrupts it. Raises ValueError for a prompt that the engine refuses.
    """
    answer = Answer()
    start = time.perf_counter()
    engine.add_request(request_id, prompt, params, output_kind=RequestOutputKind.DELTA, lora_request=lora_request)
    with _catch_interrupt() as interrupted:
        while engine.has_unfinished_requests():
            outputs = engine.step()
            if interrupted():
                outputs += engine.abort_request(request_id)
            for output in outputs:
                _take(answer, output, start, write)
    answer.seconds = time.perf_counter() - start
    return answer


def _take(answer: Answer, output: Any, start: float, write: Callable[[str], None]) -> None:
    completion = output.outputs[0]
    if completion.token_ids and not answer.num_tokens:
        answer.ttft = time.perf_counter() - start
    answer.num_prompt_tokens = len(output.prompt_token_ids)
    answer.num_cached_tokens = output.num_cached_tokens or 0
    answer.num_tokens += len(completion.token_ids)
    answer.text += completion.text
    answer.finish_reason, answer.stop_reason = completion.finish_reason, completion.stop_reason
    if completion.text:
        write(completion.text)


@contextmanager
def _catch_interrupt() -> Iterator[Callable[[], bool]]:
    """Remember Ctrl-C instead of raising it in the middle of a step; the second one raises."""
    seen: list[int] = []

    def remember(number: int, frame: Any) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    try:
        before = signal.signal(signal.SIGINT, remember)
    except ValueError:  # not in the main thread: Python delivers no signals here
        yield lambda: False
        return
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)
