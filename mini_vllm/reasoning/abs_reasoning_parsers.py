"""What every reasoning parser is. Upstream twin: `vllm/reasoning/abs_reasoning_parsers.py`.

Two parts of the engine ask: the server, which sends thoughts and answer in fields of their own, and the gate of the
grammars (`structured_output/`), which lets the model think freely and holds only the answer to its form.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, ClassVar

from mini_vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from mini_vllm.entrypoints.openai.engine.protocol import DeltaMessage
from mini_vllm.utils.parser_registry import ParserRegistry


class ReasoningParser:
    """One parser for each answer.

    Args:
        tokenizer: has `get_vocab()`.
        kwargs: `chat_template_kwargs`, what the request gave its template: some models think only where it says so.

    Attributes:
        thinking_enabled: False where the request switched thinking off for a model that obeys: then it has ended before
            the first token, whether or not the template says so in tokens. (Upstream's grammar waits for ever there.)

    Upstream: upstream/vllm/reasoning/abs_reasoning_parsers.py:26 — `ReasoningParser`.
    """

    thinking_enabled: bool = True

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        self.model_tokenizer = tokenizer

    @cached_property
    def vocab(self) -> dict[str, int]:
        """Token texts to ids."""
        return self.model_tokenizer.get_vocab()

    @property
    def reasoning_start_str(self) -> str | None:
        """The text that starts thinking, where there is one."""
        return None

    @property
    def reasoning_end_str(self) -> str | None:
        """The text that ends thinking, where there is one."""
        return None

    @abstractmethod
    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """True where these tokens, a prompt or an answer, leave the thinking behind them."""
        raise NotImplementedError

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        """True where the thinking ends in `delta_ids`, the last of `input_ids`."""
        return self.is_reasoning_end(input_ids)

    @abstractmethod
    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """The tokens behind the thinking."""
        raise NotImplementedError

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        """How many tokens are thoughts; 0 where the parser cannot tell."""
        return 0

    @abstractmethod
    def extract_reasoning(self, model_output: str, request: ChatCompletionRequest) -> tuple[str | None, str | None]:
        """(thoughts, answer) of a whole output."""
        raise NotImplementedError

    @abstractmethod
    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        """What this step adds to the thoughts, to the answer, or to both; None: nothing."""
        raise NotImplementedError

    def adjust_request(self, request: ChatCompletionRequest) -> ChatCompletionRequest:
        """Called before generation, for a model that needs other parameters."""
        return request


class ReasoningParserManager(ParserRegistry):
    """The registered ones (upstream/vllm/reasoning/abs_reasoning_parsers.py:189 — `ReasoningParserManager`)."""

    base, kind = ReasoningParser, "reasoning"
    parsers: ClassVar[dict[str, type]] = {}
    reasoning_parsers = parsers
    lazy_parsers: ClassVar[dict[str, tuple[str, str]]] = {}

    @classmethod
    def get_reasoning_parser(cls, name: str) -> type[ReasoningParser]:
        """The class called `name`. Raises KeyError."""
        return cls.lookup(name)

    @classmethod
    def import_reasoning_parser(cls, plugin_path: str) -> None:
        """Run a file that registers parsers. Raises ValueError."""
        cls.import_plugin(plugin_path)
