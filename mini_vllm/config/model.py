"""The settings of the model. Upstream twin: `vllm/config/model.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mini_vllm.config.utils import flag, one_of, whole_number
from mini_vllm.layers.quantization import get_quantization_config
from mini_vllm.logger import warning_once
from mini_vllm.utils.checks import is_int, shown

COMPUTE_DTYPES = ("float32", "float64")
"""What numpy computes in here."""
SIXTEEN_BIT = ("auto", "bfloat16", "float16", "half")
"""Names of upstream that are computed in float32: numpy has no bfloat16, and no fast product in either."""
LOGPROBS_MODES = ("raw_logits", "raw_logprobs", "processed_logits", "processed_logprobs")
GENERATION_KEYS = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p", "max_new_tokens")
"""What may be said about sampling: upstream/vllm/config/model.py:1465 — `ModelConfig.get_diff_sampling_param`."""


@dataclass
class ModelConfig:
    """What is computed, and in which numbers.

    dtype: "float32", or "float64" for tests; upstream's other names ("auto", its default, "bfloat16", "float16",
        "half", "float") are computed in float32, and said once.
    max_logprobs: the most `logprobs` that a request may ask for; -1: the whole vocabulary.
    logprobs_mode: what `logprobs` reports, one of `LOGPROBS_MODES`: of the logits as they come, or after processors,
        temperature, top-k and top-p. `prompt_logprobs` are raw log-probabilities in every mode, as upstream.
    use_fp64_gumbel: finer noise for draws from large vocabularies (`sample/ops/candidates.py`); small ones have it
        always. Upstream's second runner alone knows it.
    logits_processors: custom ones, each a class or "module:Class"; a single one may stand alone.
    skip_tokenizer_init: no tokenizer: prompts are token ids, and no text comes out.
    trust_remote_code: taken, and without effect: a checkpoint's own Python code is never run here.
    generation_config: whose sampling defaults and end tokens count: "auto" the checkpoint's `generation_config.json`,
        "vllm" none, else a folder with such a file. override_generation_config: single values over it.
    tokenizer_mode: "auto" or "hf", which are the same here.
    hf_token: for the hub: a text, True for the one that huggingface_hub keeps, False for none; None: as it likes.
    runner: "generate" or "pooling"; "auto": what the checkpoint is for. convert: what a language model becomes, "embed"
        or "classify"; "none" nothing; "auto": what the runner needs.

    Raises ValueError naming the argument, its value and what is allowed.
    Upstream: upstream/vllm/config/model.py:117 — `ModelConfig`.
    """

    dtype: str = "float32"
    max_model_len: int | None = None
    seed: int = 0
    quantization: str | None = None
    quantization_config: dict[str, Any] | None = None
    max_logprobs: int = 20
    logprobs_mode: str = "raw_logprobs"
    use_fp64_gumbel: bool = False
    logits_processors: Any = None
    skip_tokenizer_init: bool = False
    tokenizer_mode: str = "auto"
    trust_remote_code: bool = False
    generation_config: str = "auto"
    override_generation_config: dict[str, Any] = field(default_factory=dict)
    revision: str | None = None
    served_model_name: str | list[str] | None = None
    enforce_eager: bool = False
    hf_token: bool | str | None = None
    runner: str = "auto"
    convert: str = "auto"

    def __post_init__(self) -> None:
        self.model = self.tokenizer = ""  # until `resolve`
        self.hf_config: Any = None
        self._vocab_size = 0
        names = (*COMPUTE_DTYPES, "float", *SIXTEEN_BIT)
        one_of("dtype", str(self.dtype).removeprefix("torch."), names)
        self.dtype = str(self.dtype).removeprefix("torch.")
        if self.max_model_len is not None:
            whole_number("max_model_len", self.max_model_len, 1)
        whole_number("seed", self.seed, 0)
        whole_number("max_logprobs", self.max_logprobs, -1, " (-1: the whole vocabulary)")
        one_of("logprobs_mode", self.logprobs_mode, LOGPROBS_MODES)
        given = self.logits_processors
        named = [given] if isinstance(given, str | type) else () if given is None else given
        if not isinstance(named, list | tuple) or not all(isinstance(each, str | type) for each in named):
            raise ValueError(f"logits_processors must be classes or texts 'module:Class', got {shown(given, 60)}")
        self.logits_processors = tuple(named)
        for name in ("skip_tokenizer_init", "trust_remote_code", "enforce_eager", "use_fp64_gumbel"):
            flag(name, getattr(self, name))
        one_of("runner", self.runner, ("auto", "generate", "pooling"))
        one_of("convert", self.convert, ("auto", "none", "embed", "classify"))
        one_of("tokenizer_mode", self.tokenizer_mode, ("auto", "hf"))
        if self.quantization is not None:
            get_quantization_config(self.quantization)
        for name in ("generation_config", "revision"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str | Path):
                raise ValueError(f"{name} must be a string, got {shown(value)}")
        if not isinstance(self.hf_token, bool | str | None) or self.hf_token == "":
            raise ValueError(f"hf_token must be a text, True, False or None, got a {type(self.hf_token).__name__}")
        self._check_override()

    def resolve(self, resolved: Any, model: Any, tokenizer: Any, max_model_len: int) -> None:
        """Fill in what depends on the model, which is a `ResolvedModel`; model, tokenizer: as the user named them.

        Upstream: upstream/vllm/config/model.py:475 — `ModelConfig.__post_init__`.
        """
        named = isinstance(model, str | Path)
        self.model = str(model) if named else type(resolved.model).__name__
        self.tokenizer = str(tokenizer) if isinstance(tokenizer, str | Path) else self.model
        self.hf_config, self._vocab_size, self.max_model_len = resolved.hf_config, resolved.vocab_size, max_model_len
        first = self.served_model_name
        self.served_model_name = (first[0] if isinstance(first, list) and first else first) or self.model

    def get_vocab_size(self) -> int:
        """Rows of the logits (upstream/vllm/config/model.py:1261 — `ModelConfig.get_vocab_size`)."""
        return self._vocab_size

    def get_hidden_size(self) -> int:
        """Numbers in a hidden state (upstream/vllm/config/model.py:1264 — `ModelConfig.get_hidden_size`)."""
        return 0 if self.hf_config is None else self.hf_config.hidden_size

    def _check_override(self) -> None:
        override = self.override_generation_config
        if not isinstance(override, Mapping) or set(override) - set(GENERATION_KEYS):
            raise ValueError(
                f"override_generation_config must be a dict with some of {GENERATION_KEYS}, got {shown(override)}"
            )
        from mini_vllm.sampling_params import SamplingParams

        given = {"max_tokens" if key == "max_new_tokens" else key: value for key, value in override.items()}
        try:
            SamplingParams(**{key: value for key, value in given.items() if value is not None})
        except (ValueError, TypeError) as error:
            said = str(error).replace("max_tokens", "max_new_tokens")
            raise ValueError(f"override_generation_config: {said}") from None

    @property
    def compute_dtype(self) -> str:
        """What the model runs in: "float32" or "float64"; says once where that is not what was asked for."""
        if self.dtype in COMPUTE_DTYPES:
            return self.dtype
        if self.dtype != "float":
            warning_once(__name__, f"dtype={self.dtype!r} is computed in float32 on this CPU (numpy has no fast 16-bit "
                         "products): results are those of dtype='float32'")  # fmt: skip
        return "float32"

    def try_get_generation_config(self, model: Any, folder: str | None) -> dict[str, Any]:
        """The generation settings that count, before `override_generation_config`.

        Args:
            model: as loaded; it knows what its own `generation_config.json` says. folder: its checkpoint, or None.

        Raises:
            FileNotFoundError, ValueError: `generation_config` names a folder without a readable file.

        Upstream: upstream/vllm/config/model.py:1432 — `ModelConfig.try_get_generation_config`.
        """
        from mini_vllm.transformers_utils.config import read_generation_config

        if self.generation_config == "vllm":
            return {}
        if self.generation_config != "auto":
            return read_generation_config(self.generation_config)
        return read_generation_config(folder, missing_is_fine=True) if folder is not None else {}

    def get_diff_sampling_param(self, model: Any, folder: str | None) -> dict[str, Any]:
        """Default sampling parameters that are not `SamplingParams`' own, under its names.

        Upstream: upstream/vllm/config/model.py:1465 — `ModelConfig.get_diff_sampling_param`.
        """
        found = {**self.try_get_generation_config(model, folder), **self.override_generation_config}
        chosen = {name: found[name] for name in GENERATION_KEYS if found.get(name) is not None}
        if folder is None and self.generation_config == "auto":
            chosen = {**getattr(model, "default_sampling_params", {}), **chosen}
        if "max_new_tokens" in chosen:
            chosen["max_tokens"] = chosen.pop("max_new_tokens")
        return chosen

    def eos_token_ids(self, model: Any, folder: str | None) -> list[int]:
        """The ids that end a request: the model's own, or those of the folder that `generation_config` names. "vllm"
        changes sampling alone, as upstream, and the tokenizer's EOS ends a request in any case."""
        if self.generation_config in ("auto", "vllm"):
            return list(model.eos_token_ids)
        given = self.try_get_generation_config(model, folder).get("eos_token_id")
        ids = [] if given is None else [given] if is_int(given) else given
        if not isinstance(ids, list) or not all(is_int(i) and 0 <= i < model.vocab_size for i in ids):
            raise ValueError(
                f"generation_config={self.generation_config!r}: eos_token_id must be ids of tokens, got {shown(given)}"
            )
        return ids
