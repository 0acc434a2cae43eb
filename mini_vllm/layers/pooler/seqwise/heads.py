"""From a pooled row to an embedding, or to probabilities.

Upstream twin: `vllm/model_executor/layers/pooler/seqwise/heads.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mini_vllm.pool.params import PoolingParams
from mini_vllm.utils.arrays import Array

Fn = Callable[[Array], Array]


class EmbeddingPoolerHead:
    """Projector, then the first `dimensions` numbers, then length 1: in this order, so that what is returned has it.

    The same for one row [H] and for the rows of a prompt [L, H].
    Upstream: upstream/vllm/model_executor/layers/pooler/seqwise/heads.py:33 — `EmbeddingPoolerHead`.
    """

    tasks = frozenset({"embed", "token_embed"})

    def __init__(self, projector: Fn | None = None, activation: Fn | None = None) -> None:
        self.projector, self.activation = projector, activation

    def project(self, pooled: Array) -> Array:
        """[n, H] -> [n, E], for all requests at once."""
        return pooled if self.projector is None else self.projector(pooled)

    def finish(self, row: Array, params: PoolingParams) -> Array:
        """What this request wants of its row."""
        row = row[..., : params.dimensions]
        return self.activation(row) if self.activation is not None and params.use_activation else row

    def forward(self, pooled: Array, params: Sequence[PoolingParams]) -> list[Array]:
        """[n, H] and n times what is wanted -> n rows."""
        return [self.finish(row, its) for row, its in zip(self.project(pooled), params, strict=True)]


class ClassifierPoolerHead(EmbeddingPoolerHead):
    """Classifier, then `(logit - mean) / sigma`, then the activation.

    Upstream: upstream/vllm/model_executor/layers/pooler/seqwise/heads.py:102 — `ClassifierPoolerHead`.
    """

    tasks = frozenset({"classify", "token_classify"})

    def __init__(
        self,
        classifier: Fn | None = None,
        logit_mean: float | None = None,
        logit_sigma: float | None = None,
        activation: Fn | None = None,
    ) -> None:
        super().__init__(classifier, activation)
        self.logit_mean, self.logit_sigma = logit_mean, logit_sigma

    def finish(self, row: Array, params: PoolingParams) -> Array:
        """Calibrated logits, or what the activation makes of them."""
        row = row if self.logit_mean is None else row - self.logit_mean
        row = row if self.logit_sigma is None else row / self.logit_sigma
        return self.activation(row) if self.activation is not None and params.use_activation else row
