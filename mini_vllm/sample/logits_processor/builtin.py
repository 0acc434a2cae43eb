"""The processors that every engine has: min tokens, logit bias, min-p. And two changes that are not processors.

Functions here and in `sample/ops/` (bad words, penalties, top-k and top-p) take `logits[R, V]` (R rows, one a request;
V the vocabulary), change it in place, and touch only the rows that asked for it.
Upstream twin: `vllm/v1/sample/logits_processor/builtin.py`.

"Argmax-invariant" is upstream's word for a change that never alters which logit is largest (min-p, top-k, top-p,
temperature); greedy rows skip those. Masks, bias and penalties are not, and come first, for greedy rows too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from mini_vllm.sample.logits_processor.interface import BatchUpdate, LogitsProcessor, MoveDirectionality
from mini_vllm.sample.ops.logprobs import NEG_INF, softmax
from mini_vllm.sampling_params import SamplingParams

T = TypeVar("T")


class MinPLogitsProcessor(LogitsProcessor):
    """Masks tokens less likely than `min_p` times the likeliest.

    Attributes:
        min_p: float32[R], 0 = off; None where no row uses it.

    Upstream: upstream/vllm/v1/sample/logits_processor/builtin.py:22 — `MinPLogitsProcessor`.
    """

    def __init__(self, vllm_config: Any = None, device: Any = "cpu", is_pin_memory: bool = False) -> None:
        self.rows: dict[int, float] = {}
        self.min_p: np.ndarray | None = None
        self._batch_size = 0

    def is_argmax_invariant(self) -> bool:
        """True: the likeliest token always stays."""
        return True

    def has_work(self) -> bool:
        """True while a row uses it."""
        return self.min_p is not None

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """See `LogitsProcessor`."""
        changed = process_dict_updates(self.rows, batch_update, lambda params, _, __: params.min_p or None)
        if batch_update is None or not (changed or batch_update.batch_size != self._batch_size):
            return
        self._batch_size, self.min_p = batch_update.batch_size, None
        if self.rows:
            self.min_p = np.zeros(batch_update.batch_size, dtype=np.float32)
            self.min_p[list(self.rows)] = list(self.rows.values())

    def apply(self, logits: np.ndarray) -> np.ndarray:
        """See `LogitsProcessor`."""
        if self.min_p is not None:
            apply_min_p(logits, self.min_p)
        return logits


class LogitBiasLogitsProcessor(LogitsProcessor):
    """Adds a number to chosen logits, for all rows at once.

    Upstream: upstream/vllm/v1/sample/logits_processor/builtin.py:118 — `LogitBiasLogitsProcessor`.
    """

    def __init__(self, vllm_config: Any = None, device: Any = "cpu", is_pin_memory: bool = False) -> None:
        self.biases: dict[int, dict[int, float]] = {}
        self._rows, self._tokens = _flat({})
        self._bias = np.empty(0, dtype=np.float32)

    def is_argmax_invariant(self) -> bool:
        """False: that is what it is for."""
        return False

    def has_work(self) -> bool:
        """True while a row uses it."""
        return bool(self.biases)

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """See `LogitsProcessor`."""
        if process_dict_updates(self.biases, batch_update, lambda params, _, __: params.logit_bias or None):
            self._rows, self._tokens = _flat(self.biases)
            self._bias = np.array([b for bias in self.biases.values() for b in bias.values()], dtype=np.float32)

    def apply(self, logits: np.ndarray) -> np.ndarray:
        """See `LogitsProcessor`."""
        if self.biases:
            logits[self._rows, self._tokens] += self._bias
        return logits


class MinTokensLogitsProcessor(LogitsProcessor):
    """Masks EOS and stop ids of rows that have not produced `min_tokens` yet, for all rows at once.

    Attributes:
        min_toks: row -> (minimum, the output, the ids that are masked).

    Upstream: upstream/vllm/v1/sample/logits_processor/builtin.py:167 — `MinTokensLogitsProcessor`.
    """

    def __init__(self, vllm_config: Any = None, device: Any = "cpu", is_pin_memory: bool = False) -> None:
        self.min_toks: dict[int, tuple[int, Sequence[int], set[int]]] = {}
        self._rows, self._tokens = _flat({})

    def is_argmax_invariant(self) -> bool:
        """False: the end of sequence may be the likeliest token."""
        return False

    def has_work(self) -> bool:
        """True while a row uses it."""
        return bool(self.min_toks)

    @staticmethod
    def add_request(
        params: SamplingParams, prompt_token_ids: list[int] | None, output_token_ids: list[int]
    ) -> tuple[int, Sequence[int], set[int]] | None:
        """What to remember of a request; None where nothing is to be masked."""
        if len(output_token_ids) >= params.min_tokens:
            return None
        return params.min_tokens, output_token_ids, params.all_stop_token_ids

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """See `LogitsProcessor`. A row is forgotten as soon as it has its minimum."""
        self._forget_done(process_dict_updates(self.min_toks, batch_update, self.add_request))

    def _forget_done(self, changed: bool) -> None:
        done = [row for row, (minimum, output, _) in self.min_toks.items() if len(output) >= minimum]
        for row in done:
            del self.min_toks[row]
        if done or changed:
            self._rows, self._tokens = _flat({row: sorted(ids) for row, (_, _, ids) in self.min_toks.items()})

    def apply(self, logits: np.ndarray) -> np.ndarray:
        """See `LogitsProcessor`. Looks at the outputs again: they are live, whoever calls."""
        self._forget_done(False)
        if self.min_toks:
            # A stop id may lie outside the vocabulary: it never comes.
            inside = self._tokens < logits.shape[1]
            logits[self._rows[inside], self._tokens[inside]] = NEG_INF
        return logits


def _flat(entries: Mapping[int, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Row -> ids, as two arrays of one length."""
    sizes = [len(ids) for ids in entries.values()]
    rows = np.repeat(np.fromiter(entries, dtype=np.int64, count=len(entries)), sizes)
    return rows, np.fromiter((t for ids in entries.values() for t in ids), dtype=np.int64, count=sum(sizes))


def process_dict_updates(
    req_entries: dict[int, T],
    batch_update: BatchUpdate | None,
    new_state: Callable[[SamplingParams, list[int] | None, list[int]], T | None],
) -> bool:
    """Keep `req_entries`, row -> state, in step with the batch; True where it changed.

    new_state: (parameters, prompt, output) -> the state of a new request; None: the processor has nothing to do for it.
    Upstream: upstream/vllm/v1/sample/logits_processor/builtin.py:294 — `process_dict_updates`.
    """
    if batch_update is None:
        return False
    changed = False
    for row in batch_update.removed:
        changed |= req_entries.pop(row, None) is not None
    for row, params, prompt_token_ids, output_token_ids in batch_update.added:
        changed |= req_entries.pop(row, None) is not None
        state = new_state(params, prompt_token_ids, output_token_ids)
        if state is not None:
            req_entries[row], changed = state, True
    for source, target, direction in batch_update.moved:
        moving, displaced = req_entries.pop(source, None), req_entries.pop(target, None)
        changed |= moving is not None or displaced is not None
        if moving is not None:
            req_entries[target] = moving
        if displaced is not None and direction is MoveDirectionality.SWAP:
            req_entries[source] = displaced
    return changed


def apply_allowed_token_ids(logits: np.ndarray, allowed: Mapping[int, np.ndarray]) -> None:
    """Mask all ids but the allowed ones. allowed: row -> int64 ids. Twin: `allowed_token_ids_mask` of upstream."""
    for row, ids in allowed.items():
        kept = logits[row, ids]
        logits[row] = NEG_INF
        logits[row, ids] = kept


def apply_min_p(logits: np.ndarray, min_p: np.ndarray) -> None:
    """Mask tokens less likely than `min_p` times the likeliest. min_p: [R], 0 = off."""
    rows = np.flatnonzero(min_p > 0)
    if rows.size == 0:
        return
    probs = softmax(logits[rows])
    threshold = probs.max(axis=-1, keepdims=True) * min_p[rows, None].astype(probs.dtype)
    logits[rows] = np.where(probs < threshold, NEG_INF, logits[rows])
