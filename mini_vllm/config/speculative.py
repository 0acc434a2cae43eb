"""Which drafts are made, how many, and by whom. Upstream twin: `vllm/config/speculative.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from mini_vllm.config.utils import flag, one_of, whole_number
from mini_vllm.spec_decode.utils import check_draft_sizes, method_of_checkpoint, read_draft_config
from mini_vllm.utils.checks import did_you_mean, shown

if TYPE_CHECKING:
    from mini_vllm.config.resolved_model import ResolvedModel
    from mini_vllm.transformers_utils.config import HFConfig
    from mini_vllm.transformers_utils.configs.medusa import MedusaConfig

METHODS = ("ngram", "draft_model", "eagle", "medusa", "custom_class")
MAX_SPEC_LEN = 128
"""Drafts of a request in a step, at most: upstream/vllm/v1/sample/rejection_sampler.py:34 — "MAX_SPEC_LEN = 128"."""
_REFUSED_METHODS = {
    "eagle3": "it reads hidden states of three layers, which our models do not hand out",
    "mtp": "no checkpoint that our models read has multi-token heads",
    "suffix": "vLLM takes it from the library arctic-inference",
    "dflash": "it needs attention that is not causal",
    "ngram_gpu": "on a CPU 'ngram' finds the same drafts",
    "extract_hidden_states": "it makes no drafts: it writes hidden states to disk",
    "mlp_speculator": "vLLM's own runner has no place for it either",
}
_NEEDS_MODEL = {
    "draft_model": "the folder or name of a checkpoint",
    "eagle": "the folder or name of a head that was trained on the target's hidden states",
    "medusa": "the folder or name of heads that were trained on the target's hidden states",
    "custom_class": "a path like 'my_module.MyProposer'",
}
_REFUSED_FIELDS = {
    "tensor_parallel_size": "pass 'draft_tensor_parallel_size' instead",
    "quantization": "the draft model is taken as its checkpoint stores it",
    "moe_backend": "drafts of a mixture of experts run as the target does",
    "attention_backend": "the drafter has the engine's `attention_backend`",
    "code_revision": "a checkpoint's own code is never run here",
    "parallel_drafting": "it needs a draft model trained for it",
    "disable_padded_drafter_batch": "nothing is padded here",
    "use_local_argmax_reduction": "every rank has all logits",
    "draft_load_config": "the draft model is loaded as the target is",
    "enforce_eager": "the drafter follows the engine's `enforce_eager`",
}  # fmt: skip


@dataclass
class SpeculativeConfig:
    """`LLM(speculative_config={"method": "ngram", "num_speculative_tokens": 4, …})`, under upstream's names.

    num_speculative_tokens: drafts for a request in a step, k. method: "ngram" copies what followed the same tokens
    before; "draft_model" asks a small model, the checkpoint `model`; "eagle" and "medusa" ask heads that read the
    target's hidden states; "custom_class" a class of one's own, `model` is its path ("package.module.Class"). Left out,
    it is what `model` looks like. prompt_lookup_min, prompt_lookup_max: of "ngram", how many tokens have to be the
    same; both 5 where none is given.
    draft_sample_method: "greedy", or "probabilistic": drafts are drawn at the request's temperature, and the draft
    model's probabilities are used to judge them. draft_tensor_parallel_size: the target's, if given.
    max_model_len: requests longer than that get no drafts from the draft model.
    rejection_sample_method: "standard", or "synthetic": drafts are accepted at given rates, whatever they are, and the
    text is worthless: to measure what an acceptance rate would bring. synthetic_acceptance_rates, for each position
    that all drafts up to it are accepted; or synthetic_acceptance_length, the mean number of tokens of a step.
    disable_when_slower (ours): the engine measures its steps, and makes no drafts for requests that lose by them: see
    `spec_decode/draft_switch.py`.

    Attributes:
        draft_model_config: what is known of the draft model or the heads, once `resolve_draft_model` has looked.

    Raises ValueError naming the key, its value and what is allowed.
    Upstream: upstream/vllm/config/speculative.py:74 — `SpeculativeConfig`.
    """

    num_speculative_tokens: int
    method: str | None = None
    model: str | None = None
    prompt_lookup_min: int | None = None
    prompt_lookup_max: int | None = None
    draft_sample_method: str = "greedy"
    draft_tensor_parallel_size: int | None = None
    max_model_len: int | None = None
    revision: str | None = None
    rejection_sample_method: str = "standard"
    synthetic_acceptance_rates: Sequence[float] | None = None
    synthetic_acceptance_length: float | None = None
    disable_when_slower: bool = False
    draft_model_config: ResolvedModel | HFConfig | MedusaConfig | None = None

    def __post_init__(self) -> None:
        k = whole_number("speculative_config: num_speculative_tokens", self.num_speculative_tokens, 1)
        if k > MAX_SPEC_LEN:
            raise ValueError(f"speculative_config: num_speculative_tokens must be at most {MAX_SPEC_LEN}, got {k}")
        self._find_method()
        if self.method == "ngram":
            self._check_prompt_lookup()
        elif self.prompt_lookup_min is not None or self.prompt_lookup_max is not None:
            raise ValueError(f"speculative_config: prompt_lookup_min and _max are of 'ngram', not of {self.method!r}")
        for name in ("draft_tensor_parallel_size", "max_model_len"):
            if getattr(self, name) is not None:
                whole_number(f"speculative_config: {name}", getattr(self, name), 1)
        one_of("speculative_config: draft_sample_method", self.draft_sample_method, ("greedy", "probabilistic"))
        one_of("speculative_config: rejection_sample_method", self.rejection_sample_method, ("standard", "synthetic"))
        flag("speculative_config: disable_when_slower", self.disable_when_slower)
        self._resolve_synthetic_acceptance_rates()

    def _find_method(self) -> None:
        """Upstream: upstream/vllm/config/speculative.py:526 — "Check if the model field contains a custom"."""
        method, model = self.method, self.model
        for name, value in (("method", method), ("model", model)):
            if value is not None and not isinstance(value, str):
                raise ValueError(f"speculative_config: {name} must be a string, got {shown(value)}")
        if method is None and model is None:
            raise ValueError(f"speculative_config: method must be one of {METHODS}, or model be given; neither is")
        if method is None:
            is_class = model is not None and "." in model and "/" not in model
            ngram = model in ("ngram", "[ngram]")
            method = "ngram" if ngram else "custom_class" if is_class else "draft_model"
        if method in ("draft_model", "medusa") and model:
            method = method_of_checkpoint(model) or method
        if method in _REFUSED_METHODS:
            raise ValueError(f"speculative_config: method {method!r} is not here: {_REFUSED_METHODS[method]}")
        method = one_of("speculative_config: method", "ngram" if method == "[ngram]" else method, METHODS)
        if method in _NEEDS_MODEL and not model:
            raise ValueError(f"speculative_config: method {method!r} needs model, {_NEEDS_MODEL[method]}")
        self.method = method

    def _check_prompt_lookup(self) -> None:
        """Upstream: upstream/vllm/config/speculative.py:586 — "Set default values if not provided"."""
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        if low is None and high is None:
            low = high = 5
        low, high = (high if low is None else low), (low if high is None else high)
        self.prompt_lookup_max = whole_number("speculative_config: prompt_lookup_max", high, 1)
        self.prompt_lookup_min = whole_number("speculative_config: prompt_lookup_min", low, 1)
        if self.prompt_lookup_min > self.prompt_lookup_max:
            raise ValueError(
                f"speculative_config: prompt_lookup_min={low} must be at most prompt_lookup_max={high}: the longest "
                "match is looked for first"
            )

    def _resolve_synthetic_acceptance_rates(self) -> None:
        """Upstream: upstream/vllm/config/speculative.py:222 — `_resolve_synthetic_acceptance_rates`."""
        rates, length, k = (
            self.synthetic_acceptance_rates,
            self.synthetic_acceptance_length,
            self.num_speculative_tokens,
        )
        if self.rejection_sample_method != "synthetic":
            if rates is not None or length is not None:
                raise ValueError("speculative_config: synthetic_acceptance_… needs rejection_sample_method='synthetic'")
            return
        if (rates is None) == (length is None):
            raise ValueError("speculative_config: give synthetic_acceptance_rates or synthetic_acceptance_length")
        if length is not None:
            if isinstance(length, bool) or not isinstance(length, int | float) or not 1 <= length <= k + 1:
                raise ValueError(
                    f"speculative_config: synthetic_acceptance_length must be from 1 to {k + 1}, got {shown(length)}"
                )
            whole = int(length - 1)
            rates = ([1.0] * whole + [length - 1 - whole] + [0.0] * k)[:k]
        assert rates is not None
        falling = all(0 <= b <= a <= 1 for a, b in zip([1.0, *rates], rates, strict=False))
        if len(rates) != k or not falling:
            raise ValueError(
                f"speculative_config: synthetic_acceptance_rates must be {k} numbers from 1 down to 0, got "
                f"{shown(rates)}"
            )
        self.synthetic_acceptance_rates, self.synthetic_acceptance_length = list(rates), None

    def uses_draft_model(self) -> bool:
        """Whether another model runs. Upstream: upstream/vllm/config/speculative.py:1065 — `uses_draft_model`."""
        return self.method == "draft_model"

    def use_eagle(self) -> bool:
        """Whether one head goes on from the next. Upstream: upstream/vllm/config/speculative.py:1059 — `use_eagle`."""
        return self.method == "eagle"

    @property
    def has_weights(self) -> bool:
        """Whether something is to be loaded for it."""
        return self.method in ("draft_model", "eagle", "medusa")

    @property
    def num_lookahead_tokens(self) -> int:
        """Slots beyond the scheduled tokens, into which the drafter writes keys and values.

        Upstream: upstream/vllm/v1/core/sched/scheduler.py:213 — "self.num_spec_tokens = self.num_lookahead_tokens".
        """
        return self.num_speculative_tokens if self.uses_draft_model() or self.use_eagle() else 0

    @property
    def keeps_state(self) -> bool:
        """Whether the drafter has keys and values of its own, in those slots."""
        return self.num_lookahead_tokens > 0

    @property
    def max_num_new_slots_for_drafting(self) -> int:
        """Tokens that a drafting pass has more than the step before it, for each request.

        Upstream: upstream/vllm/config/speculative.py:1036 — `max_num_new_slots_for_drafting`.
        """
        return int(self.uses_draft_model())

    def check_engine(self, async_scheduling: bool, tensor_parallel_size: int) -> None:
        """Refuse what cannot go with the rest of the engine.

        Upstream: upstream/vllm/config/vllm.py:922 — "Currently, async scheduling is only supported".
        """
        if async_scheduling and not (self.uses_draft_model() or self.use_eagle()):
            raise ValueError(
                f"async_scheduling must be False with speculative_config method {self.method!r}: its drafts need the "
                "tokens of the step before; it may be True with 'draft_model' and 'eagle'"
            )
        if self.disable_when_slower and (async_scheduling or tensor_parallel_size > 1):
            raise ValueError(
                "speculative_config: disable_when_slower must be False with async_scheduling, where plans are made "
                "before drafts are known, and with tensor_parallel_size > 1, where each rank has a clock of its own"
            )
        draft_size = self.draft_tensor_parallel_size
        if draft_size not in (None, tensor_parallel_size):
            raise ValueError(
                f"speculative_config: draft_tensor_parallel_size must be tensor_parallel_size={tensor_parallel_size}, "
                f"got {draft_size}"
            )

    def resolve_draft_model(self, target: ResolvedModel) -> None:
        """Look at the checkpoint of the draft model or of the heads, before any weight is read.

        Raises:
            FileNotFoundError, ValueError: there is no such checkpoint, it is of something else, or its sizes do not fit
                the target's.

        Upstream: upstream/vllm/config/speculative.py:1018 — `verify_equal_vocab_size_if_draft_model`, for the method of
        that name alone.
        """
        if not self.has_weights or self.draft_model_config is not None:
            return
        from mini_vllm.model_loader.hub import get_checkpoint_folder

        assert self.model is not None
        draft = read_draft_config(self, get_checkpoint_folder(self.model, self.revision))
        check_draft_sizes(self, draft, target)
        self.draft_model_config = draft

    @classmethod
    def of(cls, value: SpeculativeConfig | dict[str, Any] | None) -> SpeculativeConfig | None:
        """From an engine argument: such an object, a dict of its fields, or None for no drafts."""
        if value is None or isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise ValueError(f"speculative_config must be a dict or a SpeculativeConfig, got {shown(value)}")
        known = [each.name for each in fields(cls) if each.name != "draft_model_config"]
        for name in value:
            if name in _REFUSED_FIELDS and value[name] is not None:
                raise ValueError(f"speculative_config: {name!r} is not here: {_REFUSED_FIELDS[name]}")
            if name not in known and name not in _REFUSED_FIELDS:
                raise ValueError(
                    f"speculative_config: unknown key {name!r}{did_you_mean(str(name), known)}. Allowed: "
                    f"{', '.join(known)}"
                )
        if value.get("num_speculative_tokens") is None:
            raise ValueError("speculative_config: num_speculative_tokens must be given, a whole number of at least 1")
        return cls(**{name: given for name, given in value.items() if name in known})
