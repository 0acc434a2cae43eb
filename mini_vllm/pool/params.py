"""What a request for a vector or a score asks for. Upstream twin: `vllm/pooling_params.py`.

A pooling request has no tokens to sample, so its parameters say at once what the rest of the engine asks of every
request's: one output, greedy, no log-probabilities.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mini_vllm.sampling_params import RequestOutputKind
from mini_vllm.utils.checks import is_int, require, shown

if TYPE_CHECKING:
    from mini_vllm.config.pooler import PoolerConfig

POOLING_TASKS = ("embed", "classify", "token_embed", "token_classify")
"""Upstream: upstream/vllm/tasks.py:8 — `PoolingTask`; "plugin" and "embed&token_classify" are not here."""

_VALID = {
    "embed": ("dimensions", "use_activation"),
    "classify": ("use_activation",),
    "token_embed": ("dimensions", "use_activation"),
    "token_classify": ("use_activation",),
}


@dataclass
class PoolingParams:
    """Args:
        use_activation: normalise an embedding, turn logits into probabilities; None: what the pooler does by default.
        dimensions: only so many first numbers of an embedding, for a model trained for it (Matryoshka).
        step_tag_id, returned_token_ids: of STEP pooling: rows at this token alone, these columns alone.
        task: one of `POOLING_TASKS`; the methods of `LLM` set it.
        skip_reading_prefix_cache: compute the whole prompt, whatever is cached; None: where the task needs all rows.
        late_interaction_params: None: no worker keeps a query; `LLM.score` compares the vectors of both sides.
        extra_kwargs: what the scoring entry points tell the worker.
        output_kind: `FINAL_ONLY`: there is one output.

    Raises ValueError, TypeError naming the argument, its value and what is allowed.
    Upstream: upstream/vllm/pooling_params.py:37 — `PoolingParams`.
    """

    use_activation: bool | None = None
    dimensions: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None
    task: str | None = None
    requires_token_ids: bool = False
    skip_reading_prefix_cache: bool | None = None
    late_interaction_params: None = None
    extra_kwargs: dict[str, Any] | None = None
    output_kind: RequestOutputKind = RequestOutputKind.FINAL_ONLY

    n: ClassVar[int] = 1
    max_tokens: ClassVar[int] = 1
    min_tokens: ClassVar[int] = 0
    is_greedy: ClassVar[bool] = True
    detokenize: ClassVar[bool] = False
    seed: ClassVar[None] = None
    structured_outputs: ClassVar[None] = None
    prompt_logprobs: ClassVar[None] = None
    num_logprobs: ClassVar[None] = None

    def __post_init__(self) -> None:
        if self.output_kind is not RequestOutputKind.FINAL_ONLY:
            raise ValueError(f"For pooling output_kind has to be FINAL_ONLY, got {self.output_kind!r}")
        for name in ("use_activation", "skip_reading_prefix_cache"):
            value = getattr(self, name)
            require(value is None or isinstance(value, bool), name, value, "True, False or None")
        late = self.late_interaction_params
        require(late is None, "late_interaction_params", late, "None: `LLM.score` compares the vectors of both sides")
        if self.dimensions is not None:
            require(is_int(self.dimensions), "dimensions", self.dimensions, "a whole number or None")
        if self.step_tag_id is not None:
            require(is_int(self.step_tag_id), "step_tag_id", self.step_tag_id, "a token id or None")
        ids = self.returned_token_ids
        ok = ids is None or (isinstance(ids, list) and all(is_int(i) for i in ids))
        require(ok, "returned_token_ids", ids, "a list of whole numbers or None")
        require(self.task is None or self.task in POOLING_TASKS, "task", self.task, f"one of {POOLING_TASKS}")

    def clone(self) -> PoolingParams:
        """A deep copy."""
        return deepcopy(self)

    def verify(self, config: PoolerConfig, model_name: str = "the model") -> None:
        """Fill in the model's defaults, and refuse what the task does not know.

        Upstream: upstream/vllm/pooling_params.py:89 — `PoolingParams.verify`.
        """
        if self.task is None:
            raise ValueError("task must be set before verifying parameters")
        valid = _VALID[self.task]
        for name in valid:
            if getattr(self, name) is None:
                setattr(self, name, getattr(config, name))
        if self.skip_reading_prefix_cache is None:
            self.skip_reading_prefix_cache = config.needs_all_rows(self.task)
        self._verify_step_pooling(config, valid)
        if self.use_activation is None:
            self.use_activation = True
        if self.task in ("embed", "token_embed") and self.dimensions is not None:
            self._verify_dimensions(config, model_name)
        wrong = [name for name in ("dimensions", "use_activation") if name not in valid and getattr(self, name)]
        if wrong:
            raise ValueError(
                f"Task {self.task!r} only supports {list(valid)} parameters, does not support {wrong} parameters"
            )

    def _verify_step_pooling(self, config: PoolerConfig, valid: tuple[str, ...]) -> None:
        names = ("step_tag_id", "returned_token_ids")
        if config.tok_pooling_type == "STEP":
            for name in names:
                if getattr(self, name) is None:
                    setattr(self, name, getattr(config, name))
            return
        wrong = [name for name in names if getattr(self, name) is not None]
        if wrong:
            raise ValueError(
                f"Task {self.task} only supports {list(valid)} parameters, does not support {wrong} parameters"
            )

    def _verify_dimensions(self, config: PoolerConfig, model_name: str) -> None:
        assert self.dimensions is not None
        if not config.is_matryoshka:
            raise ValueError(
                f'Model "{model_name}" does not support matryoshka representation, changing output dimensions will '
                "lead to poor results."
            )
        allowed = config.matryoshka_dimensions
        if allowed is not None and self.dimensions not in allowed:
            raise ValueError(
                f"Model {model_name!r} only supports {allowed} matryoshka dimensions, use other output dimensions "
                "will lead to poor results."
            )
        if self.dimensions < 1:
            raise ValueError(f"Dimensions must be greater than 0, got {shown(self.dimensions)}")
