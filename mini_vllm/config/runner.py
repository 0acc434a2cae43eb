"""Whether a model generates or pools, and how: decided once, when it is known which model it is.

Upstream twin: `ModelConfig` of `vllm/config/model.py`, which is made with the model at hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_vllm.config.pooler import PoolerConfig, get_pooling_config, matryoshka_of
from mini_vllm.config.resolved_model import ResolvedModel
from mini_vllm.models.registry import convert_model_class, defaults_of, get_model_class
from mini_vllm.utils.checks import require

if TYPE_CHECKING:
    from mini_vllm.config.vllm import EngineConfig


def resolve_runner(config: EngineConfig, resolved: ResolvedModel, folder: str | Path | None) -> None:
    """Set `runner_type`, `convert_type` and, of a model that pools, `pooler_config` and the limits of its steps.

    Raises:
        ValueError: the model cannot be run as asked; the message names the argument.

    Upstream: upstream/vllm/config/model.py:926 — `ModelConfig._get_runner_type`.
    """
    hf = resolved.hf_config
    named = get_model_class(hf.architecture) if hf is not None else resolved.model
    pools = bool(getattr(named, "is_pooling_model", False))
    by_name = defaults_of(hf.architecture) if hf is not None else ("generate", "none")
    runner = config.runner
    of_checkpoint = {} if runner == "generate" else get_pooling_config(folder)
    if runner == "auto":
        wanted = pools or of_checkpoint or by_name[0] == "pooling" or config.convert not in ("auto", "none")
        runner = "pooling" if wanted else "generate"
    what = hf.architecture if hf is not None else type(resolved.model).__name__
    if runner == "generate":
        require(not pools, "runner", config.runner, f"'pooling' or 'auto' for {what}, which pools")
        require(
            config.convert in ("auto", "none"), "convert", config.convert, "'auto' or 'none' with runner='generate'"
        )
        return
    require(config.platform.supports_pooling, "device", config.device, "'cpu' with runner='pooling'")
    convert = config.convert
    if convert == "auto":
        convert = "none" if pools else by_name[1] if by_name[0] == "pooling" else "embed"
    config.runner_type, config.convert_type = "pooling", convert
    model_class = convert_model_class(named, convert) if hf is not None else named
    if not getattr(model_class, "is_pooling_model", False):
        raise ValueError(
            f"runner='pooling' cannot be had of {what}: it has no pooler; set convert='embed' or 'classify'"
        )
    asked = config.pooler_config or PoolerConfig()
    asked.check_model(tuple(model_class.tasks), resolved.vocab_size)
    pooler = asked.filled(**of_checkpoint)
    config.pooler_config = pooler = pooler.filled(
        seq_pooling_type=model_class.seq_pooling_type, tok_pooling_type=model_class.tok_pooling_type,
        use_activation=model_class.use_activation, step_tag_id=model_class.step_tag_id,
    )  # fmt: skip
    if hf is not None:
        pooler.check_widths(hf.hidden_size)
        if pooler.projector and "embed" not in model_class.tasks:
            raise ValueError(f"modules.json: {what} makes no embedding that a {pooler.projector[0].kind} could change")
        if folder is not None:
            _limit_context(resolved, Path(folder))
        for key, value in matryoshka_of(hf.raw).items():
            setattr(pooler, key, value)
    else:
        resolved.model.init_pooler(pooler)
    pooler.attn_type = model_class.attn_type
    config.supported_tasks = tuple(sorted(model_class.tasks, key=lambda task: task != pooler.task))
    _limit_steps(config, resolved)


def _limit_context(resolved: ResolvedModel, folder: Path) -> None:
    """The longest text of a model that pools: what sentence-transformers' file says, and where positions are learned,
    the tokenizer's, too.

    Upstream: upstream/vllm/config/model.py:1729 — `ModelConfig.get_and_verify_max_len`.
    """
    from mini_vllm.tokenizers.tokenizer_files import model_max_length, read_tokenizer_config
    from mini_vllm.transformers_utils.sentence_transformers import max_seq_length

    longest = max_seq_length(folder, resolved.max_model_len)
    if resolved.hf_config is not None and "type_vocab_size" in resolved.hf_config.table.used:
        longest = min(longest, model_max_length(read_tokenizer_config(folder)) or longest)
    resolved.max_model_len = longest
    if resolved.default_model_len is not None:
        resolved.default_model_len = min(longest, resolved.default_model_len)


def _limit_steps(config: EngineConfig, resolved: ResolvedModel) -> None:
    """What a pooling engine does without. An encoder's prompt is computed whole, and none of it is found again later.

    Upstream: upstream/vllm/config/model.py:1775 — `ModelConfig.is_chunked_prefill_supported`; for CLS, MEAN and STEP on
    a language model upstream does without chunks and cached prefixes too, here requests of these kinds skip the latter.
    """
    config.scheduler.runner_type = "pooling"
    unset: dict[str, Any] = {"async_scheduling": False, "speculative_config": None, "tensor_parallel_size": 1}
    for name, value in unset.items():
        require(getattr(config, name) == value, name, getattr(config, name), f"{value!r} with runner='pooling'")
    assert config.pooler_config is not None
    if config.pooler_config.attn_type != "encoder_only":
        return
    require(not config.enable_lora, "enable_lora", True, "False for an encoder, which has no adapters, as upstream")
    threshold = config.long_prefill_token_threshold
    require(threshold == 0, "long_prefill_token_threshold", threshold, "0 for an encoder, which takes a prompt whole")
    length = config.max_model_len or resolved.max_model_len
    if config.max_num_batched_tokens == type(config).max_num_batched_tokens:  # as upstream, where nobody chose
        config.max_num_batched_tokens = config.scheduler.max_num_batched_tokens = max(
            length, config.max_num_batched_tokens
        )
    config.enable_chunked_prefill = config.scheduler.enable_chunked_prefill = False
    config.enable_prefix_caching = config.cache.enable_prefix_caching = False
