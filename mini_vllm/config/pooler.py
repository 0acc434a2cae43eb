"""How hidden states become one vector, a score, or a vector a token. Upstream twin: `vllm/config/pooler.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_vllm.config.utils import flag, one_of, whole_number
from mini_vllm.pool.params import POOLING_TASKS
from mini_vllm.utils.checks import check_list, is_int, is_real, require, shown

if TYPE_CHECKING:
    from mini_vllm.transformers_utils.sentence_transformers import Module

SEQ_POOLING_TYPES = ("CLS", "LAST", "MEAN")
TOK_POOLING_TYPES = ("ALL", "STEP")
ATTN_TYPES = ("decoder", "encoder_only")
_OF_MODEL = ("attn_type", "is_matryoshka", "matryoshka_dimensions", "width", "projector")
"""What the checkpoint and the model's class say, whatever a user asks for."""


@dataclass
class PoolerConfig:
    """Args:
        task: that of a request that names none; None: the first that the model's pooler has.
        pooling_type: either of the next two.
        seq_pooling_type: "CLS", "LAST" or "MEAN": one vector for a prompt. tok_pooling_type: "ALL" or "STEP".
        use_activation, dimensions, step_tag_id, returned_token_ids: defaults for requests, see `PoolingParams`.
        logit_mean, logit_sigma: of a classifier: activation((logit - mean) / sigma).
        is_matryoshka, matryoshka_dimensions: whether an embedding may be cut, and where; from the checkpoint.
        attn_type: "decoder" or "encoder_only"; from the model.
        width, projector: numbers in a pooled row, and what a sentence-transformers checkpoint does with it.

    None means: as the checkpoint says, else as the model's class does.
    Upstream: upstream/vllm/config/pooler.py:21 — `PoolerConfig`; pieces of a long text are not joined here.
    """

    task: str | None = None
    pooling_type: str | None = None
    seq_pooling_type: str | None = None
    tok_pooling_type: str | None = None
    use_activation: bool | None = None
    dimensions: int | None = None
    logit_mean: float | None = None
    logit_sigma: float | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None
    is_matryoshka: bool = False
    matryoshka_dimensions: list[int] | None = None
    attn_type: str = "decoder"
    width: int | None = None
    projector: tuple[Module, ...] = ()

    def __post_init__(self) -> None:
        if self.pooling_type is not None:
            for name in ("seq_pooling_type", "tok_pooling_type"):
                if getattr(self, name) is not None:
                    raise ValueError(f"Cannot set both `pooling_type` and `{name}`")
            one_of("pooling_type", self.pooling_type, SEQ_POOLING_TYPES + TOK_POOLING_TYPES)
            is_seq = self.pooling_type in SEQ_POOLING_TYPES
            setattr(self, "seq_pooling_type" if is_seq else "tok_pooling_type", self.pooling_type)
            self.pooling_type = None
        if self.seq_pooling_type is not None:
            one_of("seq_pooling_type", self.seq_pooling_type, SEQ_POOLING_TYPES)
        if self.tok_pooling_type is not None:
            one_of("tok_pooling_type", self.tok_pooling_type, TOK_POOLING_TYPES)
        if self.task is not None:
            one_of("task", self.task, POOLING_TASKS)
        if self.use_activation is not None:
            flag("use_activation", self.use_activation)
        for name, least in (("dimensions", 1), ("step_tag_id", 0), ("width", 1)):
            if getattr(self, name) is not None:
                whole_number(name, getattr(self, name), least)
        for name in ("logit_mean", "logit_sigma"):
            value = getattr(self, name)
            require(value is None or (is_real(value) and math.isfinite(value)), name, value, "a finite number or None")
        if self.logit_sigma == 0:
            raise ValueError("logit_sigma cannot be 0 (division by zero)")
        flag("is_matryoshka", self.is_matryoshka)
        one_of("attn_type", self.attn_type, ATTN_TYPES)
        for name, least in (("returned_token_ids", 0), ("matryoshka_dimensions", 1)):
            value, allowed = getattr(self, name), f"a list of whole numbers of at least {least}, or None"
            check_list(name, value, int, allowed)
            require(value is None or all(each >= least for each in value), name, value, allowed)

    def check_model(self, tasks: tuple[str, ...], vocab_size: int) -> None:
        """Raises ValueError where the model has no such task, or no such token, as a user asks for."""
        require(self.task in (None, *tasks), "pooler_config: task", self.task, f"one of {tasks} for this model")
        for name in ("step_tag_id", "returned_token_ids"):
            value = getattr(self, name)
            ids = () if value is None else (value,) if is_int(value) else value
            inside = all(each < vocab_size for each in ids)
            require(inside, f"pooler_config: {name}", value, f"inside the vocabulary (0 to {vocab_size - 1})")

    @classmethod
    def of(cls, value: Any) -> PoolerConfig | None:
        """A `PoolerConfig`, a dict of its arguments, or None.

        Raises:
            ValueError: names what is wrong.
        """
        if value is None or isinstance(value, PoolerConfig):
            return value
        known = {each.name for each in fields(cls)} - set(_OF_MODEL)
        if not isinstance(value, dict) or set(value) - known:
            raise ValueError(f"pooler_config must be a PoolerConfig or a dict of {sorted(known)}, got {shown(value)}")
        try:
            return cls(**value)
        except ValueError as error:
            raise ValueError(f"pooler_config: {error}") from None

    def filled(self, **defaults: Any) -> PoolerConfig:
        """A copy in which what is None takes these values."""
        return replace(self, **{key: value for key, value in defaults.items() if getattr(self, key) in (None, ())})

    def check_widths(self, hidden_size: int) -> None:
        """Raises ValueError where the modules after the model do not fit it, or each other."""
        if self.width not in (None, hidden_size):
            raise ValueError(f"1_Pooling: embedding_dimension must be hidden_size, {hidden_size}, got {self.width}")
        size = hidden_size
        for module in self.projector:
            if module.in_features not in (0, size):
                raise ValueError(f"{module.folder}: it must take {size} numbers, got {module.in_features}")
            size = module.out_features or size

    def needs_all_rows(self, task: str) -> bool:
        """True where rows of the prompt that a cache holds would be missed.

        Ours also for the mean and the first token: upstream switches prefix caching off for the whole engine there.
        """
        return task.startswith("token_") or self.seq_pooling_type in ("MEAN", "CLS") or self.tok_pooling_type == "STEP"


def get_pooling_config(folder: str | Path | None) -> dict[str, Any]:
    """What a sentence-transformers checkpoint says of pooling; {} where the folder is none.

    Raises:
        ValueError: the files are damaged, or ask for what is not served.

    Upstream: upstream/vllm/transformers_utils/config.py:844 — `get_pooling_config`, which reads flags alone.
    """
    if folder is None or not (Path(folder) / "modules.json").is_file():
        return {}
    from mini_vllm.transformers_utils.sentence_transformers import read_modules

    modules = read_modules(folder)
    if modules.seq_pooling_type is None:
        return {}
    return {
        "use_activation": modules.normalize, "seq_pooling_type": modules.seq_pooling_type, "width": modules.width,
        "projector": modules.projector,
    }  # fmt: skip


def matryoshka_of(raw: dict[str, Any]) -> dict[str, Any]:
    """What `config.json` says of embeddings that may be cut.

    Upstream: upstream/vllm/config/model.py:1658 — `ModelConfig.is_matryoshka`.
    """
    sizes = raw.get("matryoshka_dimensions")
    if sizes is not None and not (isinstance(sizes, list) and all(is_int(i) and i > 0 for i in sizes)):
        raise ValueError(f"config.json: matryoshka_dimensions must be a list of sizes, got {shown(sizes)}")
    return {"is_matryoshka": bool(sizes or raw.get("is_matryoshka")), "matryoshka_dimensions": sizes}
