"""One pooler for each task. Upstream twin: `vllm/model_executor/layers/pooler/special.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby

from mini_vllm.config.pooler import PoolerConfig
from mini_vllm.layers.pooler.abstract import Pooler
from mini_vllm.layers.pooler.activations import normalize
from mini_vllm.layers.pooler.seqwise.heads import ClassifierPoolerHead, EmbeddingPoolerHead
from mini_vllm.layers.pooler.seqwise.methods import SequencePoolingMethod, get_seq_pooling_method
from mini_vllm.layers.pooler.seqwise.poolers import SequencePooler
from mini_vllm.layers.pooler.tokwise.methods import AllPool, get_tok_pooling_method
from mini_vllm.layers.pooler.tokwise.poolers import TokenPooler
from mini_vllm.pool.metadata import PoolingMetadata
from mini_vllm.utils.arrays import Array

Fn = Callable[[Array], Array]


class DispatchPooler(Pooler):
    """Hands runs of requests with one task to that task's pooler.

    Upstream: upstream/vllm/model_executor/layers/pooler/special.py:25 — `DispatchPooler`.
    """

    def __init__(self, poolers_by_task: Mapping[str, Pooler]) -> None:
        self.poolers_by_task = dict(poolers_by_task)

    @classmethod
    def for_embedding(cls, config: PoolerConfig, projector: Fn | None = None) -> DispatchPooler:
        """Embeddings of prompts and of tokens.

        Upstream: upstream/vllm/model_executor/layers/pooler/special.py:29 — `DispatchPooler.for_embedding`.
        """
        head = EmbeddingPoolerHead(projector, normalize)
        seq, tok = config.seq_pooling_type or "LAST", config.tok_pooling_type or "ALL"
        return cls({
            "embed": SequencePooler(get_seq_pooling_method(seq), head),
            "token_embed": TokenPooler(get_tok_pooling_method(tok), head),
        })  # fmt: skip

    @classmethod
    def for_seq_cls(
        cls, config: PoolerConfig, *, classifier: Fn, act_fn: Fn, pooling: SequencePoolingMethod | None = None,
        token_classifier: Fn | None = None,
    ) -> DispatchPooler:  # fmt: skip
        """Probabilities of prompts and of tokens.

        Upstream: upstream/vllm/model_executor/layers/pooler/special.py:38 — `DispatchPooler.for_seq_cls`.
        """
        settings = config.logit_mean, config.logit_sigma, act_fn
        method = pooling or get_seq_pooling_method(config.seq_pooling_type or "LAST")
        return cls({
            "classify": SequencePooler(method, ClassifierPoolerHead(classifier, *settings)),
            "token_classify": TokenPooler(AllPool(), ClassifierPoolerHead(token_classifier or classifier, *settings)),
        })  # fmt: skip

    def get_supported_tasks(self) -> set[str]:
        return set(self.poolers_by_task)

    def forward(self, hidden_states: Array, pooling_metadata: PoolingMetadata) -> list[Array | None]:
        outputs: list[Array | None] = []
        first = first_token = 0
        for task, run in groupby(pooling_metadata.tasks):
            pooler = self.poolers_by_task.get(task)
            if pooler is None:
                raise ValueError(f"Unsupported task: {task!r} Supported tasks: {sorted(self.get_supported_tasks())}")
            last = first + len(list(run))
            mine = pooling_metadata[first:last]
            cursor = mine.get_pooling_cursor()
            num_tokens = int(cursor.num_scheduled_tokens.sum())
            mine.pooling_cursor = replace(
                cursor,
                first_token_indices=cursor.first_token_indices - first_token,
                last_token_indices=cursor.last_token_indices - first_token,
            )
            outputs += pooler(hidden_states[first_token : first_token + num_tokens], mine)
            first, first_token = last, first_token + num_tokens
        return outputs
