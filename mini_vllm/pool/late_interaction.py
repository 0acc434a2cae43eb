"""A document's score from token vectors: each token of the query takes its best match, and all are added.

Upstream twin: `vllm/v1/pool/late_interaction.py`. There a worker may keep the query's vectors so that documents' never
leave it; here both come to the front end, as by default upstream's `LLM.score`.
"""

from __future__ import annotations

from mini_vllm.utils.arrays import Array


def compute_maxsim_score(query: Array, document: Array) -> float:
    """[Lq, E] and [Ld, E] -> the sum over the query's tokens of their largest product with one of the document's.

    Raises:
        ValueError: they are not matrices of one width.

    Upstream: upstream/vllm/entrypoints/pooling/scoring/utils.py:59 — `compute_maxsim_score`.
    """
    if query.ndim != 2 or document.ndim != 2 or query.shape[1] != document.shape[1]:
        raise ValueError(f"query and document must be [rows, E] with one E, got {query.shape} and {document.shape}")
    return float((query @ document.T).max(axis=-1).sum())
