"""Pairs of texts -> prompts, and their results -> scores, in the three ways in which a model can score.

    bi-encoder        both texts embedded: the cosine
    late-interaction  a vector for every token of both: best matches, added
    cross-encoder     both texts in one prompt: what the classifier says

Upstream twin: `vllm/entrypoints/pooling/scoring/io_processor.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mini_vllm.pool.late_interaction import compute_maxsim_score
from mini_vllm.pool.outputs import PoolingRequestOutput, ScoringOutput, ScoringRequestOutput
from mini_vllm.pool.params import PoolingParams

SCORE_TYPE_MAP = {"embed": "bi-encoder", "classify": "cross-encoder", "token_embed": "late-interaction"}
"""Upstream: upstream/vllm/tasks.py:19 — `SCORE_TYPE_MAP`."""


@dataclass
class ScoringData:
    """Texts, or lists of token ids: n and n of them, or one and n."""

    data_1: list[Any]
    data_2: list[Any]


def validate_score_input(data_1: Any, data_2: Any) -> ScoringData:
    """One and one, one and many, or as many as many.

    Raises:
        ValueError: another relation, or nothing at all.

    Upstream: upstream/vllm/entrypoints/pooling/scoring/utils.py:94 — `_validate_score_input_lens`.
    """
    first, second = ([data] if isinstance(data, str | dict) else list(data) for data in (data_1, data_2))
    if len(first) > 1 and len(first) != len(second):
        raise ValueError("Input lengths must be either 1:1, 1:N or N:N")
    if not first:
        raise ValueError("At least one text element must be given")
    if not second:
        raise ValueError("At least one text_pair element must be given")
    for name, data in (("data_1", first), ("data_2", second)):
        for item in data:
            if not isinstance(item, str):
                raise ValueError(f"{name} must hold texts, got {type(item).__name__}")
    return ScoringData(first, second)


class ScoringIOProcessor:
    """Args:
        tokenizer: of the model. has_token_types: the model wants to know which text a token belongs to (BERT).

    Upstream: upstream/vllm/entrypoints/pooling/scoring/io_processor.py:38 — `ScoringIOProcessor`.
    """

    task = "embed"

    def __init__(self, tokenizer: Any, has_token_types: bool = False) -> None:
        self.tokenizer, self.has_token_types = tokenizer, has_token_types

    def pre_process(self, data: ScoringData, params: PoolingParams) -> tuple[list[Any], list[PoolingParams]]:
        """Prompts and what is wanted of each."""
        prompts = data.data_1 + data.data_2
        return prompts, [params] * len(prompts)

    def post_process(self, outputs: Sequence[PoolingRequestOutput], n_queries: int) -> list[PoolingRequestOutput]:
        """A score for each pair."""
        first, second = list(outputs[:n_queries]), outputs[n_queries:]
        first = first * len(second) if len(first) == 1 else first
        return [self._pair(a, b) for a, b in zip(first, second, strict=True)]

    def _pair(self, a: PoolingRequestOutput, b: PoolingRequestOutput) -> PoolingRequestOutput:
        pad = getattr(self.tokenizer, "pad_token_id", None)
        ids = [*a.prompt_token_ids, *([] if pad is None else [pad]), *b.prompt_token_ids]
        score = ScoringOutput(float(self.similarity(a.outputs.data, b.outputs.data)))
        cached = a.num_cached_tokens + b.num_cached_tokens
        return ScoringRequestOutput(f"{a.request_id}_{b.request_id}", score, ids, cached, True)

    def similarity(self, a: Any, b: Any) -> float:
        """Of the two results."""
        raise NotImplementedError


class BiEncoderIOProcessor(ScoringIOProcessor):
    """The cosine of two embeddings."""

    def similarity(self, a: Any, b: Any) -> float:
        return float(np.dot(a, b) / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-8))


class LateInteractionIOProcessor(ScoringIOProcessor):
    """MaxSim of two lists of token vectors."""

    task = "token_embed"

    def similarity(self, a: Any, b: Any) -> float:
        return compute_maxsim_score(a, b)


class CrossEncoderIOProcessor(ScoringIOProcessor):
    """Both texts in one prompt."""

    task = "classify"

    def pre_process(self, data: ScoringData, params: PoolingParams) -> tuple[list[Any], list[PoolingParams]]:
        first = data.data_1 * len(data.data_2) if len(data.data_1) == 1 else data.data_1
        prompts, wanted = [], []
        for a, b in zip(first, data.data_2, strict=True):
            ids, boundary = encode_pair(self.tokenizer, a, b)
            mine = params.clone()
            if boundary is not None and self.has_token_types:
                mine.extra_kwargs = {"compressed_token_type_ids": boundary}
            prompts.append({"prompt_token_ids": ids})
            wanted.append(mine)
        return prompts, wanted

    def post_process(self, outputs: Sequence[PoolingRequestOutput], n_queries: int) -> list[PoolingRequestOutput]:
        return [
            ScoringRequestOutput(
                each.request_id, ScoringOutput(float(np.ravel(each.outputs.data)[0])), each.prompt_token_ids,
                each.num_cached_tokens, True,
            )
            for each in outputs
        ]  # fmt: skip


def encode_pair(tokenizer: Any, first: str, second: str) -> tuple[list[int], int | None]:
    """Two texts as one prompt, and where the second begins.

    With a token that ends a text ([SEP]) it stands between them and at the end; without one, the texts are joined.
    Upstream: upstream/vllm/entrypoints/pooling/scoring/io_processor.py:515 — "if self.use_sep_token:".
    """
    framed, bare = list(tokenizer.encode(first)), list(tokenizer.encode(first, add_special_tokens=False))
    suffix = framed[len(framed) - framed[::-1].index(bare[-1]) :] if bare and bare[-1] in framed else framed[-1:]
    if not bare or framed[-len(bare) :] == bare:
        return list(tokenizer.encode(first + second)), None
    return [*framed, *tokenizer.encode(second, add_special_tokens=False), *suffix], len(framed)


PROCESSORS = {
    "bi-encoder": BiEncoderIOProcessor,
    "late-interaction": LateInteractionIOProcessor,
    "cross-encoder": CrossEncoderIOProcessor,
}
