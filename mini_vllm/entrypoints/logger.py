"""What is logged of requests, where that is asked for. Upstream twin: `vllm/entrypoints/logger.py`.

Prompts appear at debug level alone: a log at its usual level holds nobody's words.
"""

from __future__ import annotations

from collections.abc import Sequence

from mini_vllm.logger import init_logger
from mini_vllm.sampling_params import BeamSearchParams, SamplingParams

logger = init_logger(__name__)


class RequestLogger:
    """Args: max_log_len: characters of a prompt, and ids of it, that are logged; None: all.

    Upstream: upstream/vllm/entrypoints/logger.py:17 — `RequestLogger`.
    """

    def __init__(self, *, max_log_len: int | None = None) -> None:
        self.max_log_len = max_log_len

    def log_inputs(
        self,
        request_id: str,
        prompt: str | None,
        prompt_token_ids: Sequence[int] | None,
        params: SamplingParams | BeamSearchParams | None,
    ) -> None:
        """A request has come."""
        text = None if prompt is None else prompt[: self.max_log_len]
        ids = None if prompt_token_ids is None else list(prompt_token_ids)[: self.max_log_len]
        logger.debug("Request %s details: prompt: %r, prompt_token_ids: %s.", request_id, text, ids)
        logger.info("Received request %s: params: %s.", request_id, params)

    def log_outputs(
        self,
        request_id: str,
        outputs: str,
        output_token_ids: Sequence[int] | None,
        finish_reason: str | None = None,
        is_streaming: bool = False,
        delta: bool = False,
    ) -> None:
        """An answer, or a piece of one, goes out."""
        ids = None if output_token_ids is None else list(output_token_ids)[: self.max_log_len]
        kind = f" (streaming {'delta' if delta else 'complete'})" if is_streaming else ""
        text = outputs[: self.max_log_len]
        logger.info("Generated response %s%s: output: %r, output_token_ids: %s, finish_reason: %s", request_id, kind,
                    text, ids, finish_reason)  # fmt: skip
